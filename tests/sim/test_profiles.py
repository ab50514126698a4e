"""What must hold of the profiles beside the measured figures (those are rows of ``loadtests calibrate``)."""

from functools import cache

import pytest

from gateway.sim.engine import EngineRequest
from gateway.sim.machine import Machine, replay
from gateway.sim.profiles import D1, D2, D4, D5, PROFILES


@cache
def burst(profile, count):
    """``count`` short requests at once: slowest first token (s), and tokens/s while all of them decode."""
    timings = replay(profile, [(0.0, EngineRequest(str(at), 28, 256)) for at in range(count)]).values()
    from_s, to_s = max(timing.first_s for timing in timings), min(timing.last_s for timing in timings)
    return max(timing.ttft_s for timing in timings), count * 255 / (to_s - from_s)


def test_every_profile_holds_a_full_length_request():
    assert list(PROFILES) == ["D1", "D2", "D3", "D4", "D5"]
    assert all(profile.max_model_len <= profile.engine.kv_tokens for profile in PROFILES.values())
    assert [profile.max_model_len // 1_024 for profile in PROFILES.values()] == [128, 256, 256, 256, 128]


def test_d4_does_not_queue_up_to_its_knee():
    assert burst(D4, 64)[0] < 1.2


def test_d5_is_the_slower_card_with_the_better_sum():
    assert burst(D5, 1)[1] < burst(D4, 1)[1]
    assert burst(D4, 64)[1] < 2 * burst(D5, 64)[1]


def test_d2_accepts_65_to_90_percent_of_its_drafts():
    rates = []
    for name in range(40):
        machine = Machine(D2)
        machine.submit(EngineRequest(str(name), 100, 3_000), 0.0)
        machine.advance(1e6)
        counted = machine.engine.counters
        rates.append(sum(counted.accepted_at) / counted.draft_tokens)
    assert all(0.62 < rate < 0.93 for rate in rates)
    assert min(rates) < 0.70 < 0.85 < max(rates)


def ranks(requests):
    """Requests sent to D1 at once -> which engine each was on."""
    machine = Machine(D1)
    for request in requests:
        machine.submit(request, 0.0)
    return {happening.progress.id: happening.progress.rank for happening in machine.advance(1e6)}


def test_engines_of_one_server_share_the_load_and_know_nothing_of_prefixes():
    placed = ranks([EngineRequest(str(at), 64, 50, blocks=[1, 2, 3, 4]) for at in range(10)])
    assert sorted(placed.values()) == [0] * 5 + [1] * 5


def test_a_pinned_request_goes_where_it_is_told():
    placed = ranks([EngineRequest(str(at), 64, 50, rank=1) for at in range(10)])
    assert set(placed.values()) == {1}
    with pytest.raises(ValueError, match="no engine 2"):
        Machine(D1).submit(EngineRequest("x", 64, 50, rank=2), 0.0)


def test_one_engine_prefills_while_the_other_decodes_undisturbed():
    arrivals = [(0.0, EngineRequest("chat", 28, 400, rank=0)), (0.5, EngineRequest("long", 120_000, 1, rank=1))]
    beside = replay(D1, arrivals)["chat"].last_s
    assert beside == pytest.approx(replay(D1, arrivals[:1])["chat"].last_s)
    shared = [arrivals[0], (0.5, EngineRequest("long", 120_000, 1, rank=0))]
    assert replay(D1, shared)["chat"].last_s > beside + 5


def test_abort_finds_a_request_on_any_engine():
    machine = Machine(D1)
    for rank in (0, 1):
        machine.submit(EngineRequest(str(rank), 64, 5_000, rank=rank), 0.0)
    machine.advance(1.0)
    assert machine.running == 2
    assert machine.abort("1")
    assert [engine.running for engine in machine.engines] == [1, 0]
    assert not machine.abort("1")

"""The pure engine: tables of single rules, and properties that hold for any load."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sim.engine import Engine, EngineRequest
from gateway.sim.spec import EngineSpec, Pace, Speculation

PACE = Pace(decode_steps=((1, 0.01), (16, 0.02)), kv_read_s=1e-8, prefill_s=1e-4, prefill_position_s=1e-9)


def spec(**changes):
    return EngineSpec(**{"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_tokens": 1_024, **changes})


def drain(engine, limit=10_000):
    """Run to the end; what each request got, and the order of first tokens."""
    tokens, firsts, ends, cached = Counter(), [], [], {}
    for _ in range(limit):
        step = engine.step()
        if not engine.running and not engine.waiting and not step.progress:
            return tokens, firsts, ends, cached
        for progress in step.progress:
            tokens[progress.id] += progress.tokens
            cached[progress.id] = progress.cached_tokens
            firsts += [progress.id] * progress.first
            ends += [progress.id] * progress.finished
    raise AssertionError("the engine does not come to an end")


def test_first_token_comes_with_the_step_that_ends_the_prefill():
    engine = Engine(spec(), PACE)
    engine.add(EngineRequest("a", prompt_tokens=100, output_tokens=2))
    assert engine.step().progress == ()  # 64 of 100
    (first,) = engine.step().progress
    assert (first.tokens, first.first, first.finished) == (1, True, False)
    (last,) = engine.step().progress
    assert (last.tokens, last.first, last.finished) == (1, False, True)
    assert engine.cache.used == 0
    assert engine.step() == (0.0, ())


def test_prefill_shares_a_step_with_decodes():
    engine = Engine(spec(), PACE)
    engine.add(EngineRequest("chat", 10, 50))
    engine.step()
    engine.add(EngineRequest("long", 200, 1))
    step = engine.step()
    assert [progress.id for progress in step.progress] == ["chat"]
    assert step.duration_s == pytest.approx(PACE.decode_s(1) + 10 * PACE.kv_read_s + PACE.chunk_s(0, 63))


def test_long_prefill_threshold_leaves_budget_for_others():
    engine = Engine(spec(long_prefill_tokens=48), PACE)
    engine.add(EngineRequest("long", 400, 1))
    engine.step()
    engine.add(EngineRequest("chat", 16, 1))
    assert [progress.id for progress in engine.step().progress] == ["chat"]


def test_a_full_prompt_in_cache_still_computes_its_last_block():
    engine = Engine(spec(), PACE)
    engine.add(EngineRequest("a", 64, 1, blocks=[1, 2, 3, 4]))
    drain(engine)
    engine.add(EngineRequest("b", 64, 1, blocks=[1, 2, 3, 4]))
    step = engine.step()
    assert step.progress[0].cached_tokens == 48
    assert step.duration_s == pytest.approx(PACE.decode_s(1) + PACE.chunk_s(48, 16))


def test_generated_blocks_are_found_by_the_next_turn():
    engine = Engine(spec(), PACE)
    engine.add(EngineRequest("a", 32, 33, blocks=[1, 2, 3, 4]))
    drain(engine)
    engine.add(EngineRequest("b", 80, 1, blocks=[1, 2, 3, 4, 5]))
    assert drain(engine)[3]["b"] == 64


def test_least_recently_used_prefix_is_evicted_from_its_end():
    engine = Engine(spec(kv_tokens=16 * 6), PACE)
    for name, blocks in (("old", [1, 2, 3]), ("new", [11, 12, 13])):
        engine.add(EngineRequest(name, 49, 1, blocks=blocks))  # one private block more
        drain(engine)
    engine.add(EngineRequest("other", 32, 1, blocks=[21, 22]))
    drain(engine)
    assert engine.cache.match([1, 2, 3], 3) == 1
    assert engine.cache.match([11, 12, 13], 3) == 3


def test_a_prompt_that_does_not_fit_waits_and_nobody_overtakes():
    engine = Engine(spec(kv_tokens=160), PACE)
    for name, prompt in (("a", 96), ("b", 96), ("c", 16)):
        engine.add(EngineRequest(name, prompt, 4))
    engine.step()
    assert (engine.running, engine.waiting) == (1, 2)
    assert drain(engine)[1] == ["a", "b", "c"]


def test_decode_that_outgrows_the_cache_preempts_the_newest_and_loses_nothing():
    engine = Engine(spec(kv_tokens=16 * 10, max_num_batched_tokens=128), PACE)
    engine.add(EngineRequest("a", 60, 60))
    engine.add(EngineRequest("b", 60, 60))
    tokens, _, ends, _ = drain(engine)
    assert engine.counters.preemptions > 0
    assert tokens == {"a": 60, "b": 60}
    assert ends == ["a", "b"]
    assert engine.counters.prompt_tokens == 120


def test_speculative_decoding_yields_groups_of_tokens_and_counts_them():
    engine = Engine(spec(speculation=Speculation(2, 0.8, 0.8), max_num_batched_tokens=6), PACE)
    engine.add(EngineRequest("a", 6, 1_000))
    assert engine.step().progress[0].tokens == 1
    steps = [engine.step().progress[0].tokens for _ in range(300)]
    assert set(steps) == {1, 2, 3}
    counted = engine.counters
    assert (counted.drafts, counted.draft_tokens) == (300, 600)
    assert sum(steps) == 300 + sum(counted.accepted_at)
    assert [count / 300 for count in counted.accepted_at] == pytest.approx([0.8, 0.64], abs=0.06)
    drain(engine)
    assert counted.generation_tokens == 1_000


def test_acceptance_belongs_to_the_request():
    speculation = Speculation(2, 0.75, 0.93)
    chances = [speculation.chances(str(number))[0] for number in range(200)]
    assert min(chances) < 0.77 < 0.91 < max(chances)
    assert all(0.75 <= chance <= 0.93 for chance in chances)
    assert speculation.chances("7") == (chances[7], chances[7] ** 2)


def test_a_draft_takes_its_tokens_of_the_budget():
    engine = Engine(spec(max_num_batched_tokens=8, speculation=Speculation(2, 1.0, 1.0)), PACE)
    engine.add(EngineRequest("chat", 4, 50))
    engine.step()
    engine.add(EngineRequest("long", 100, 1))
    step = engine.step()
    assert [progress.tokens for progress in step.progress] == [3]
    assert step.duration_s == pytest.approx(PACE.decode_s(1) + 4 * PACE.kv_read_s + PACE.chunk_s(0, 5))


@pytest.mark.parametrize("limits", [(0, 0.5, 0.5), (1, 0.6, 0.5), (1, -0.1, 0.5), (1, 0.5, 1.1)])
def test_impossible_speculation_is_refused(limits):
    with pytest.raises(ValueError):
        Speculation(*limits)


def test_abort_frees_at_once_wherever_the_request_is():
    engine = Engine(spec(max_num_seqs=1), PACE)
    engine.add(EngineRequest("a", 100, 5))
    engine.add(EngineRequest("b", 100, 5))
    engine.step()
    assert engine.abort("b")
    assert engine.abort("a")
    assert not engine.abort("a")
    assert (engine.running, engine.waiting, engine.cache.used) == (0, 0, 0)


@pytest.mark.parametrize(
    "request_", [EngineRequest("x", 0, 1), EngineRequest("x", 1, -1), EngineRequest("x", 1_000, 100)]
)
def test_impossible_requests_are_refused(request_):
    with pytest.raises(ValueError):
        Engine(spec(), PACE).add(request_)


@pytest.mark.parametrize(
    "changes", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 2}, {"kv_tokens": 15}, {"block_tokens": 0}]
)
def test_impossible_limits_are_refused(changes):
    with pytest.raises(ValueError):
        spec(**changes)


def test_decode_time_follows_the_measured_points_and_extends_the_last_line():
    assert [PACE.decode_s(batch) for batch in (0, 1, 16, 31)] == pytest.approx([0.01, 0.01, 0.02, 0.03])
    assert Pace(((4, 0.5),), 0, 0, 0).decode_s(9) == 0.5


def requests(max_prompt=300, max_output=60):
    """Requests that share prefixes: the family decides the blocks, the length how many of them."""
    one = st.tuples(st.integers(0, 2), st.integers(1, max_prompt), st.integers(0, max_output), st.integers(0, 5))
    return st.lists(one, min_size=1, max_size=12)


SPECS = st.builds(
    spec,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 200),
    kv_tokens=st.integers(368, 1_500),
    long_prefill_tokens=st.sampled_from([0, 5, 48]),
    speculation=st.sampled_from([None, Speculation(1, 0.5, 0.9), Speculation(3, 1.0, 1.0)]),
    prefix_caching=st.booleans(),
)


def engine_request(index, family, prompt, output):
    return EngineRequest(
        str(index), prompt, output, blocks=[family * 1_000 + at for at in range((prompt + output) // 16)]
    )


@given(SPECS, requests(), st.sets(st.integers(0, 11)))
def test_any_load_keeps_the_books(limits, load, aborted):
    engine, due, tokens, firsts, ended = Engine(limits, PACE), list(enumerate(load)), Counter(), [], set()
    for _ in range(20_000):
        while due and due[0][1][3] <= engine.counters.steps:
            index, (family, prompt, output, _) = due.pop(0)
            engine.add(engine_request(index, family, prompt, output))
        step = engine.step()
        for progress in step.progress:
            tokens[progress.id] += progress.tokens
            assert progress.id not in ended
            firsts += [progress.id] * progress.first
            ended |= {progress.id} if progress.finished else set()
            if int(progress.id) in aborted and not progress.finished:
                assert engine.abort(progress.id)
        cache = engine.cache
        assert engine.running <= limits.max_num_seqs
        assert 0 <= cache.used <= cache.used + cache.idle <= cache.capacity
        assert step.duration_s >= 0
        if not limits.prefix_caching:  # then nothing is shared: every token of a context but the newest has its place
            started = [one.request for one in engine._running if one.computed >= one.target]
            places = [limits.blocks_for(one.prompt_tokens + tokens[one.id] - 1) for one in started]
            assert cache.used >= sum(places)
        if not engine.running and not engine.waiting:
            if not due:
                break
            engine.counters.steps += 1  # idle time passes
    assert not engine.running
    assert not engine.waiting
    assert engine.cache.used == 0
    for index, (_, _, output, _) in enumerate(load):
        assert (str(index) in ended) is (tokens[str(index)] == output)
        assert str(index) in ended or index in aborted


@given(SPECS, requests())
def test_order_of_admission_is_order_of_arrival(limits, load):
    """Without preemption, a later request never has its first step before an earlier one."""
    engine = Engine(limits, PACE)
    for index, (family, prompt, output, _) in enumerate(load):
        engine.add(engine_request(index, family, prompt, output))
    admitted = []
    for _ in range(20_000):
        before = engine.counters.prefix_queries
        running = {sequence.request.id for sequence in engine._running}
        step = engine.step()
        now = [sequence.request.id for sequence in engine._running] + [one.id for one in step.progress]
        new = [int(name) for name in dict.fromkeys(now) if name not in running]
        if engine.counters.prefix_queries > before:
            admitted += sorted(name for name in new if name not in admitted)
        if not engine.running and not engine.waiting:
            break
    assert admitted == sorted(admitted)
    assert len(admitted) == len(load)


@given(SPECS, requests())
def test_prefix_cache_changes_no_output(limits, load):
    outcomes = []
    for caching in (True, False):
        engine = Engine(replace(limits, prefix_caching=caching), PACE)
        for index, (family, prompt, output, _) in enumerate(load):
            engine.add(engine_request(index, family, prompt, output))
        tokens, _, ends, cached = drain(engine, 50_000)
        outcomes.append((tokens, sorted(ends)))
        for index, (_, prompt, _, _) in enumerate(load):
            assert cached[str(index)] < prompt
            assert caching or cached[str(index)] == 0
    assert outcomes[0] == outcomes[1]

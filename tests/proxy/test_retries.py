"""Calls over several replicas: what goes elsewhere, how often, and when a replica is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.domain import (
    BreakerSpec,
    Outcome,
    RetrySpec,
    TimeoutSpec,
)
from tests.proxy.replicas import (
    OK_BODY,
    STREAM_HEAD,
    Seen,
    answer_ok,
    chunk,
    event,
    hangs_up,
    streams,
    whole,
)
from tests.proxy.world import World, fleet, model_spec, replica_spec


@pytest.mark.parametrize("status", [502, 503, 504])
def test_e2_an_answer_that_says_not_here_goes_elsewhere(world: World, status: int) -> None:
    seen = [Seen(whole(status, b"{}")), Seen(whole(status, b"{}")), Seen()]
    fleet(world, *seen)
    clients = [world.call() for _ in range(3)]
    records = world.finish(*clients)
    assert {(client.downlink.status, client.downlink.body) for client in clients} == {(200, OK_BODY)}
    assert {(record.outcome, record.replica) for record in records} == {(Outcome.OK, "r2")}
    assert world.events.retries == [str(status)] * sum(record.attempts - 1 for record in records)
    assert world.events.retries


def test_e2_refused_and_broken_connections_go_elsewhere(world: World) -> None:
    fleet(world, hangs_up, answer_ok, answer_ok)
    world.servers["r1"].refuses = ConnectionRefusedError(111, "Connection refused")
    clients = [world.call() for _ in range(6)]
    assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
    assert set(world.events.retries) == {"connection"}
    assert {client.downlink.body for client in clients} == {OK_BODY}  # E3: no text twice


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_e2_other_answers_are_the_clients(world: World, status: int) -> None:
    fleet(world, Seen(whole(status, b"{}")), Seen(whole(status, b"{}")))
    client = world.call()
    (record,) = world.finish(client)
    assert (client.downlink.status, record.attempts) == (status, 1)


def test_e2_each_attempt_has_an_id_of_its_own_that_tells_the_calls(world: World) -> None:
    first, second = Seen(whole(503, b"{}")), Seen(whole(503, b"{}"))
    fleet(world, first, second)
    for _ in range(2):
        world.call(headers=[(b"x-request-id", b"mine")])
    world.until(lambda: len(world.records.kept) == 2)
    ids = first.ids + second.ids
    assert len(ids) == len(set(ids)) == 4
    assert all(one.startswith(b"mine-") for one in ids)


def test_e2_the_last_refusal_is_passed_on_when_nobody_is_left(world: World) -> None:
    fleet(world, *(Seen(whole(503, b'{"busy":%d}' % i)) for i in range(2)))
    client = world.call()
    (record,) = world.finish(client)
    assert (client.downlink.status, record.attempts) == (503, 2)
    assert client.downlink.body.startswith(b'{"busy"')


def test_e2_attempts_are_bounded(world: World) -> None:
    fleet(world, *(Seen(whole(503, b"{}")) for _ in range(5)), retry=RetrySpec(attempts_max=3))
    (record,) = world.finish(world.call())
    assert record.attempts == 3


def test_e2_and_so_are_all_retries_together(world: World) -> None:
    seen = [Seen(whole(503, b"{}")) for _ in range(2)]
    fleet(world, *seen, retry=RetrySpec(attempts_max=3, budget_share=0.1, budget_burst=5.0))
    for _ in range(100):
        world.finish(world.call())
    assert 5 + 100 * 0.1 - 1 <= len(world.events.retries) <= 5 + 100 * 0.1
    assert len(seen[0].ids + seen[1].ids) == 100 + len(world.events.retries)


def test_e2_a_prompt_is_not_retried_where_it_does_not_fit(world: World) -> None:
    big, small = Seen(whole(503, b"{}")), Seen()
    world.serve("big", big)
    world.serve("small", small)
    world.open(model_spec(replica_spec("big"), replica_spec("small", context_tokens=500)))
    client = world.call(messages=[{"role": "user", "content": "word " * 2_000}])
    (record,) = world.finish(client)
    assert (client.downlink.status, record.attempts, small.ids) == (503, 1, [])
    assert world.events.retries == []


def test_e2_a_retry_waits_for_a_place(world: World) -> None:
    fleet(world, Seen(whole(503, b"{}")), streams(tokens=20, gap_s=0.1), cap=1)
    (first, second) = list(world.path.models["qwen"].pool)
    first.spec = replace(first.spec, cap_max=0)
    running = world.call(stream=True)
    first.spec = replace(first.spec, cap_max=1)
    client = world.call(stream=True)
    assert second.inflight == 1
    record, _ = world.finish(client, running)
    assert (record.outcome, record.replica, record.attempts) == (Outcome.OK, "r1", 2)
    assert record.queue_s == pytest.approx(2.0, abs=0.2)


def test_e3_never_after_the_first_byte(world: World) -> None:
    async def cut(peer: Any) -> None:
        await peer.request()
        peer.send(STREAM_HEAD, chunk(event()))
        await peer.sleep(0.1)
        peer.close()

    fleet(world, cut, cut)
    client = world.call(stream=True)
    (record,) = world.finish(client)
    assert (record.attempts, record.outcome) == (1, Outcome.UPSTREAM_CUT)
    assert client.downlink.body.count(b"word") == 1


def test_e4_the_keep_alive_race_is_no_attempt(world: World) -> None:
    async def once(peer: Any) -> None:
        await peer.request()
        peer.send(whole())
        await peer.request()
        peer.close()

    fleet(world, once)
    assert [world.finish(world.call())[0].attempts for _ in range(3)] == [1, 1, 1]
    assert {record.outcome for record in world.records.kept} == {Outcome.OK}
    assert world.events.retries == []
    assert len(world.servers["r0"].peers) == 3


def test_a_stall_before_the_first_byte_is_not_repeated(world: World) -> None:
    async def silent(peer: Any) -> None:
        await peer.request()
        await peer.closed()

    fleet(world, silent, silent, timeouts=TimeoutSpec(first_byte_s=5.0))
    (record,) = world.finish(world.call())
    assert (record.outcome, record.attempts) == (Outcome.UPSTREAM_TIMEOUT, 1)


def test_e1_failures_open_it_and_one_call_finds_out(world: World) -> None:
    fleet(world, answer_ok, cap=8, breaker=BreakerSpec(failures=3, open_s=10.0))
    server = world.servers["r0"]
    server.refuses = ConnectionRefusedError(111, "Connection refused")
    outcomes = [world.finish(world.call())[0].outcome for _ in range(5)]
    assert outcomes == [Outcome.UPSTREAM_ERROR] * 3 + [Outcome.NO_REPLICA] * 2
    world.advance(10.0)
    server.refuses = None
    server.script = streams(tokens=100, gap_s=0.1, first_s=1.0)
    trial = world.call(stream=True)
    assert world.finish(world.call())[0].outcome is Outcome.NO_REPLICA
    world.advance(1.5)  # the trial has begun to answer: that is enough
    other = world.call(stream=True)
    assert [record.outcome for record in world.finish(trial, other)] == [Outcome.OK] * 2


@pytest.mark.parametrize("status", [400, 404, 429, 503])
def test_e1_these_never_open_it(world: World, status: int) -> None:
    fleet(world, Seen(whole(status, b"{}")), breaker=BreakerSpec(failures=2))
    for _ in range(10):
        assert world.finish(world.call())[0].status == status


@pytest.mark.parametrize("status", [500, 502, 504])
def test_e1_these_do(world: World, status: int) -> None:
    fleet(world, Seen(whole(status, b"{}")), breaker=BreakerSpec(failures=2))
    assert [world.finish(world.call())[0].status for _ in range(3)] == [status, status, 503]


@pytest.mark.parametrize("sends", [(), (STREAM_HEAD, chunk(event()))], ids=["silent", "cut"])
def test_e1_so_do_silence_and_broken_answers(world: World, sends: tuple[bytes, ...]) -> None:
    async def script(peer: Any) -> None:
        await peer.request()
        peer.send(*sends)
        await peer.sleep(0.1 if sends else 100.0)
        peer.close()

    fleet(world, script, breaker=BreakerSpec(failures=2), timeouts=TimeoutSpec(first_byte_s=5.0))
    found = [world.finish(world.call(stream=True))[0].outcome for _ in range(3)]
    assert found[0] is found[1] is (Outcome.UPSTREAM_CUT if sends else Outcome.UPSTREAM_TIMEOUT)
    assert found[2] is Outcome.NO_REPLICA


def test_e1_a_trial_whose_client_leaves_frees_its_place(world: World) -> None:
    fleet(world, Seen(whole(500, b"{}")), breaker=BreakerSpec(failures=1, open_s=5.0))
    world.finish(world.call())
    world.advance(5.0)
    world.servers["r0"].script = Seen(delay_s=100.0)
    trial = world.call()
    world.advance(1.0)
    trial.leaves()
    world.finish(trial)
    world.servers["r0"].script = answer_ok
    assert world.finish(world.call())[0].outcome is Outcome.OK

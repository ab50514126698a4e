"""Reload and drain, and what one replica's trouble is to the others."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain import (
    Outcome,
    ServingSpec,
)
from tests.proxy.replicas import (
    answer_ok,
    streams,
)
from tests.proxy.world import World, fleet, model_spec, replica_spec


def reloaded(world: World, *models: Any, serving: ServingSpec | None = None) -> None:
    world.path.apply(models, serving or world.path.serving)


def test_e6_streams_of_a_removed_replica_finish_and_new_calls_go_elsewhere(world: World) -> None:
    fleet(world, streams(tokens=20), streams(tokens=20), cap=4)
    before = [world.call(stream=True) for _ in range(2)]
    world.advance(1.0)
    reloaded(world, model_spec(replica_spec("r1", 4)))
    after = [world.call(stream=True) for _ in range(2)]
    records = world.finish(*before, *after)
    assert {record.outcome for record in records} == {Outcome.OK}
    assert {record.replica for record in records[:2]} == {"r0", "r1"}
    assert {record.replica for record in records[2:]} == {"r1"}
    assert world.servers["r0"].open_connections == 0


def test_e6_waiters_of_a_removed_model_are_told(world: World) -> None:
    fleet(world, streams(tokens=50), cap=1)
    running, waiting = world.call(stream=True), world.call(stream=True)
    world.advance(1.0)
    reloaded(world, model_spec(replica_spec("r9"), name="other"))
    (record,) = world.finish(waiting)
    assert (record.status, record.reason) == (404, "model_not_found")
    client = world.call()
    assert world.finish(client)[0].status == 404
    assert world.finish(running)[0].outcome is Outcome.OK


@pytest.mark.parametrize("away", [False, True])
def test_e6_a_renamed_model_keeps_the_caps_of_its_replicas(world: World, away: bool) -> None:
    fleet(world, streams(tokens=50, gap_s=0.1), cap=1)
    running = world.call(stream=True)
    world.advance(1.0)
    if away:
        reloaded(world)
    reloaded(world, model_spec(replica_spec("r0", 1), name="renamed"))
    waiting = world.call(stream=True, model="renamed")
    first, second = world.finish(running, waiting)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.OK)
    assert second.queue_s == pytest.approx(first.e2e_s - 1.0, abs=0.3)


def test_e6_what_a_removed_model_left_is_forgotten_when_it_ends(world: World) -> None:
    fleet(world, streams(tokens=10))
    running = world.call(stream=True)
    reloaded(world)
    assert world.finish(running)[0].outcome is Outcome.OK
    reloaded(world)
    assert world.path._left == []
    assert world.servers["r0"].open_connections == 0


def test_e6_a_wider_cap_lets_waiters_in(world: World) -> None:
    fleet(world, streams(tokens=50), cap=1)
    clients = [world.call(stream=True) for _ in range(3)]
    world.advance(1.0)
    reloaded(world, model_spec(replica_spec("r0", 3)))
    for record in world.finish(*clients):
        assert record.queue_s == pytest.approx(0.0 if record.queue_s < 0.5 else 1.0, abs=0.01)


def test_e7_streams_finish_new_calls_are_refused(world: World) -> None:
    fleet(world, streams(tokens=50, gap_s=0.1), cap=20)
    clients = [world.call(stream=True) for _ in range(20)]
    world.advance(1.0)
    drained = world.loop.create_task(world.path.drain())
    world.advance(0.01)
    assert (world.path.ready, world.path.draining) == (False, True)
    late = world.call()
    (refused,) = world.finish(late)
    assert (refused.outcome, late.downlink.status) == (Outcome.DRAINING, 503)
    assert late.downlink.header(b"retry-after") == b"5"
    world.run(drained)
    assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
    assert world.loop.time() < 1_000.0 + 7.0


def test_e7_what_takes_too_long_is_cut_and_says_why(world: World) -> None:
    world.serve("r0", streams(tokens=5_000, gap_s=0.1))
    world.open(model_spec(replica_spec("r0", 1)), serving=ServingSpec(drain_s=10.0))
    running, waiting, whole_one = world.call(stream=True), world.call(stream=True), world.call()
    world.advance(1.0)
    world.run(world.path.drain())
    assert world.loop.time() == pytest.approx(1_011.0, abs=0.2)
    records = world.finish(running, waiting, whole_one)
    assert {record.outcome for record in records} == {Outcome.DRAINING}
    assert b'"draining"' in running.downlink.body
    assert running.downlink.aborted
    assert (waiting.downlink.status, whole_one.downlink.status) == (503, 503)


def test_closing_ends_whatever_runs(world: World) -> None:
    fleet(world, streams(tokens=5_000), cap=1)
    clients = [world.call(stream=True) for _ in range(2)]
    world.advance(1.0)
    before = world.loop.time()
    world.run(world.path.close())
    assert all(client.downlink.over for client in clients)
    assert {record.outcome for record in world.finish(*clients)} == {Outcome.DRAINING}
    assert world.loop.time() - before < 1.0


def test_a5_a_hung_replica_does_not_slow_calls_to_the_others(world: World) -> None:
    async def hung(peer: Any) -> None:
        await peer.closed()

    fleet(world, hung, answer_ok, cap=4)
    clients = [world.call() for _ in range(12)]
    world.advance(0.1)
    stuck = [client for client in clients if not client.downlink.finished]
    assert {client.exchange.grant.choice.replica for client in stuck if client.exchange.grant} == {"r0"}
    assert len(stuck) <= 4
    for client in clients:
        client.leaves()
    world.finish(*clients)


def test_a7_a_thousand_calls_leave_memory_as_it_was(world: World) -> None:
    fleet(world, answer_ok, cap=4)
    for _ in range(1_000):
        world.finish(world.call())
    (replica,) = world.path.models["qwen"].pool
    assert (replica.upstream.open_connections, len(world.servers["r0"].peers)) == (1, 1)
    assert len(world.path.tasks) == 0

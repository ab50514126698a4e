"""A1 at every moment: wherever a call is when it is ended, nothing of it is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.domain import Outcome
from gateway.errors import Draining
from gateway.testing.network import Script
from tests.proxy.replicas import (
    streams,
)
from tests.proxy.world import Client, World, model_spec, replica_spec


def one(world: World, script: Script, **changes: Any) -> None:
    world.serve("gpu", script)
    world.open(model_spec(replica_spec("gpu"), **changes))


def walk(world: World, path: str) -> Client:
    """A call that passes every place where it may wait: a queue, a connection, a head, a stream."""
    one(world, streams(tokens=5, gap_s=0.2, first_s=0.3))
    world.servers["gpu"].connect_s = 0.2
    if path == "queued":
        for _ in range(2):
            world.call(stream=True)
    return world.call(stream=True)


STEPS = [i * 0.05 for i in range(80)]


@pytest.mark.parametrize("path", ["free", "queued"])
@pytest.mark.parametrize("how", ["leaves", "killed", "cancelled"])
def test_a1_ended_at_any_moment_a_call_leaves_nothing(loop: Any, path: str, how: str) -> None:
    outcomes = set()
    for after_s in STEPS:
        world = World(loop)
        client = walk(world, path)
        world.advance(after_s)
        task = client.exchange.task
        assert task is not None
        if how == "leaves":
            client.leaves()
        elif how == "killed":
            client.exchange.kill(Draining("over"))
        else:
            task.cancel()
        world.until(lambda world=world: not world.path.exchanges, 20.0)
        (record,) = [r for r in world.records.kept if r.request_id == client.exchange.request_id]
        outcomes.add(record.outcome)
        assert client.downlink.over
        world.close()
    expected = {"leaves": Outcome.CLIENT_GONE, "killed": Outcome.DRAINING, "cancelled": Outcome.INTERNAL}[how]
    assert outcomes == {expected, Outcome.OK}


def test_a1_ended_at_every_single_step_a_call_leaves_nothing(loop: Any) -> None:
    """The same by steps of the loop: between any two callbacks."""
    for steps in range(60):
        world = World(loop)
        one(world, streams(tokens=3, gap_s=0.0, first_s=0.0))

        async def leave(world: World = world, steps: int = steps) -> Client:
            client = world.send(stream=True)
            for _ in range(steps):
                await asyncio.sleep(0)
            client.leaves()
            return client

        client = world.run(leave())
        (record,) = world.finish(client)
        assert record.outcome in (Outcome.CLIENT_GONE, Outcome.OK)
        world.close()

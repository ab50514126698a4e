"""After every test nothing may be left of any call: no permit, waiter, task, connection, nor an unhandled exception."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.testing.loop import VirtualLoop
from tests.proxy.room import Room
from tests.proxy.wire import Wire
from tests.proxy.world import World, model_spec


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()
    assert loop.faults == []


@pytest.fixture
def world(loop: VirtualLoop) -> Iterator[World]:
    world = World(loop)
    yield world
    world.close()


@pytest.fixture
def make_room(loop: VirtualLoop) -> Any:
    rooms: list[Room] = []

    def build(*replicas: Any, **changes: Any) -> Room:
        rooms.append(Room(loop, model_spec(*replicas, **changes)))
        return rooms[-1]

    yield build
    for room in rooms:
        room.close()


@pytest.fixture
def wire(loop: VirtualLoop) -> Any:
    wire = Wire(loop)
    yield wire
    wire.upstream.close()
    wire.server.close()
    wire.run(asyncio.sleep(0.01))
    assert wire.upstream.open_connections == 0
    assert wire.server.open_connections == 0
    assert asyncio.all_tasks(loop) == set()

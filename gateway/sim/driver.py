"""Turns an engine's steps into time: the one coroutine between the pure machine and a server's connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.clock import Clock
from gateway.sim.engine import EngineRequest, Progress
from gateway.sim.machine import Machine

Sink = Callable[[Progress], None]


class Driver:
    """Runs ``machine`` at ``speed`` times real time and hands each request's progress to its sink.

    A late wake-up does not slow the machine down: steps are due at simulated moments, not after sleeps.
    """

    def __init__(self, machine: Machine, clock: Clock, speed: float) -> None:
        if not speed > 0:
            raise ValueError("speed must be above 0")
        self.machine = machine
        self._clock = clock
        self._speed = speed
        self._origin_s = clock.monotonic()
        self._sinks: dict[str, Sink] = {}
        self._news = asyncio.Event()
        self._nap: asyncio.Task[None] | None = None
        self._due_s = 0.0

    @property
    def now_s(self) -> float:
        """Simulated time, in seconds since the start."""
        return (self._clock.monotonic() - self._origin_s) * self._speed

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Give ``request`` to the machine; ``sink`` hears of it until it finishes or is aborted."""
        self.machine.submit(request, self.now_s)
        self._sinks[request.id] = sink
        self._news.set()
        due_s = self.machine.wake_s
        if self._nap is not None and due_s is not None and due_s < self._due_s:
            self._nap.cancel()

    def abort(self, request_id: str) -> bool:
        """Stop a request within the current step. False if it is not running."""
        self._sinks.pop(request_id, None)
        return self.machine.abort(request_id)

    async def run(self) -> None:
        """Drive until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._deliver()
                due_s = self.machine.wake_s
                if due_s is None:
                    self._news.clear()
                    await self._news.wait()
                    continue
                self._due_s = due_s
                self._nap = group.create_task(self._clock.sleep(max(0.0, due_s - self.now_s) / self._speed))
                await asyncio.wait((self._nap,))
                self._nap = None

    def _deliver(self) -> None:
        for happening in self.machine.advance(self.now_s):
            progress = happening.progress
            sink = self._sinks.get(progress.id)
            if sink is None:
                continue
            if progress.finished:
                del self._sinks[progress.id]
            sink(progress)

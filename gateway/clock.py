"""Time as an input: monotonic for durations, wall for timestamps. Tests drive a ``ManualClock``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where the gateway's time comes from, in seconds."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


class SystemClock:
    """The machine's own time. ``monotonic`` is the clock event loops use."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        await asyncio.sleep(seconds)


class LoopClock:
    """The running event loop's time, so that a loop in simulated time moves the gateway with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.monotonic: Callable[[], float] = loop.time
        self.wall: Callable[[], float] = loop.time

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of the loop's time."""
        await asyncio.sleep(seconds)


class ManualClock:
    """Time that moves only when told to."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        """Seconds, as last set."""
        return self.now_s

    wall = monotonic

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self.now_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Advance at once, yielding to other tasks."""
        self.now_s += seconds
        await asyncio.sleep(0)

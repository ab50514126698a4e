"""Callbacks at exact times. An event loop's own timers are a millisecond coarse, which would make every stream's
chunks arrive in clumps; Linux's timerfd is exact to microseconds."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable

_CLOCK_MONOTONIC, _FLAGS, _ABSOLUTE = 1, os.O_NONBLOCK | os.O_CLOEXEC, 1
_SECOND_NS = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _TimeSpec), ("value", _TimeSpec)]


class Pacer:
    """Runs callbacks on ``loop`` when ``time.monotonic_ns`` reaches their time. Raises OSError without timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._armed_ns = 0
        loop.add_reader(self._fd, self._fire)

    def at(self, due_ns: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` at ``due_ns``; a time that has passed means at once (from the loop)."""
        self._count += 1  # breaks ties, so that callbacks are never compared
        heapq.heappush(self._due, (due_ns, self._count, callback))
        if self._armed_ns == 0 or due_ns < self._armed_ns:
            self._arm(due_ns)

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        value = _TimeSpec(due_ns // _SECOND_NS, due_ns % _SECOND_NS)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(_TimerSpec(_TimeSpec(0, 0), value)), None)

    def _fire(self) -> None:
        os.read(self._fd, 8)
        self._armed_ns = 1  # callbacks that add to the heap need not arm: it is done below, once
        now_ns = time.monotonic_ns()
        while self._due and self._due[0][0] <= now_ns:
            heapq.heappop(self._due)[2]()
        self._armed_ns = 0
        if self._due:
            self._arm(self._due[0][0])

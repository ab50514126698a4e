"""Misbehaviour on demand, so that a front can be tested against every way an engine may fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class FaultKind(StrEnum):
    """What goes wrong."""

    STATUS = "status"  # answer ``status`` and no more
    CLOSE = "close"  # close before the headers
    HANG = "hang"  # silent before the first byte
    CLOSE_AFTER = "close_after"  # close after ``chunks`` chunks
    HANG_AFTER = "hang_after"  # silent after ``chunks`` chunks
    ERROR_AFTER = "error_after"  # the engine's own error event after ``chunks`` chunks


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault for the next ``times`` requests. ``chunks`` counts those with tokens, after the role chunk."""

    kind: FaultKind
    times: int = 1
    status: int = 500
    chunks: int = 3

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for numbers that mean nothing."""
        if not (1 <= self.times <= 1_000_000 and 200 <= self.status <= 599 and self.chunks >= 0):
            raise ValueError("times must be at least 1, status 200 to 599, chunks 0 or more")


class Manner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How streams are written: every byte in a chunk of its own (splitting UTF-8), lines ended by CRLF."""

    bytewise: bool = False
    crlf: bool = False


class FaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /sim/faults``: replaces the queue of faults, the manner, or both."""

    faults: Sequence[Fault] | None = None
    manner: Manner | None = None


class Faults:
    """The queue of faults to come and the manner of writing. Each request of a model endpoint takes one fault."""

    def __init__(self) -> None:
        self.manner = Manner()
        self._queue: deque[Fault] = deque()

    def order(self, order: FaultOrder) -> None:
        """Take an order."""
        if order.faults is not None:
            self._queue = deque(order.faults)
        if order.manner is not None:
            self.manner = order.manner

    def inject(self, *faults: Fault) -> None:
        """Add faults behind those waiting."""
        self._queue.extend(faults)

    def clear(self) -> None:
        """Behave again."""
        self._queue.clear()
        self.manner = Manner()

    @property
    def left(self) -> int:
        """Requests that will still go wrong."""
        return sum(fault.times for fault in self._queue)

    def take(self) -> Fault | None:
        """The fault of the request that is just beginning."""
        if not self._queue:
            return None
        fault = self._queue.popleft()
        if fault.times > 1:
            self._queue.appendleft(msgspec.structs.replace(fault, times=fault.times - 1))
        return fault

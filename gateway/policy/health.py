"""Whether a replica may be used: a passive breaker fed by calls and an active probe, both as values.

The breaker is the classic one (Nygard, *Release It!*): closed, open after ``failures`` in a row, half-open after
``open_s``, when one call is let through to find out. What counts as a failure is decided by ``counts_as_failure``:
the replica's own faults do, the client's (4xx) and a full engine (429, 503) do not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gateway.domain import BreakerSpec

PROBE_FAILURES_TO_DOWN = 2
FAILURE_STATUSES = frozenset({500, 502, 504})


class BreakerState(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(NamedTuple):
    """Failures in a row, when it opened (monotonic seconds), and whether the half-open call is under way."""

    failures: int = 0
    opened_at_s: float | None = None
    trying: bool = False

    def state(self, now_s: float, spec: BreakerSpec) -> BreakerState:
        """The state at ``now_s``."""
        if self.opened_at_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self.opened_at_s + spec.open_s else BreakerState.HALF_OPEN

    def allows(self, now_s: float, spec: BreakerSpec) -> bool:
        """Whether a call may go through now."""
        if self.opened_at_s is None:
            return True
        return now_s >= self.opened_at_s + spec.open_s and not self.trying

    def started(self) -> Breaker:
        """A call was let through; in half-open it is the only one."""
        return self if self.opened_at_s is None else self._replace(trying=True)

    def succeeded(self) -> Breaker:
        """The replica answered for itself."""
        return CLOSED

    def failed(self, now_s: float, spec: BreakerSpec) -> Breaker:
        """The replica failed: open from the last permitted failure on, and again after a failed half-open call."""
        failures = self.failures + 1
        if self.opened_at_s is not None or failures >= spec.failures:
            return Breaker(failures, now_s)
        return Breaker(failures)

    def abandoned(self) -> Breaker:
        """A call ended without telling anything of the replica (client gone): the half-open place is free again."""
        return self._replace(trying=False) if self.trying else self


CLOSED = Breaker()


def counts_as_failure(status: int) -> bool:
    """Whether an answer with ``status`` is the replica's own fault."""
    return status in FAILURE_STATUSES


class ProbeState(NamedTuple):
    """What the active probe knows. ``up`` is ``None`` before the first one: such a replica may be tried."""

    up: bool | None = None
    failures: int = 0
    why: str = ""

    def passed(self) -> ProbeState:
        """``/health`` answered 200."""
        return ProbeState(up=True)

    def failed(self, why: str, *, refused: bool) -> ProbeState:
        """A probe failed; a refused connection is certain at once, silence only the second time in a row."""
        failures = self.failures + 1
        down = refused or failures >= PROBE_FAILURES_TO_DOWN or self.up is None
        return ProbeState(up=False if down else self.up, failures=failures, why=why)

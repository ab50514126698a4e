"""An engine in simulated time: requests arrive, are taken in, and steps follow one another. Pure, like the engine.

Whoever holds a ``Machine`` owns the clock: the HTTP server maps it to real time, ``replay`` and load tests in virtual
time simply jump to the next moment something happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.sim.engine import Engine, EngineRequest, Progress, Step
from gateway.sim.profiles import Profile


class Happening(NamedTuple):
    """A request's progress and the simulated moment (seconds) at which it is seen."""

    at_s: float
    progress: Progress


class _Arrival(NamedTuple):
    ready_s: float
    order: int
    request: EngineRequest


class Machine:
    """One engine, its intake and the step it is in."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.engine = Engine(profile.engine, profile.pace)
        self._arrivals: list[_Arrival] = []  # heap by the moment they reach the engine
        self._order = 0
        self._live: set[str] = set()
        self._step: Step | None = None
        self._ends_s = 0.0

    @property
    def queued(self) -> int:
        """Requests accepted but not in the batch."""
        return len(self._arrivals) + self.engine.waiting

    @property
    def wake_s(self) -> float | None:
        """When something happens next, or ``None`` while there is nothing to do."""
        if self._step is not None:
            return self._ends_s
        return self._arrivals[0].ready_s if self._arrivals else None

    def submit(self, request: EngineRequest, now_s: float) -> None:
        """Take ``request`` in at ``now_s``; it reaches the engine after the profile's intake time."""
        if request.id in self._live:
            raise ValueError(f"request {request.id} is already here")
        self._live.add(request.id)
        self._order += 1
        ready_s = now_s + self.profile.intake_s(request.prompt_tokens)
        heapq.heappush(self._arrivals, _Arrival(ready_s, self._order, request))

    def abort(self, request_id: str) -> bool:
        """Drop a request wherever it is; nothing more is heard of it. False if it is unknown or finished."""
        if request_id not in self._live:
            return False
        self._live.discard(request_id)
        if not self.engine.abort(request_id):
            self._arrivals = [arrival for arrival in self._arrivals if arrival.request.id != request_id]
            heapq.heapify(self._arrivals)
        return True

    def advance(self, now_s: float) -> list[Happening]:
        """Everything that happens up to ``now_s``, in order."""
        happenings: list[Happening] = []
        while (due_s := self.wake_s) is not None and due_s <= now_s:
            happenings.extend(self._end_step(due_s))
            self._begin_step(due_s)
        return happenings

    def _end_step(self, now_s: float) -> list[Happening]:
        step, self._step = self._step, None
        seen = [Happening(now_s, progress) for progress in step.progress if progress.id in self._live] if step else []
        self._live.difference_update(happening.progress.id for happening in seen if happening.progress.finished)
        return seen

    def _begin_step(self, now_s: float) -> None:
        while self._arrivals and self._arrivals[0].ready_s <= now_s:
            self.engine.add(heapq.heappop(self._arrivals).request)
        if self.engine.running or self.engine.waiting:
            self._step = self.engine.step()
            self._ends_s = now_s + self._step.duration_s


@dataclass(slots=True)
class Timing:
    """When one replayed request was sent, had its first token and ended (seconds), and what it got (tokens)."""

    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.sent_s


def replay(profile: Profile, arrivals: Iterable[tuple[float, EngineRequest]]) -> dict[str, Timing]:
    """Run ``arrivals`` (seconds, request) through one engine to the end; timings by request id."""
    machine = Machine(profile)
    timings: dict[str, Timing] = {}
    happenings: list[Happening] = []
    for at_s, request in sorted(arrivals, key=lambda arrival: arrival[0]):
        happenings += machine.advance(at_s)
        machine.submit(request, at_s)
        timings[request.id] = Timing(at_s)
    while (due_s := machine.wake_s) is not None:
        happenings += machine.advance(due_s)
    for at_s, progress in happenings:
        timing = timings[progress.id]
        timing.tokens += progress.tokens
        timing.cached_tokens, timing.last_s = progress.cached_tokens, at_s
        if progress.first:
            timing.first_s = at_s
    return timings

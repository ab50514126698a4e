"""A server's engines in simulated time: requests arrive, are taken in, steps follow one another. Pure, like the engine.

With several engines (vLLM's data parallelism behind one API server) a request that names no rank goes to the one with
the least load, four times the waiting plus the running; what an engine has in its prefix cache plays no part.

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


_WAITING_WEIGHT = 4  # vLLM's, in its data-parallel client


@dataclass(slots=True, eq=False)
class _Lane:
    """An engine and the step it is in."""

    engine: Engine
    step: Step | None = None
    ends_s: float = 0.0

    @property
    def load(self) -> int:
        """What the balance between engines goes by."""
        return _WAITING_WEIGHT * self.engine.waiting + self.engine.running


class Machine:
    """The engines of one server, their common intake and the steps they are in."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._lanes = tuple(_Lane(Engine(profile.engine, profile.pace, rank)) for rank in range(profile.engines))
        self._arrivals: list[_Arrival] = []  # heap by the moment they reach an engine
        self._order = 0
        self._live: set[str] = set()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """By rank."""
        return tuple(lane.engine for lane in self._lanes)

    @property
    def engine(self) -> Engine:
        """The first engine: the only one of most servers."""
        return self._lanes[0].engine

    @property
    def running(self) -> int:
        """Requests in a batch."""
        return sum(lane.engine.running for lane in self._lanes)

    @property
    def queued(self) -> int:
        """Requests accepted but in no batch."""
        return len(self._arrivals) + sum(lane.engine.waiting for lane in self._lanes)

    @property
    def wake_s(self) -> float | None:
        """When something happens next, or ``None`` while there is nothing to do.

        While every engine is in a step an arrival changes nothing before one of them ends.
        """
        due_s = [lane.ends_s for lane in self._lanes if lane.step is not None]
        if self._arrivals and len(due_s) < len(self._lanes):
            due_s.append(self._arrivals[0].ready_s)
        return min(due_s, default=None)

    def submit(self, request: EngineRequest, now_s: float) -> None:
        """Take ``request`` in at ``now_s``; it reaches an engine after the profile's intake time.

        Raises ``ValueError`` if its id is known or its rank is of no engine.
        """
        if request.id in self._live:
            raise ValueError(f"request {request.id} is already here")
        if request.rank is not None and not 0 <= request.rank < len(self._lanes):
            raise ValueError(f"there is no engine {request.rank}")
        self._live.add(request.id)
        self._order += 1
        ready_s = now_s + self.profile.intake_s(request.prompt_tokens)
        heapq.heappush(self._arrivals, _Arrival(ready_s, self._order, request))

    def abort(self, request_id: str) -> bool:
        """Drop a request wherever it is; nothing more is heard of it. False if it is unknown or finished."""
        if request_id not in self._live:
            return False
        self._live.discard(request_id)
        if not any(lane.engine.abort(request_id) for lane in self._lanes):
            self._arrivals = [arrival for arrival in self._arrivals if arrival.request.id != request_id]
            heapq.heapify(self._arrivals)
        return True

    def advance(self, now_s: float) -> list[Happening]:
        """Everything that happens up to ``now_s``, in order."""
        happenings: list[Happening] = []
        while (due_s := self.wake_s) is not None and due_s <= now_s:
            self._take_in(due_s)
            for lane in self._lanes:
                if lane.step is None or lane.ends_s <= due_s:
                    happenings.extend(self._end_step(lane, due_s))
                    _begin_step(lane, due_s)
        return happenings

    def _take_in(self, now_s: float) -> None:
        while self._arrivals and self._arrivals[0].ready_s <= now_s:
            request = heapq.heappop(self._arrivals).request
            least = min(self._lanes, key=lambda lane: lane.load)
            lane = least if request.rank is None else self._lanes[request.rank]
            lane.engine.add(request)

    def _end_step(self, lane: _Lane, now_s: float) -> list[Happening]:
        step, lane.step = lane.step, None
        seen = [Happening(now_s, progress) for progress in step.progress if progress.id in self._live] if step else []
        self._live.difference_update(happening.progress.id for happening in seen if happening.progress.finished)
        return seen


def _begin_step(lane: _Lane, now_s: float) -> None:
    if lane.engine.running or lane.engine.waiting:
        lane.step = lane.engine.step()
        lane.ends_s = now_s + lane.step.duration_s


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
    """Run ``arrivals`` (seconds, request) through one server to the end; timings by request id."""
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

"""One simulated vLLM on the loop's own time: the same engines as ``gateway sim``, without HTTP around them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.domain import EngineStats
from gateway.sim.engine import EngineRequest, Progress
from gateway.sim.machine import Machine
from gateway.sim.profiles import Profile
from loadtests.runner.engines import Reading, SimStats

Sink = Callable[[float, Progress], None]


class Refused(Exception):
    """An answer other than 200 from the server; ``word`` is the error's, as the client of a socket run shows it."""

    def __init__(self, status: int, word: str) -> None:
        super().__init__(f"{status} {word}")
        self.status = status


class Server:
    """A profile's machine. A sink hears of its request's progress, with the time, until it finishes or is aborted.

    ``queued_max`` is vLLM's bound on its own backlog, ``None`` without one.
    """

    def __init__(self, profile: Profile, loop: asyncio.AbstractEventLoop, *, queued_max: int | None = None) -> None:
        self.profile = profile
        self.machine = Machine(profile)
        self.inflight_max = self.opened = 0
        self._loop = loop
        self._queued_max = queued_max
        self._sinks: dict[str, Sink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None

    @property
    def inflight(self) -> int:
        """Requests here."""
        return len(self._sinks)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Take a request. Raises ``Refused`` as vLLM would: context too long, backlog full."""
        if self._queued_max is not None and self.machine.queued >= self._queued_max:
            raise Refused(503, "Service Unavailable")
        if request.prompt_tokens + max(1, request.output_tokens) > self.profile.max_model_len:
            raise Refused(400, "BadRequestError")
        self.machine.submit(request, self._loop.time())
        self._sinks[request.id] = sink
        self.opened += 1
        self.inflight_max = max(self.inflight_max, len(self._sinks))
        self._arm()

    def abort(self, request_id: str) -> None:
        """The client left; nothing happens if the request is over."""
        if self._sinks.pop(request_id, None) is not None:
            self.machine.abort(request_id)
            self._arm()

    def stats(self) -> EngineStats:
        """What ``/metrics`` would say."""
        engines = self.machine.engines
        counters = [engine.counters for engine in engines]
        return EngineStats(
            engines=len(engines),
            running=self.machine.running,
            waiting=self.machine.queued,
            kv_usage=sum(engine.kv_usage for engine in engines) / len(engines),
            kv_capacity_tokens=sum(engine.spec.kv_blocks * engine.spec.block_tokens for engine in engines),
            prefix_queries=sum(one.prefix_queries for one in counters),
            prefix_hits=sum(one.prefix_hits for one in counters),
            prompt_tokens=sum(one.prompt_tokens for one in counters),
            generation_tokens=sum(one.generation_tokens for one in counters),
            preemptions=sum(one.preemptions for one in counters),
        )

    def reading(self) -> Reading:
        """The same as a run over sockets reads it."""
        return Reading(engine=self.stats(), sim=SimStats(self.inflight, self.inflight_max, self.opened))

    def _arm(self) -> None:
        due_s = self.machine.wake_s
        if due_s == self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._step)

    def _step(self) -> None:
        due_s, self._due_s, self._timer = self._due_s, None, None
        assert due_s is not None
        sinks = self._sinks
        for at_s, progress in self.machine.advance(due_s):  # the exact moment: the loop's own is rounded
            sink = sinks.get(progress.id)
            if sink is not None:
                if progress.finished:
                    del sinks[progress.id]
                sink(at_s, progress)
        self._arm()

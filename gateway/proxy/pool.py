"""The replicas of one model as they are now: permits taken, breaker, what the probe found, connections.

A ``Replica`` is mutable and lives as long as its URL stays configured; policies see ``ReplicaView`` snapshots only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from gateway.clock import Clock
from gateway.domain import EngineStats, ModelSpec, ReplicaSpec, ReplicaView
from gateway.policy import health
from gateway.policy.health import Breaker, ProbeState
from gateway.ports import ReplicaStatus
from gateway.proxy.upstream import Upstream, origin_of


class Replica:
    """One vLLM server: its permits, health and connections."""

    def __init__(self, spec: ReplicaSpec, model: ModelSpec, clock: Clock) -> None:
        self.spec = spec
        self.model = model
        self.clock = clock
        self.inflight = 0
        self.light = 0
        self.prefilling_tokens = 0  # of prompts that were sent and have no answer yet
        self.probes = 0
        self.retired = False
        self.breaker: Breaker = health.CLOSED
        self.probe = ProbeState()
        self.found_context_tokens: int | None = None
        self.stats: EngineStats | None = None
        self.upstream = self._connect()

    @property
    def context_tokens(self) -> int | None:
        """Longest prompt plus answer, in tokens: as configured, else as probed, else unknown."""
        return self.spec.context_tokens or self.found_context_tokens

    @property
    def available(self) -> bool:
        """Whether a call may be sent here now (permits apart)."""
        if self.retired or self.probe.up is False:
            return False
        breaker = self.breaker
        return breaker.opened_at_s is None or breaker.allows(self.clock.monotonic(), self.model.breaker)

    def view(self) -> ReplicaView:
        """Snapshot for a policy."""
        spec = self.spec
        return ReplicaView(spec.name, spec.serves, self.available, self.inflight, spec.cap_max, self.context_tokens)

    def told(self, *, failed: bool, trial: bool) -> None:
        """Take in what an attempt said of the replica. While the breaker is open only the half-open trial counts."""
        if self.breaker.opened_at_s is not None and not trial:
            return
        if failed:
            self.breaker = self.breaker.failed(self.clock.monotonic(), self.model.breaker)
        else:
            self.breaker = self.breaker.succeeded()

    def apply(self, spec: ReplicaSpec, model: ModelSpec) -> None:
        """Take new settings for the same URL; also when it comes back after it was retired."""
        fresh = self.retired or spec.verify_tls != self.spec.verify_tls
        self.spec, self.model, self.retired = spec, model, False
        if fresh:
            self.upstream.close()
            self.upstream = self._connect()
        self.upstream.connect_s = model.timeouts.connect_s

    def retire(self) -> None:
        """No new calls; those under way finish."""
        self.retired = True
        self.upstream.close()

    def _connect(self) -> Upstream:
        spec, connect_s = self.spec, self.model.timeouts.connect_s
        return Upstream(origin_of(spec.url), self.clock, connect_s=connect_s, verify_tls=spec.verify_tls)

    def status(self) -> ReplicaStatus:
        """For administrators and metrics."""
        return ReplicaStatus(
            name=self.spec.name,
            model=self.model.name,
            url=self.spec.url,
            serves=tuple(sorted(self.spec.serves)),
            up=self.available,
            why_down=self.probe.why if self.probe.up is False else "",
            breaker=self.breaker.state(self.clock.monotonic(), self.model.breaker).value,
            inflight=self.inflight,
            cap=self.spec.cap_max,
            context_tokens=self.context_tokens,
            stats=self.stats,
            idle_connections=self.upstream.idle_connections,
        )


class Permit:
    """One in-flight slot on a replica, given back exactly once: a context manager.

    A ``light`` one counts apart: its call does not touch the GPU. ``on_change`` is called when its replica may have
    room for others. A permit taken while the breaker is half-open is the trial; given back without a word of the
    replica, it leaves that place to another.
    """

    __slots__ = ("_light", "_on_change", "_trial", "released", "replica")

    def __init__(self, replica: Replica, on_change: Callable[[Replica], None], *, light: bool = False) -> None:
        self._trial = replica.breaker.opened_at_s is not None
        replica.inflight += not light
        replica.light += light
        replica.breaker = replica.breaker.started()
        self.replica = replica
        self.released = False
        self._light = light
        self._on_change = on_change

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def answered(self) -> None:
        """The replica begins an answer of its own: the trial is passed now, not after a long stream."""
        if self._trial:
            self.told(failed=False)

    def told(self, *, failed: bool) -> None:
        """The attempt is over: it failed by the replica's own fault, or had its answer."""
        trial, self._trial = self._trial, False
        self.replica.told(failed=failed, trial=trial)
        if trial:
            self._on_change(self.replica)

    def release(self) -> None:
        """Give the slot back; a second time does nothing."""
        if self.released:
            return
        self.released = True
        replica = self.replica
        replica.inflight -= not self._light
        replica.light -= self._light
        if self._trial:
            replica.breaker = replica.breaker.abandoned()
        self._on_change(replica)


class Pool:
    """The replicas that serve one model, in configured order.

    ``retired`` ones finish their calls; should their URL come back, so do they. ``returning`` are such from elsewhere.
    """

    def __init__(self, model: ModelSpec, clock: Clock, returning: Iterable[Replica] = ()) -> None:
        self.clock = clock
        self.replicas: dict[str, Replica] = {}
        self.retired = list(returning)
        self.model = model
        self.apply(model)

    def apply(self, model: ModelSpec) -> None:
        """Take new settings: known URLs keep their permits, health and connections; gone ones are retired."""
        self.model = model
        known = {replica.spec.url: replica for replica in (*self.retired, *self.replicas.values())}
        self.replicas = {}
        for spec in model.replicas:
            replica = known.pop(spec.url, None) or Replica(spec, model, self.clock)
            replica.apply(spec, model)
            self.replicas[spec.name] = replica
        for replica in known.values():
            replica.retire()
        self.retired = [replica for replica in known.values() if replica.inflight or replica.light]

    def views(self) -> list[ReplicaView]:
        """Snapshot of every replica."""
        return [replica.view() for replica in self.replicas.values()]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def close(self) -> None:
        """Retire every replica."""
        for replica in self.replicas.values():
            replica.retire()

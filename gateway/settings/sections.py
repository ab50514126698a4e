"""The sections of the settings file: frozen specs, units in the names, defaults beside them.

Every section compiles to the domain's own values; the names here end in ``Settings`` so that ``domain.ReplicaSpec``
and what the file says about it are never confused.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

from gateway import domain
from gateway.settings.fields import (
    NOT_EMPTY,
    AdminSecret,
    Cap,
    CorsOrigins,
    Count,
    CountOrZero,
    Expiry,
    Flag,
    Host,
    ModelName,
    Name,
    Port,
    PositiveReal,
    ReplicaUrl,
    Seconds,
    SecondsOrZero,
    Secret,
    Sha256,
    Spec,
    UpstreamName,
)

CAP_MIN, CAP_MAX = 48, 96
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ServerSettings(Spec):
    """The gateway's own socket and its bounds."""

    host: Host = "127.0.0.1"
    port: Port = 8080
    workers: Annotated[Count, Field(le=256)] = 1
    body_bytes_max: Count = 33_554_432
    drain_s: SecondsOrZero = 120.0
    keepalive_s: Seconds = 15.0
    header_bytes_max: Annotated[Count, Field(ge=1_024, le=1_048_576)] = 32_768
    header_count_max: Annotated[Count, Field(ge=8, le=10_000)] = 100
    header_read_s: Seconds = 10.0
    body_read_s: Seconds = 30.0
    idle_s: Seconds = 75.0
    metrics_open: Flag = False
    cors_origins: CorsOrigins = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    probe_interval_s: Annotated[Seconds, Field(ge=0.1)] = 2.0
    probe_timeout_s: Annotated[Seconds, Field(ge=0.1)] = 2.0

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the socket."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")


class StateSettings(Spec):
    """Where counters live. ``redis`` is known only so that it can be refused in plain words."""

    kind: Literal["memory", "redis"] = "memory"


class AuthSettings(Spec):
    """Who may call. Without ``admin_key`` the administrator's paths are closed."""

    required: Flag = True
    admin_key: AdminSecret = None


class ConcurrencySettings(Spec):
    """Permits of a replica. ``max`` is hard; ``min`` is the floor of a limit that adapts."""

    min: Cap | None = None
    max: Cap = CAP_MAX

    @property
    def floor(self) -> int:
        """``min``, or the default where the file gives only ``max``."""
        return min(CAP_MIN, self.max) if self.min is None else self.min


class ReplicaSettings(Spec):
    """One vLLM server."""

    name: Name
    url: ReplicaUrl
    serves: Annotated[tuple[domain.CallClass, ...], NOT_EMPTY] = tuple(domain.CallClass)
    concurrency: ConcurrencySettings = ConcurrencySettings()
    api_key: Secret = None
    context_tokens: Count | None = None
    verify_tls: Flag = True

    def compile(self) -> domain.ReplicaSpec:
        """The domain's value."""
        return domain.ReplicaSpec(
            name=self.name,
            url=self.url,
            serves=frozenset(self.serves),
            cap_min=self.concurrency.floor,
            cap_max=self.concurrency.max,
            api_key=self.api_key.get_secret_value() if self.api_key else None,
            context_tokens=self.context_tokens,
            verify_tls=self.verify_tls,
        )


class RoutingSettings(Spec):
    """How a model's calls find a replica."""

    policy: Literal["least_inflight", "round_robin"] = "least_inflight"
    long_tokens: CountOrZero = 16_000
    overflow: Flag = True


class WaitSettings(Spec):
    """Longest wait of each class, in seconds."""

    short: SecondsOrZero = 30.0
    long: SecondsOrZero = 300.0


class QueueSettings(Spec):
    """Bounds of a model's waiting room."""

    depth: Annotated[CountOrZero, Field(le=100_000)] = 256
    wait_s: WaitSettings = WaitSettings()


class TimeoutSettings(Spec):
    """Limits on one attempt at a replica, in seconds; the first byte also gets the time its prefill takes."""

    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 60.0
    prefill_tokens_per_s: PositiveReal = 1_000.0
    idle_s: Seconds = 120.0
    total_s: Seconds = 1_800.0
    write_stall_s: Seconds = 60.0


class RetrySettings(Spec):
    """Attempts on other replicas before a call's first byte, and their share of a model's calls."""

    attempts_max: Annotated[Count, Field(le=16)] = 3
    budget_share: Annotated[PositiveReal, Field(le=1)] = 0.2
    budget_burst: Annotated[PositiveReal, Field(ge=1, le=1_000)] = 10.0


class BreakerSettings(Spec):
    """When a replica that keeps failing is left alone, and for how long."""

    failures: Annotated[Count, Field(le=1_000)] = 5
    open_s: Seconds = 10.0


class ModelSettings(Spec):
    """What clients ask for, and the replicas that serve it."""

    name: ModelName
    aliases: tuple[ModelName, ...] = ()
    upstream_name: UpstreamName | None = None
    replicas: Annotated[tuple[ReplicaSettings, ...], NOT_EMPTY]
    routing: RoutingSettings = RoutingSettings()
    queue: QueueSettings = QueueSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()

    def compile(self) -> domain.ModelSpec:
        """The domain's value."""
        return domain.ModelSpec(
            name=self.name,
            upstream_name=self.upstream_name or self.name,
            aliases=self.aliases,
            replicas=tuple(replica.compile() for replica in self.replicas),
            routing=domain.RoutingSpec(**self.routing.model_dump()),
            queue=domain.QueueSpec(self.queue.depth, self.queue.wait_s.short, self.queue.wait_s.long),
            timeouts=domain.TimeoutSpec(**self.timeouts.model_dump()),
            retry=domain.RetrySpec(**self.retry.model_dump()),
            breaker=domain.BreakerSpec(**self.breaker.model_dump()),
        )


class LimitSettings(Spec):
    """A team's quota: absent is unlimited, 0 suspends."""

    requests_per_minute: CountOrZero | None = None
    tokens_per_minute: CountOrZero | None = None
    tokens_per_day: CountOrZero | None = None
    tokens_per_month: CountOrZero | None = None
    concurrency: CountOrZero | None = None


class KeySettings(Spec):
    """A member's secret, by its hash; ``expires`` is the last moment it works."""

    id: Name
    sha256: Sha256
    expires: Expiry | None = None

    def compile(self, team: domain.Team) -> domain.Key:
        """The domain's value, a key of ``team``."""
        expires_at_s = (self.expires - _EPOCH).total_seconds() if self.expires else None
        return domain.Key(self.id, team, self.sha256, expires_at_s)


class TeamSettings(Spec):
    """Who is charged and limited."""

    name: Name
    weight: Annotated[PositiveReal, Field(le=1_000)] = 1.0
    priority: domain.Priority = domain.Priority.STANDARD
    models: tuple[ModelName, ...] | None = None
    limits: LimitSettings = LimitSettings()
    keys: tuple[KeySettings, ...] = ()

    def compile(self) -> domain.Team:
        """The domain's value."""
        models = None if self.models is None else frozenset(self.models)
        limits = domain.Limits(**self.limits.model_dump())
        return domain.Team(self.name, self.weight, self.priority, models, limits)


class Sections(Spec):
    """The whole file."""

    server: ServerSettings = ServerSettings()
    state: StateSettings = StateSettings()
    auth: AuthSettings = AuthSettings()
    models: Annotated[tuple[ModelSettings, ...], NOT_EMPTY]
    teams: tuple[TeamSettings, ...] = ()

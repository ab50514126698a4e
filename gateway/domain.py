"""Values that every layer shares: immutable, with units in their names and no behaviour that does I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class CallClass(StrEnum):
    """What prefill work a call would cause: decides which replicas are native to it and how long it may wait."""

    SHORT = "short"
    LONG = "long"


class Priority(StrEnum):
    """A team's place in the queue."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class Endpoint(StrEnum):
    """Model endpoints vLLM serves (closed set; a metric and log label)."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    SCORE = "score"
    RERANK = "rerank"
    POOLING = "pooling"
    CLASSIFY = "classify"
    TRANSCRIPTIONS = "transcriptions"
    TRANSLATIONS = "translations"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


class Outcome(StrEnum):
    """How an exchange ended."""

    OK = "ok"
    REFUSED = "refused"  # by the gateway: key, body, model, size, limits
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_REPLICA = "no_replica"
    DRAINING = "draining"
    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    UPSTREAM_REJECTED = "upstream_rejected"  # 4xx from the replica, passed on
    UPSTREAM_ERROR = "upstream_error"  # refused, broken, 5xx
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_CUT = "upstream_cut"  # died after its first byte
    INTERNAL = "internal_error"


class RouteReason(StrEnum):
    """Why a replica was chosen (``x-gateway-route``, ``gateway_routes_total``)."""

    LEAST_INFLIGHT = "least_inflight"
    ROUND_ROBIN = "round_robin"
    LONG = "long"
    OVERFLOW = "overflow"
    ONLY_FIT = "only_fit"


class Usage(NamedTuple):
    """Tokens spent, as the engine reports them. ``cached`` is the part of ``prompt`` found in the prefix cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


class TextSize(NamedTuple):
    """What a prompt weighs before anyone tokenised it.

    ``narrow`` are ASCII characters, ``wide`` all others (a Chinese character is about one token, an English one a
    quarter), ``messages`` the turns and tool definitions, each of which the chat template wraps in a few tokens.
    ``tokens`` are prompt tokens the client already counted (a prompt given as token ids). Of the narrow ones ``digits``
    are digits (many tokenizers spend a token on each), of the wide ones ``three_byte`` take three or more bytes in
    UTF-8 (Chinese, Japanese, Korean; a Cyrillic or accented letter takes two, and about half as many tokens).
    """

    narrow: int = 0
    wide: int = 0
    messages: int = 0
    images: int = 0
    tokens: int = 0
    digits: int = 0
    three_byte: int = 0


class Estimate(NamedTuple):
    """Tokens expected of a prompt, with the bounds that nearly all prompts of this kind keep to."""

    prompt: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Limits:
    """A team's or key's quota; ``None`` is unlimited, 0 is suspended."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    concurrency: int | None = None

    @property
    def suspended(self) -> bool:
        """Whether any limit is 0, so that nothing may run."""
        return 0 in (
            self.requests_per_minute,
            self.tokens_per_minute,
            self.tokens_per_day,
            self.tokens_per_month,
            self.concurrency,
        )


@dataclass(frozen=True, slots=True)
class Team:
    """Who is charged and limited. ``models`` ``None`` means all."""

    name: str
    weight: float = 1.0
    priority: Priority = Priority.STANDARD
    models: frozenset[str] | None = None
    limits: Limits = field(default_factory=Limits)

    def may_use(self, model: str) -> bool:
        """Whether the team may call ``model`` (its own name, not an alias)."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Key:
    """A member's secret, known only by its SHA-256 (hex). ``expires_at_s`` is Unix time."""

    id: str
    team: Team
    sha256: str
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One vLLM server as configured."""

    name: str
    url: str
    serves: frozenset[CallClass]
    cap_min: int
    cap_max: int
    api_key: str | None = field(default=None, repr=False)  # a secret
    context_tokens: int | None = None  # overrides what the probe finds
    verify_tls: bool = True


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """How a model's calls find a replica."""

    policy: str = "least_inflight"
    long_tokens: int = 16_000
    overflow: bool = True


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """Bounds of a model's waiting room: places, and seconds a call of each class may wait."""

    depth: int = 256
    wait_short_s: float = 30.0
    wait_long_s: float = 300.0

    def wait_s(self, call_class: CallClass) -> float:
        """Longest wait of ``call_class``, in seconds."""
        return self.wait_short_s if call_class is CallClass.SHORT else self.wait_long_s


@dataclass(frozen=True, slots=True)
class TimeoutSpec:
    """Limits on one attempt, in seconds.

    The first byte may take ``first_byte_s`` plus the predicted prefill (prompt tokens over
    ``prefill_tokens_per_s``): 100 s are normal for a 240K prompt.
    """

    connect_s: float = 5.0
    first_byte_s: float = 60.0
    prefill_tokens_per_s: float = 1_000.0
    idle_s: float = 120.0
    total_s: float = 1_800.0
    write_stall_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """How often a call may try another replica before its first byte.

    ``attempts_max`` counts the first attempt. Over all calls of a model retries are at most ``budget_share`` of the
    calls, with ``budget_burst`` saved up, so that a failing fleet is not hit harder than a healthy one.
    """

    attempts_max: int = 3
    budget_share: float = 0.2
    budget_burst: float = 10.0


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """When a replica that fails is left alone: after ``failures`` in a row, for ``open_s`` seconds."""

    failures: int = 5
    open_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model and the replicas that serve it (its pool)."""

    name: str
    upstream_name: str
    aliases: tuple[str, ...]
    replicas: tuple[ReplicaSpec, ...]
    routing: RoutingSpec = field(default_factory=RoutingSpec)
    queue: QueueSpec = field(default_factory=QueueSpec)
    timeouts: TimeoutSpec = field(default_factory=TimeoutSpec)
    retry: RetrySpec = field(default_factory=RetrySpec)
    breaker: BreakerSpec = field(default_factory=BreakerSpec)


@dataclass(frozen=True, slots=True)
class ServingSpec:
    """Bounds of the front door and of what the data path does on its own, in bytes and seconds."""

    body_bytes_max: int = 33_554_432
    header_bytes_max: int = 32_768
    header_count_max: int = 100
    header_read_s: float = 10.0
    body_read_s: float = 30.0
    idle_s: float = 75.0
    keepalive_s: float = 15.0
    drain_s: float = 120.0
    probe_interval_s: float = 2.0
    probe_timeout_s: float = 2.0
    cors_origins: tuple[str, ...] = ()


class ReplicaView(NamedTuple):
    """A replica as a policy sees it at one moment."""

    name: str
    serves: frozenset[CallClass]
    available: bool  # probed up, breaker lets calls through, not draining
    inflight: int
    cap: int
    context_tokens: int | None  # max_model_len; None while unknown

    @property
    def free(self) -> int:
        """Permits left."""
        return self.cap - self.inflight


class Need(NamedTuple):
    """What routing must know of a call. ``completion_tokens`` is the client's own bound, 0 where it set none."""

    call_class: CallClass
    prompt: Estimate
    completion_tokens: int
    nonce: int
    excluded: frozenset[str] = frozenset()  # replicas already tried

    def without(self, replica: str) -> Need:
        """The same need after ``replica`` was tried."""
        return self._replace(excluded=self.excluded | {replica})


class Choice(NamedTuple):
    """The replica a policy chose, and why."""

    replica: str
    reason: RouteReason


class Verdict(StrEnum):
    """Why no replica was chosen: ``BUSY`` may pass by waiting, ``DOWN`` perhaps, ``NEVER`` will not."""

    BUSY = "busy"
    DOWN = "down"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What a replica's ``/metrics`` say, summed over its engines (tokens, requests, shares of 1)."""

    engines: int = 1
    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    kv_capacity_tokens: int | None = None
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    preemptions: float = 0.0

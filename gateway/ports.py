"""The seams between layers: what the data path needs of others, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.domain import CallClass, Endpoint, EngineStats, Key, Outcome, RouteReason, Usage
from gateway.wire.headers import Headers


class Downlink(Protocol):
    """The way back to the client. All calls are synchronous and never block; ``start`` comes first, once.

    ``start`` may keep the head until something follows, which it does in the same step or soon after.

    ``write`` returns ``False`` when the client is behind: the exchange then stops reading upstream until
    ``DownlinkEvents.writable`` is called. ``finish`` ends the body cleanly; ``abort`` cuts it so the client can tell.
    """

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Send the head. ``length`` is the body's, ``None`` streams it."""
        ...

    def write(self, data: bytes) -> bool:
        """Send body bytes; ``False`` asks for a pause."""
        ...

    def finish(self) -> None:
        """End the body as promised by ``start``."""
        ...

    def abort(self) -> None:
        """Cut the connection after what was written, without a clean end of the body."""
        ...


class DownlinkEvents(Protocol):
    """What a downlink tells its exchange."""

    def writable(self) -> None:
        """The client has caught up."""
        ...

    def client_gone(self) -> None:
        """The client closed the connection: nobody reads any more."""
        ...


class CallRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What happened to one call: one for each, whatever its ending. Times in seconds, ``at`` is Unix time.

    ``completed`` says the answer reached its own end, ``estimated`` that the tokens were counted by the gateway
    because the engine reported none. ``ttft_s`` ends at the first token (not the role chunk), ``overhead_s`` is
    what the gateway itself took between the whole request and its dispatch, waiting excluded.
    """

    at: float
    request_id: str
    team: str
    key: str
    model: str
    endpoint: Endpoint | None
    call_class: CallClass | None
    replica: str
    route: RouteReason | None
    attempts: int
    outcome: Outcome
    status: int
    reason: str
    finish_reason: str
    stream: bool
    usage: Usage
    estimated_prompt: int
    estimated: bool
    completed: bool
    has_content: bool
    queue_s: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    overhead_s: float
    request_bytes: int


class RecordSink(Protocol):
    """Takes a record of each call. Never blocks, never raises."""

    def write(self, record: CallRecord) -> None:
        """Keep, count or log ``record``."""
        ...


class Directory(Protocol):
    """Who may enter."""

    def find(self, secret: str | None, now_s: float) -> Key | None:
        """The key whose secret this is, ``None`` if there is none or it has expired (``now_s``: Unix time)."""
        ...


class Events(Protocol):
    """Counts of what is no call's ending. Never blocks, never raises."""

    def retried(self, reason: str) -> None:
        """An attempt failed before its first byte and goes to another replica."""
        ...

    def rejected(self, reason: str) -> None:
        """A connection or request was turned away before it became a call."""
        ...

    def lagged(self, seconds: float) -> None:
        """The event loop came back this much later than asked."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica as shown to administrators and metrics."""

    name: str
    model: str
    url: str
    serves: tuple[CallClass, ...]
    up: bool
    why_down: str
    breaker: str  # closed | open | half_open
    inflight: int
    cap: int
    context_tokens: int | None
    stats: EngineStats | None
    idle_connections: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A model's waiting room."""

    model: str
    depth: int
    waiting: dict[CallClass, int]


class Fleet(Protocol):
    """What control and metrics may ask of the data path."""

    @property
    def ready(self) -> bool:
        """Whether calls are taken: not draining, and each model could be probed or tried."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the gateway is shutting down."""
        ...

    def replicas(self) -> Iterable[ReplicaStatus]:
        """Every replica, in configured order."""
        ...

    def queues(self) -> Iterable[QueueStatus]:
        """Every model's waiting room."""
        ...

    def models_for(self, key: Key) -> list[tuple[str, int | None]]:
        """Names (aliases too) the key may ask for, with the largest context in tokens behind each."""
        ...

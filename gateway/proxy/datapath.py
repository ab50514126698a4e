"""The data path as a whole: what lives as long as the gateway, and the way in for each request.

``open`` makes an ``Exchange`` for a request that is a model call, or says that it is none of ours. One coarse sweep
looks after every deadline, idle connection and freed breaker: a timer per stream would cost more than the streams.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from gateway.clock import Clock
from gateway.domain import Key, ModelSpec, ServingSpec
from gateway.errors import (
    Draining,
    GatewayError,
    InvalidKey,
    InvalidRequest,
    ModelNotFound,
    RequestTooLarge,
    Suspended,
)
from gateway.ports import Directory, Downlink, Events, QueueStatus, RecordSink, ReplicaStatus
from gateway.proxy.exchange import Exchange
from gateway.proxy.model import Model
from gateway.proxy.pacer import Pacer
from gateway.proxy.pool import Replica
from gateway.proxy.request import Request
from gateway.proxy.stored import StoredResponses
from gateway.proxy.tasks import Tasks, going_on
from gateway.wire.endpoints import route_of
from gateway.wire.headers import Headers, credentials, request_id

logger = logging.getLogger(__name__)

SWEEP_S = 0.25
GOLDEN = 0x9E3779B97F4A7C15  # odd, so that successive nonces visit every residue evenly (Knuth, TAOCP 6.4)
EXPOSED = b"x-request-id, x-gateway-replica, x-gateway-route, x-gateway-queue-ms, x-gateway-reason, retry-after"


class Connection(Protocol):
    """A client connection, as far as the sweep knows it."""

    def tick(self, now: float) -> None:
        """Look at its deadlines."""
        ...


class DataPath:
    """Models, keys and exchanges of one worker. ``seed`` starts the sequence of nonces and request ids."""

    def __init__(
        self,
        models: tuple[ModelSpec, ...],
        serving: ServingSpec,
        directory: Directory,
        *,
        clock: Clock,
        records: RecordSink,
        events: Events,
        seed: int,
    ) -> None:
        self.clock = clock
        self.records = records
        self.events = events
        self.tasks = Tasks()
        self.pacer = Pacer()
        self.exchanges: set[Exchange] = set()
        self.stored = StoredResponses()
        self.models: dict[str, Model] = {}
        self.fronts: set[Connection] = set()
        self.serving = serving
        self._directory = directory
        self._draining = False
        self._left: list[Replica] = []  # of models that are gone, with calls under way
        self._names: dict[str, Model] = {}
        self._serial = count(seed)
        self.apply(models, serving)

    # -- settings --------------------------------------------------------------------------------------------------

    def apply(self, models: tuple[ModelSpec, ...], serving: ServingSpec) -> None:
        """Take settings, all at once: calls under way go on with what they have."""
        before, self.models = self.models, {}
        for name in before.keys() - {spec.name for spec in models}:
            gone = before[name]
            gone.close(_no_model(name))
            self._left += (*gone.pool, *gone.pool.retired)
        self._left = [replica for replica in self._left if replica.inflight or replica.light]
        for spec in models:
            model = before.get(spec.name)
            if model is None:
                model = Model(spec, self.clock, self._returning(spec))
            else:
                model.apply(spec)
            self.models[spec.name] = model
        self._names = {name: m for m in self.models.values() for name in (m.spec.name, *m.spec.aliases)}
        self.serving = serving

    def _returning(self, spec: ModelSpec) -> list[Replica]:
        """Replicas of a new model that still finish calls of one that is gone: a renamed model keeps its caps."""
        urls = {replica.url for replica in spec.replicas}
        found = [replica for replica in self._left if replica.spec.url in urls]
        self._left = [replica for replica in self._left if replica.spec.url not in urls]
        return found

    # -- requests --------------------------------------------------------------------------------------------------

    def open(self, request: Request, downlink: Downlink) -> Exchange | None:
        """The exchange for ``request``, refused already or waiting for its body; ``None`` if it is no model call."""
        route = route_of(request.method, request.path)
        if route is None:
            return None
        nonce = (next(self._serial) * GOLDEN) & 0xFFFFFFFFFFFFFFFF
        name = request_id(request.header(b"x-request-id"), f"{nonce:016x}")
        return Exchange(self, request, route, downlink, name, nonce, self._admit(request))

    def _admit(self, request: Request) -> Key | GatewayError:
        """What the head alone decides."""
        key = self._directory.find(credentials(request.headers), self.clock.wall())
        if key is None:
            return InvalidKey("No valid API key. Send yours as 'Authorization: Bearer …', 'x-api-key' or 'api-key'.")
        if self._draining:
            return Draining("The gateway is shutting down; another one will answer.", retry_after_s=5.0)
        if key.team.limits.suspended:
            return Suspended(f"Team '{key.team.name}' is suspended (a limit of 0); ask your administrator.")
        length = request.header(b"content-length")
        if length is not None and int(length) > self.serving.body_bytes_max:
            return self.too_large()
        return key

    def too_large(self) -> GatewayError:
        """The refusal of a body over the limit."""
        return RequestTooLarge(f"The body is larger than {self.serving.body_bytes_max:,} bytes.")

    def resolve(self, name: str | None, key: Key) -> Model:
        """The model a call names (by its name or an alias).

        Raises:
            InvalidRequest: it names none, and there are several.
            ModelNotFound: unknown, or not allowed to the key's team.
        """
        if name is None:
            allowed = [model for model in self.models.values() if key.team.may_use(model.spec.name)]
            if len(allowed) == 1:
                return allowed[0]
            raise InvalidRequest("The request names no 'model'.", param="model")
        model = self._names.get(name)
        if model is None or not key.team.may_use(model.spec.name):
            raise _no_model(name)
        return model

    def cors_headers(self, request: Request) -> Headers:
        """What a browser page of an allowed origin needs to read the answer."""
        origins = self.serving.cors_origins
        if not origins:
            return []
        origin = request.header(b"origin")
        if origin is None or ("*" not in origins and origin.decode("latin-1") not in origins):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"origin"),
        ]

    # -- life ------------------------------------------------------------------------------------------------------

    async def run_sweep(self) -> None:
        """Look after deadlines until cancelled, and measure how late the loop lets us."""
        while True:
            before = self.clock.monotonic()
            await self.clock.sleep(SWEEP_S)
            now = self.clock.monotonic()
            self.events.lagged(max(0.0, now - before - SWEEP_S))
            with going_on("a sweep"):
                self.sweep(now)

    def sweep(self, now: float) -> None:
        """One round of looking after what time alone changes."""
        for exchange in tuple(self.exchanges):
            exchange.tick(now)
        for model in self.models.values():
            model.sweep(now)
        for front in tuple(self.fronts):
            front.tick(now)

    async def drain(self) -> None:
        """Refuse new calls, let those under way finish within ``drain_s``, then cut what is left."""
        self._draining = True
        deadline = self.clock.monotonic() + self.serving.drain_s
        while self.exchanges and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.05)
        await self._cut()

    async def close(self) -> None:
        """End every call, task and connection."""
        await self._cut()
        for model in self.models.values():
            model.close(Draining("The gateway is shutting down; another one will answer.", retry_after_s=5.0))
        await self.tasks.close()

    async def _cut(self) -> None:
        """End the calls under way, and give them a second to take their leave."""
        for exchange in tuple(self.exchanges):
            exchange.kill(Draining("The gateway shut down before the answer was complete."))
        deadline = self.clock.monotonic() + 1.0
        while self.exchanges and self.clock.monotonic() < deadline:
            await self.clock.sleep(0.05)

    # -- Fleet -----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether calls are taken: not draining, and some replica of every model may be tried."""
        return not self._draining and all(any(r.available for r in m.pool) for m in self.models.values())

    @property
    def draining(self) -> bool:
        """Whether the gateway is shutting down."""
        return self._draining

    def replicas(self) -> Iterator[ReplicaStatus]:
        """Every replica, in configured order."""
        for model in self.models.values():
            for replica in model.pool:
                yield replica.status()

    def queues(self) -> Iterator[QueueStatus]:
        """Every model's waiting room."""
        for model in self.models.values():
            yield QueueStatus(model.spec.name, model.spec.queue.depth, model.gate.waiting())

    def models_for(self, key: Key) -> list[tuple[str, int | None]]:
        """Names the key may ask for, with the largest context in tokens behind each."""
        return [
            (name, model.context_tokens) for name, model in self._names.items() if key.team.may_use(model.spec.name)
        ]


def _no_model(name: str) -> ModelNotFound:
    return ModelNotFound(f"The model '{name[:200]}' does not exist or is not available to you.", param="model")

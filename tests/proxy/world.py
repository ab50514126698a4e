"""The real data path over scripted replicas in simulated time; after every test nothing may be left of any call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from gateway.clock import LoopClock
from gateway.domain import CallClass, Key, ModelSpec, ReplicaSpec, ServingSpec, Team
from gateway.policy.keys import KeyTable
from gateway.ports import CallRecord
from gateway.proxy.datapath import DataPath
from gateway.proxy.exchange import Exchange
from gateway.proxy.pool import Replica
from gateway.proxy.request import Request
from gateway.testing.downlink import FakeDownlink
from gateway.testing.loop import VirtualLoop
from gateway.testing.network import FakeServer, Script
from gateway.testing.sinks import FakeEvents, FakeRecords

T = TypeVar("T")

SECRET = "sk-alice"
BOTH = frozenset(CallClass)
CHAT = b"/v1/chat/completions"


def replica_spec(name: str, cap: int = 2, **changes: Any) -> ReplicaSpec:
    return ReplicaSpec(
        **({"name": name, "url": f"http://{name}:8000", "serves": BOTH, "cap_min": cap, "cap_max": cap} | changes)
    )


def model_spec(*replicas: ReplicaSpec, name: str = "qwen", **changes: Any) -> ModelSpec:
    return ModelSpec(**({"name": name, "upstream_name": name, "aliases": (), "replicas": replicas} | changes))


class Client:
    """One call and everything the client sees of it."""

    def __init__(self, exchange: Exchange, downlink: FakeDownlink) -> None:
        self.exchange = exchange
        self.downlink = downlink

    def leaves(self) -> None:
        self.exchange.client_gone()

    def json(self) -> Any:
        return msgspec.json.decode(self.downlink.body)


class World:
    """A gateway's data path, the replicas behind it, and the records it left."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = LoopClock(loop)
        self.records = FakeRecords()
        self.events = FakeEvents()
        self.servers: dict[str, FakeServer] = {}
        self.keys = KeyTable([Key("alice", Team("chat"), sha256(SECRET.encode()).hexdigest())])
        self.path: DataPath
        self._sweep: asyncio.Task[None] | None = None

    def serve(self, name: str, script: Script) -> FakeServer:
        """A replica that does what ``script`` says."""
        self.servers[name] = FakeServer(self.loop, name, script)
        return self.servers[name]

    def open(self, *models: ModelSpec, serving: ServingSpec | None = None) -> DataPath:
        """The data path under test, its sweep running."""
        self.path = DataPath(
            models,
            serving or ServingSpec(),
            self.keys,
            clock=self.clock,
            records=self.records,
            events=self.events,
            seed=1,
        )
        self._sweep = self.loop.create_task(self.path.run_sweep())
        return self.path

    def call(self, **fields: Any) -> Client:
        """Send one call and let it take its first step."""

        async def send() -> Client:
            return self.send(**fields)

        return self.run(send())

    def send(
        self,
        *,
        secret: str | None = SECRET,
        method: bytes = b"POST",
        path: bytes = CHAT,
        model: str | None = "qwen",
        raw: bytes | None = None,
        headers: Any = (),
        **fields: Any,
    ) -> Client:
        """Send one call, within the loop: its exchange has not yet taken a step."""
        if raw is None:
            members = {"messages": [{"role": "user", "content": "Hello"}]} | fields
            raw = msgspec.json.encode(members if model is None else {"model": model} | members)
        head = [(b"host", b"gateway"), (b"content-type", b"application/json"), *headers]
        if secret is not None:
            head.append((b"authorization", b"Bearer " + secret.encode()))
        downlink = FakeDownlink()
        exchange = self.path.open(Request(method, path, path, head, "192.0.2.1", self.loop.time()), downlink)
        assert exchange is not None
        exchange.start(raw)
        return Client(exchange, downlink)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        """Let time pass, and whatever happens meanwhile."""
        self.run(asyncio.sleep(seconds))

    def until(self, happened: Callable[[], object], within_s: float = 60.0) -> None:
        """Let time pass until something has happened."""
        limit_s = self.loop.time() + within_s
        while not happened():
            assert self.loop.time() < limit_s, "it never happened"
            self.advance(0.01)

    def finish(self, *clients: Client) -> list[CallRecord]:
        """The records of ``clients``, once their calls are over."""

        async def wait() -> None:
            await asyncio.gather(
                *(client.exchange.task for client in clients if client.exchange.task), return_exceptions=True
            )
            await asyncio.sleep(0)

        self.run(wait())
        return [self.record_of(client) for client in clients]

    def record_of(self, client: Client) -> CallRecord:
        """The one record of a call."""
        (record,) = [r for r in self.records.kept if r.request_id == client.exchange.request_id]
        return record

    def replicas(self) -> list[Replica]:
        return [r for m in self.path.models.values() for r in (*m.pool, *m.pool.retired)]

    def assert_nothing_left(self) -> None:
        """No permit, waiter, exchange, task or busy connection outlives the calls."""
        assert self.path.exchanges == set()
        assert len(self.path.tasks) == 0
        for model in self.path.models.values():
            assert model.gate.depth == 0
        for replica in self.replicas():
            assert (replica.spec.name, replica.inflight, replica.light) == (replica.spec.name, 0, 0)
            assert replica.upstream.open_connections == replica.upstream.idle_connections
            assert not replica.breaker.trying, "a half-open place is still taken"
        idle = sum(replica.upstream.idle_connections for replica in self.replicas())
        assert sum(server.open_connections for server in self.servers.values()) == idle
        for record in self.records.kept:
            times = (record.queue_s, record.e2e_s, record.overhead_s, record.ttft_s or 0.0, record.tpot_s or 0.0)
            assert min(times) >= 0.0, record

    def close(self) -> None:
        if self._sweep is not None:
            self.advance(0.5)
            self.assert_nothing_left()
            self._sweep.cancel()
            self.run(self.path.close())
        for server in self.servers.values():
            server.close()
        self.run(asyncio.sleep(0))
        assert asyncio.all_tasks(self.loop) == set()
        self._sweep = None


def fleet(world: World, *scripts: Script, cap: int = 2, **changes: Any) -> None:
    """Replicas r0, r1 … that do what ``scripts`` say."""
    for i, script in enumerate(scripts):
        world.serve(f"r{i}", script)
    world.open(model_spec(*(replica_spec(f"r{i}", cap) for i in range(len(scripts))), **changes))

"""The control application over fakes of its ports, spoken to without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from gateway.clock import ManualClock
from gateway.control.app import create_control
from gateway.domain import Key, Limits, Team
from gateway.policy.keys import KeyTable
from gateway.telemetry.metrics import Metrics
from gateway.testing.fleet import FakeFleet, replica_status

ADMIN, ALICE, BOB = "admin-secret", "sk-alice-secret", "sk-bob-secret"
CHAT_TEAM = Team("chat", models=frozenset({"qwen", "default"}), limits=Limits(requests_per_minute=60))


@dataclass
class FakePacer:
    """Notes whom it held; ``answer`` is what ``hold`` returns."""

    answer: bool = True
    held: list[str] = field(default_factory=list)

    async def hold(self, address: str) -> bool:
        self.held.append(address)
        return self.answer


@dataclass
class Control:
    """A control application, the fakes behind it, and a client."""

    fleet: FakeFleet
    pacer: FakePacer
    app: ASGIApp

    def send(self, method: str, path: str, key: str | None = None, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        return asyncio.run(self._send(method, path, sent))

    def get(self, path: str, key: str | None = None, **headers: str) -> httpx.Response:
        return self.send("GET", path, key, **headers)

    async def _send(self, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.request(method, path, headers=headers)


def key(name: str, secret: str, team: Team) -> Key:
    return Key(name, team, sha256(secret.encode()).hexdigest())


@pytest.fixture
def make() -> Callable[..., Control]:
    """Build a ``Control``; keywords go to ``create_control``."""

    def build(**changes: Any) -> Control:
        fleet = FakeFleet(
            replica_list=[replica_status("dp0"), replica_status("tp2", inflight=3)],
            model_list=[("qwen", 32_768), ("default", 32_768), ("Qwen/Qwen3-8B", None)],
        )
        pacer = FakePacer()
        metrics = Metrics(["qwen"], ["chat"])
        metrics.watch(fleet)
        arguments: dict[str, Any] = {
            "directory": KeyTable([key("alice", ALICE, CHAT_TEAM), key("bob", BOB, Team("all"))]),
            "metrics_page": metrics.page,
            "clock": ManualClock(1_700_000_000.0),
            "version": "1.2.3",
            "admin_key": ADMIN,
        } | changes
        return Control(fleet, pacer, create_control(fleet=fleet, pacer=pacer, **arguments))

    return build


@pytest.fixture
def control(make: Callable[..., Control]) -> Control:
    return make()

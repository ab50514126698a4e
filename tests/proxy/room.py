"""A waiting room, and calls by name that come to it."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.clock import LoopClock
from gateway.domain import (
    CallClass,
    Estimate,
    ModelSpec,
    Need,
)
from gateway.errors import GatewayError
from gateway.proxy.gate import Gate, Grant
from gateway.proxy.model import Model
from gateway.testing.loop import VirtualLoop

SHORT, LONG = CallClass.SHORT, CallClass.LONG
ONLY_SHORT, ONLY_LONG = frozenset({SHORT}), frozenset({LONG})


class Room:
    """A model's gate, and calls by name that came to it."""

    def __init__(self, loop: VirtualLoop, spec: ModelSpec) -> None:
        self.loop = loop
        self.model = Model(spec, LoopClock(loop))
        self.gate: Gate = self.model.gate
        self.seated: dict[str, Grant] = {}
        self.refused: dict[str, GatewayError] = {}
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.nonce = 0

    def need(self, call_class: CallClass = SHORT, tokens: int = 100, answer: int = 0, **changes: Any) -> Need:
        self.nonce += 1
        return Need(call_class, Estimate(tokens, tokens, tokens), answer, self.nonce, **changes)

    def comes(self, *names: str, call_class: CallClass = SHORT, need: Need | None = None) -> None:
        for name in names:
            self.tasks[name] = self.loop.create_task(self._enter(name, need or self.need(call_class)))
            self.settle()

    async def _enter(self, name: str, need: Need) -> None:
        try:
            self.seated[name] = await self.gate.enter(need, "team")
            self.order.append(name)
        except GatewayError as error:
            self.refused[name] = error

    def settle(self, seconds: float = 0.0) -> None:
        async def turn() -> None:
            await asyncio.sleep(seconds)
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    def ends(self, *names: str) -> None:
        for name in names:
            self.seated.pop(name).permit.release()
        self.settle()

    def leaves(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        self.settle()

    def where(self, name: str) -> str:
        return self.seated[name].choice.replica

    def inflight(self) -> dict[str, int]:
        return {replica.spec.name: replica.inflight for replica in self.model.pool}

    def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.settle()
        for grant in self.seated.values():
            grant.permit.release()
        assert self.gate.depth == 0
        assert set(self.inflight().values()) <= {0}

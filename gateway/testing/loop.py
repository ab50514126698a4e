"""An event loop in simulated time: when nothing is ready, time jumps to the next timer.

A test that waits an hour takes a millisecond, and the same test takes the same steps every time. A program that waits
for something that no timer and no task will ever bring is stopped with ``NothingLeft`` instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

START_S = 1_000.0


class NothingLeft(Exception):
    """What is awaited can never happen."""


class _Jumping(selectors.SelectSelector):
    """Waits by moving time. Real file descriptors are still looked at, without waiting."""

    now_s = START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready already; if nothing is, let ``timeout`` seconds pass."""
        events = super().select(0)
        if not events:
            if timeout is None:
                raise NothingLeft("every task waits and no timer is set")
            self.now_s += max(timeout, 0.0)
        return events


Connect = Callable[[asyncio.Protocol], Awaitable[asyncio.Transport]]


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. ``faults`` holds what would have been logged as an unhandled exception.

    ``create_connection`` reaches the servers in ``hosts`` (by host name) and nothing else; ``testing.network`` has
    such servers.
    """

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self.faults: list[dict[str, Any]] = []
        self.hosts: dict[str, Connect] = {}
        self.set_exception_handler(lambda _, context: self.faults.append(context))

    def time(self) -> float:
        """Simulated seconds."""
        return self._jumping.now_s

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, _port: int, **_options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to ``hosts[host]``. Raises ``ConnectionRefusedError`` where there is none."""
        connect = self.hosts.get(host)
        if connect is None:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = protocol_factory()
        return await connect(protocol), protocol

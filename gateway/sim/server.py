"""A simulated vLLM server: ``async with SimServer(D4, port=9000):`` answers as vLLM does, at the profile's pace."""

from __future__ import annotations

import asyncio
from types import TracebackType

from gateway.clock import Clock, SystemClock
from gateway.sim.driver import Driver
from gateway.sim.faults import Faults
from gateway.sim.http import Connection
from gateway.sim.machine import Machine
from gateway.sim.pages import Pages
from gateway.sim.profiles import Profile
from gateway.sim.service import Service, ServiceSpec
from gateway.sim.visits import Visits

_BACKLOG = 2_048


class SimServer:
    """One simulated vLLM on ``host:port`` (port 0 takes any free one; ``port`` then tells which).

    ``speed`` 2 runs twice as fast as the real thing. ``start`` after ``stop`` is a restart: the cache is empty.
    ``visits``, ``faults`` and ``machine`` are there for tests; the same over HTTP under ``/sim/``.
    """

    def __init__(
        self,
        profile: Profile,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        speed: float = 1.0,
        model: str = "qwen",
        api_key: str | None = None,
        max_num_queued_reqs: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._speed = speed
        self._clock = clock or SystemClock()
        self._spec = ServiceSpec(profile, model, api_key, max_num_queued_reqs)
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._driving: asyncio.Task[None] | None = None
        self._set_up()

    def _set_up(self) -> None:
        self._driver = Driver(Machine(self._spec.profile), self._clock, self._speed)
        self._service = Service(self._spec, self._driver, self._clock)
        self._pages = Pages(self._service, self._clock)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    @property
    def machine(self) -> Machine:
        """The engines and their intake."""
        return self._driver.machine

    @property
    def visits(self) -> Visits:
        """What was seen of clients."""
        return self._service.visits

    @property
    def faults(self) -> Faults:
        """What will go wrong."""
        return self._service.faults

    async def start(self) -> None:
        """Listen. Raises ``OSError`` if the port is taken."""
        self._set_up()
        pages = self._pages
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(pages.serve, self._connections), self.host, self.port, backlog=_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._driving = loop.create_task(self._driver.run())

    async def stop(self) -> None:
        """Close the port and every connection at once, as a killed server would."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.drop()
        if self._driving is not None:
            self._driving.cancel()
            await asyncio.gather(self._driving, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
        self._server = self._driving = None

    async def wait(self) -> None:
        """Return (or raise) when the engine's driver ends: only if it failed, or after ``stop``."""
        if self._driving is not None:
            await asyncio.wait((self._driving,))
            if not self._driving.cancelled():
                self._driving.result()

    async def __aenter__(self) -> SimServer:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.stop()

"""Servers without sockets: what a script says is what a connection sees, in the time of a ``VirtualLoop``.

A script is a coroutine over one connection::

    async def answers(peer: Peer) -> None:
        request = await peer.request()
        await peer.sleep(2.0)
        peer.send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")

The transport follows asyncio's: data and the end come in callbacks of their own, never inside a call; a paused side
is sent nothing, not even the end; after ``close`` or ``abort`` comes one ``connection_lost``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from gateway.clock import LoopClock
from gateway.testing.loop import VirtualLoop


class PeerRequest(NamedTuple):
    """One request as it came over the wire. Header names are lower case."""

    line: bytes
    headers: dict[bytes, bytes]
    body: bytes
    at_s: float


class PeerGone(Exception):
    """The other side closed the connection."""


class FakeTransport(asyncio.Transport):
    """The transport of the code under test. What it writes is read by ``peer``."""

    def __init__(self, protocol: asyncio.Protocol, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.peer = Peer(self, loop)
        self.aborted = False
        self._protocol = protocol
        self._loop = loop
        self._paused = False
        self._closing = False
        self._incoming: deque[bytes | Exception | None] = deque()
        loop.call_soon(protocol.connection_made, self)

    # -- asyncio.Transport -----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand ``data`` to the peer."""
        if not self._closing:
            self.peer.took(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Hand all of it to the peer."""
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        """Keep what comes from the peer."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver what was kept."""
        self._paused = False
        self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        """Whether data is delivered."""
        return not self._paused and not self._closing

    def is_closing(self) -> bool:
        """Whether it was closed from either side."""
        return self._closing

    def close(self) -> None:
        """End the connection."""
        self._lose(None)

    def abort(self) -> None:
        """End the connection at once."""
        self.aborted = True
        self._lose(None)

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        """``default``: there is no socket."""
        return default

    # -- the peer's side -------------------------------------------------------------------------------------------

    def arrive(self, what: bytes | Exception | None) -> None:
        """Deliver data, a clean end (``None``) or an error, when the code under test reads."""
        self._incoming.append(what)
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._incoming and self.is_reading():
            what = self._incoming.popleft()
            if isinstance(what, bytes):
                self._protocol.data_received(what)
            elif what is not None or not self._protocol.eof_received():
                self._lose(what)

    def _lose(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._incoming.clear()
        self.peer.lost()
        self._loop.call_soon(self._protocol.connection_lost, error)


class Peer:
    """The scripted side of one connection."""

    def __init__(self, transport: FakeTransport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = transport
        self.gone_at_s: float | None = None  # when the other side closed
        self._loop = loop
        self._clock = LoopClock(loop)
        self._received = bytearray()
        self._woken: asyncio.Future[None] | None = None

    @property
    def reading(self) -> bool:
        """Whether the other side reads."""
        return self.transport.is_reading()

    async def request(self) -> PeerRequest:
        """The next whole request. Raises ``PeerGone`` if the other side closes first."""
        while (found := self._parse()) is None:
            await self._wait()
        return found

    def send(self, *data: bytes) -> None:
        """Send each piece as one read of its own."""
        for piece in data:
            self.transport.arrive(piece)

    def close(self, error: Exception | None = None) -> None:
        """Close after what was sent; ``error`` as the other side sees it (a reset)."""
        self.transport.arrive(error)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await self._clock.sleep(seconds)

    async def closed(self) -> None:
        """Return when the other side has closed."""
        while self.gone_at_s is None:
            try:
                await self._wait()
            except PeerGone:
                return

    def took(self, data: bytes) -> None:
        """Bytes from the other side."""
        self._received += data
        self._wake()

    def lost(self) -> None:
        """The connection is over."""
        self.gone_at_s = self._loop.time()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _wait(self) -> None:
        if self.gone_at_s is not None:
            raise PeerGone
        self._woken = self._loop.create_future()
        await self._woken

    def _parse(self) -> PeerRequest | None:
        head, blank, rest = bytes(self._received).partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = {name.lower(): value for name, _, value in (item.partition(b": ") for item in lines)}
        length = int(headers.get(b"content-length", b"0"))
        if not blank or len(rest) < length:
            return None
        del self._received[: len(head) + len(blank) + length]
        return PeerRequest(line, headers, rest[:length], self._loop.time())


Script = Callable[[Peer], Awaitable[None]]


class FakeServer:
    """A server that runs its script for every connection made to ``host``.

    ``script`` may be replaced at any time; ``peers`` holds every connection so far. ``refuses`` fails connections with
    that error, ``connect_s`` is how long making one takes.
    """

    def __init__(self, loop: VirtualLoop, host: str, script: Script) -> None:
        self.script = script
        self.refuses: OSError | None = None
        self.connect_s = 0.0
        self.peers: list[Peer] = []
        self._loop = loop
        self._clock = LoopClock(loop)
        self._running: set[asyncio.Task[None]] = set()
        loop.hosts[host] = self.connect

    @property
    def open_connections(self) -> int:
        """Connections that neither side has closed."""
        return sum(peer.gone_at_s is None for peer in self.peers)

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A connection to this server. Raises ``refuses``."""
        if self.connect_s:
            await self._clock.sleep(self.connect_s)
        if self.refuses is not None:
            raise self.refuses
        transport = FakeTransport(protocol, self._loop)
        self.peers.append(transport.peer)
        task = self._loop.create_task(self._run(transport.peer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await self._clock.sleep(0)  # the protocol knows its transport before anybody else does
        except BaseException:
            transport.close()
            raise
        return transport

    def close(self) -> None:
        """End every script."""
        for task in self._running:
            task.cancel()

    async def _run(self, peer: Peer) -> None:
        try:
            await self.script(peer)
        except PeerGone:
            return

"""An upstream over one scripted server, and the framings it is told."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.clock import LoopClock
from gateway.proxy.connection import (
    Response,
    UpstreamFault,
)
from gateway.proxy.upstream import Upstream, origin_of
from gateway.testing.loop import VirtualLoop
from gateway.testing.network import FakeServer, Peer

REQUEST = (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n", b"{}")


class Body:
    """A ``BodyReceiver`` that keeps what it gets."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.ended = asyncio.get_event_loop().create_future()

    def on_data(self, data: bytes) -> None:
        assert not self.ended.done(), "bytes after the end"
        self.data += data
        self.pieces += 1

    def on_end(self) -> None:
        self.ended.set_result(self.data)

    def on_lost(self, fault: UpstreamFault) -> None:
        self.ended.set_exception(fault)


class Wire:
    """An ``Upstream`` and the server it talks to, which answers each connection with the next of ``scripts``."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.server = FakeServer(loop, "gpu", self._script)
        self.upstream = Upstream(origin_of("http://gpu:8000"), LoopClock(loop), connect_s=5.0)
        self.scripts: list[Any] = []
        self.requests = 0

    def says(self, *scripts: Any) -> None:
        """Each connection sends these: a list of bytes for each request, then what ``None`` or an error stand for."""
        self.scripts += scripts

    async def _script(self, peer: Peer) -> None:
        for reply in self.scripts.pop(0):
            if reply is None or isinstance(reply, Exception):
                peer.close(reply)
                return
            if isinstance(reply, float):
                await peer.sleep(reply)
                continue
            await peer.request()
            self.requests += 1
            peer.send(*((reply,) if isinstance(reply, bytes) else reply))
        await peer.closed()

    async def fetch(self) -> tuple[Response, bytes]:
        response = await self.upstream.send(REQUEST)
        body = Body()
        response.attach(body)
        try:
            return response, await body.ended
        finally:
            response.abort()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def get(self) -> tuple[int, bytes]:
        response, body = self.run(self.fetch())
        return response.status, body


LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
TRAILERS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + LENGTH

"""HTTP/1.1 for the simulator: one ``asyncio.Protocol`` a connection, answers written without a task.

A small server of its own rather than an ASGI one, because a stand-in for vLLM must also misbehave on purpose: close
before the headers, cut a body, fall silent. Like vLLM (uvicorn) it closes idle keep-alive connections after 5 s and
notices at once when a client leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

IDLE_S = 5.0
BODY_BYTES_MAX = 64 << 20
PIPELINE_MAX = 64


class HttpRequest(NamedTuple):
    """A request; header names in lower case, repeated ones joined by a comma. ``peer`` is the client's address."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: str
    keep_alive: bool


class Reply:
    """The answer to one request: sent whole, or started, written and ended; or broken off.

    ``on_over`` is called exactly once: with False when the last byte was written, with True when the client left or
    the answer was broken off before.
    """

    def __init__(self, connection: Connection, head_only: bool, keep_alive: bool) -> None:
        self._connection = connection
        self._head_only = head_only
        self._keep_alive = keep_alive
        self.started = False
        self.over = False
        self.on_over: Callable[[bool], None] | None = None

    def send(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with a body of known length."""
        if self.over:
            return
        extra = {**(headers or {}), "content-length": str(len(body))}
        head = self._head(status, content_type, extra)
        self._connection.write(head if self._head_only else head + body)
        self._finish()

    def start(self, content_type: str) -> None:
        """Begin a chunked 200."""
        if not self.over:
            self.started = True
            self._connection.write(self._head(200, content_type, {"transfer-encoding": "chunked"}))

    def write(self, data: bytes) -> None:
        """Send one chunk; nothing once the client has left."""
        if data and not self.over:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """Send the last chunk."""
        if not self.over:
            self._connection.write(b"0\r\n\r\n")
            self._finish()

    def abort(self) -> None:
        """Break the connection off, whatever was sent."""
        if not self.over:
            self._connection.drop()

    def lost(self) -> None:
        """The connection is gone."""
        self._settle(broken=True)

    def _head(self, status: int, content_type: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: uvicorn", f"content-type: {content_type}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not self._keep_alive:
            lines.append("connection: close")
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    def _finish(self) -> None:
        self._settle(broken=False)
        self._connection.answered(self._keep_alive)

    def _settle(self, *, broken: bool) -> None:
        if self.over:
            return
        self.over = True
        if self.on_over is not None:
            self.on_over(broken)


Serve = Callable[[HttpRequest, Reply], None]


class Connection(asyncio.Protocol):
    """Parses requests and hands them, one at a time, to ``serve``. ``connections`` holds all that are open."""

    def __init__(self, serve: Serve, connections: set[Connection], idle_s: float = IDLE_S) -> None:
        self._serve = serve
        self._connections = connections
        self._idle_s = idle_s
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._peer = ""
        self._reply: Reply | None = None
        self._queue: deque[HttpRequest] = deque()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._rest()

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._wake()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, b"Invalid HTTP request received.")

    def eof_received(self) -> None:
        """The client left: what it asked for is over now, not when the transport is torn down."""
        self._lose()

    def connection_lost(self, _: Exception | None) -> None:
        """The connection is gone."""
        self._wake()
        self._connections.discard(self)
        self._transport = None
        self._lose()

    def on_url(self, url: bytes) -> None:
        """httptools: the request target (in parts)."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """httptools: answer an expectation of 100-continue."""
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """httptools: some of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > BODY_BYTES_MAX:
            self._refuse(413, b"Body too large.")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """httptools: the request is whole."""
        request = HttpRequest(
            self._parser.get_method().decode("latin-1"),
            self._url.partition(b"?")[0].decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self._peer,
            bool(self._parser.should_keep_alive()),
        )
        self._url, self._headers, self._body, self._body_bytes = b"", {}, [], 0
        self._queue.append(request)
        if len(self._queue) > PIPELINE_MAX:
            self.drop()
        elif self._reply is None:
            self._next()

    def write(self, data: bytes) -> None:
        """Send bytes, if the connection is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def drop(self) -> None:
        """Break the connection off (a reset, if bytes were unread or unsent)."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def answered(self, keep_alive: bool) -> None:
        """The current answer is complete."""
        self._reply = None
        if not keep_alive and self._transport is not None:
            self._transport.close()
        elif self._queue:
            self._next()
        else:
            self._rest()

    def _next(self) -> None:
        self._wake()
        request = self._queue.popleft()
        self._reply = Reply(self, request.method == "HEAD", request.keep_alive)
        self._serve(request, self._reply)

    def _refuse(self, status: int, message: bytes) -> None:
        self._lose()
        Reply(self, head_only=False, keep_alive=False).send(status, message, "text/plain; charset=utf-8")

    def _lose(self) -> None:
        self._queue.clear()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.lost()

    def _rest(self) -> None:
        self._wake()
        if self._transport is not None and not self._transport.is_closing():
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._transport.close)

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

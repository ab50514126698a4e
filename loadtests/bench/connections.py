"""The load client's connections: cheap enough that the proxy, not the client, is what a round measures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

import httptools

from loadtests.bench.wire import DONE, STAMP

_RECONNECT_S = 0.01


class CallLoad:
    """Calls in a closed loop: each connection sends its next request when it has the answer to the last."""

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self._address = host, port
        self.request = request
        self.latencies_ns: list[int] = []
        self.failures: Counter[str] = Counter()
        self.stopping = False
        self._open: set[CallConnection] = set()

    async def open(self, connections: int) -> None:
        """Start ``connections`` loops. Raises OSError if the target does not listen."""
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(lambda: CallConnection(self), *self._address)

    async def stop(self, grace_s: float) -> None:
        """Let calls in flight end for up to ``grace_s``; those that do not are failures."""
        self.stopping = True
        deadline_s = time.monotonic() + grace_s
        while (late := sum(call.busy for call in self._open)) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        if late:
            self.failures["no answer"] += late
        for connection in tuple(self._open):
            connection.close()

    def opened(self, connection: CallConnection) -> None:
        """A connection is up."""
        self._open.add(connection)

    def lost(self, connection: CallConnection) -> None:
        """A connection is gone; replace it. One that dies under a call has failed that call."""
        self._open.discard(connection)
        if self.stopping:
            return
        if connection.busy:
            self.failures["connection lost"] += 1
        asyncio.get_running_loop().call_later(_RECONNECT_S, self._reconnect)

    def _reconnect(self) -> None:
        if not self.stopping:
            loop = asyncio.get_running_loop()
            task = loop.create_task(loop.create_connection(lambda: CallConnection(self), *self._address))
            task.add_done_callback(self._reconnected)

    def _reconnected(self, task: asyncio.Task[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failures["connection refused"] += 1
            asyncio.get_running_loop().call_later(0.1, self._reconnect)


class CallConnection(asyncio.Protocol):
    """One loop of calls. The parser is told of no more than the end of each answer, which keeps it cheap."""

    def __init__(self, load: CallLoad) -> None:
        self._load = load
        self._parser = httptools.HttpResponseParser(self)
        self._sent_ns = 0
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._load.opened(self)
        self._send()

    def _send(self) -> None:
        self.busy = True
        self._sent_ns = time.monotonic_ns()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_message_complete(self) -> None:
        """Note the latency and send the next request."""
        load = self._load
        load.latencies_ns.append(time.monotonic_ns() - self._sent_ns)
        self.busy = False
        if (status := self._parser.get_status_code()) != 200:
            load.failures[f"status {status}"] += 1
        if load.stopping or not self._parser.should_keep_alive():
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """See ``asyncio.Protocol``."""
        self._load.lost(self)

    def close(self) -> None:
        """Close without waiting for an answer."""
        self._transport.abort()


class StreamConnection(asyncio.Protocol):
    """One streamed answer. ``ended`` is done when it is over: with ``None`` if whole, else with what went wrong."""

    def __init__(self, request: bytes, delayed: Callable[[int], None] | None = None) -> None:
        self._request = request
        self._delayed = delayed
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""
        self._done_seen = False
        self.chunks = self.received_bytes = 0
        self.started = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"bad HTTP: {type(error).__name__}")

    def on_body(self, body: bytes) -> None:
        """Take the whole events out of what has come and note each chunk's delay."""
        now_ns = time.monotonic_ns()
        if self._tail or not body.endswith(b"\n\n"):
            body = self._tail + body
            end = body.rfind(b"\n\n") + 2 if b"\n\n" in body else 0
            body, self._tail = body[:end], body[end:]
        if not self.started.done() and body:
            self.started.set_result(None)
        for stamp in STAMP.findall(body):
            self.chunks += 1
            if self._delayed is not None:
                self._delayed(now_ns - int(stamp))
        if body.endswith(DONE):
            self._done_seen = True

    def on_message_complete(self) -> None:
        """The answer is over: was it whole?"""
        if (status := self._parser.get_status_code()) != 200:
            self._end(f"status {status}")
        else:
            self._end(None if self._done_seen else "no [DONE]")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """See ``asyncio.Protocol``."""
        self._end("connection lost")

    def _end(self, reason: str | None) -> None:
        if not self.started.done():
            self.started.set_result(None)
        if not self.ended.done():
            self.ended.set_result(reason)
            self.transport.close()


async def open_stream(
    host: str, port: int, request: bytes, delayed: Callable[[int], None] | None = None
) -> StreamConnection:
    """Send ``request`` on a connection of its own; ``delayed`` is told each chunk's delay, in ns."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: StreamConnection(request, delayed), host, port)
    return connection

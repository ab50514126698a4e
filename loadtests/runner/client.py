"""Connections to the target: one process, no client library, so that the target and not the client is measured."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from loadtests.runner.answer import Answer, error_word
from loadtests.workloads.ask import Ask
from loadtests.workloads.prompt import content, messages

_CONNECT_S = 10.0
_REPLICA_HEADERS = (b"x-gateway-replica",)
_RETRY_HEADER = b"retry-after"
_ERROR_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. ``url`` may end in ``/v1``; ``keys`` are by team, ``key`` is for the teams without one."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    run: str = "load"  # begins the request ids, so that a log tells runs apart

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what is no URL."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{self.url}: a URL like http://host:8080 is needed")
        _ = parts.port  # raises ValueError where it is none

    @property
    def address(self) -> tuple[str, int, bool]:
        """Host, port, whether TLS."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        return parts.hostname or "", parts.port or (443 if secure else 80), secure

    def request(self, ask: Ask) -> bytes:
        """The whole HTTP request. The answer is to be of exactly the length asked for, and to tell its usage."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [
                {"role": role, "content": "".join(map(content, segments))} for role, segments in messages(ask.prompt)
            ],
            "max_tokens": ask.output_tokens,
            "ignore_eos": True,
            "temperature": 0.7,
            "stream": ask.stream,
        }
        if ask.stream:
            body["stream_options"] = {"include_usage": True}
        raw = msgspec.json.encode(body)
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        key = self.keys.get(ask.team, self.key)
        auth = f"authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n{auth}"
            f"x-request-id: {self.run}-{ask.id}\r\nuser-agent: loadtests\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        return head.encode() + raw


class Trouble(Exception):
    """A request that came to nothing; the message is the outcome. ``retry_after_s`` is what the server said."""

    def __init__(self, outcome: str, retry_after_s: float | None = None) -> None:
        super().__init__(outcome)
        self.retry_after_s = retry_after_s


class Exchange:
    """One request on its way: filled by its connection, awaited by its sender."""

    def __init__(self, *, stream: bool) -> None:
        loop = asyncio.get_running_loop()
        self.answer = Answer(stream=stream)
        self.begun: asyncio.Future[None] = loop.create_future()  # the first token, or the end
        self.ended: asyncio.Future[None] = loop.create_future()
        self.over = False  # a cancelled wait leaves its future done, but not the exchange over
        self.status = 0
        self.replica: str | None = None
        self.retry_after_s: float | None = None
        self.error = b""

    def finish(self, trouble: Trouble | None = None) -> None:
        """It is over; with ``trouble`` unless the answer came whole."""
        self.over = True
        if not self.ended.done():
            self.ended.set_result(None) if trouble is None else self.ended.set_exception(trouble)
        self.note_begin()

    def note_begin(self) -> None:
        """The wait for the first token is over."""
        if not self.begun.done():
            self.begun.set_result(None)


class Connection(asyncio.Protocol):
    """A kept-alive connection: one exchange at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, exchange: Exchange) -> None:
        """Begin ``exchange``."""
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("bad HTTP from the target")

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._client.forget(self)
        self._fail("connection lost" if exc is None else f"connection lost: {type(exc).__name__}")

    def on_header(self, name: bytes, value: bytes) -> None:
        """See ``httptools``."""
        exchange = self._exchange
        if exchange is None:
            return
        lower = name.lower()
        if lower in _REPLICA_HEADERS:
            exchange.replica = value.decode(errors="replace")
        elif lower == _RETRY_HEADER:
            with suppress(ValueError):
                exchange.retry_after_s = max(0.0, float(value))

    def on_body(self, body: bytes) -> None:
        """See ``httptools``."""
        exchange = self._exchange
        if exchange is None:
            return
        if not exchange.status:
            exchange.status = self._parser.get_status_code()
        if exchange.status != 200:
            exchange.error = (exchange.error + body)[:_ERROR_BYTES_MAX]
            return
        exchange.answer.feed(body, time.monotonic())  # the loop's own time ticks in milliseconds
        if exchange.answer.first_s is not None:
            exchange.note_begin()

    def on_message_complete(self) -> None:
        """See ``httptools``."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            self.transport.close()  # more than was asked for
            return
        exchange.status = self._parser.get_status_code()
        if self._parser.should_keep_alive():
            self._client.idle.append(self)
        else:
            self.transport.close()
        if exchange.status != 200:
            said = f"{exchange.status} {error_word(exchange.error)}".strip()
            exchange.finish(Trouble(said, exchange.retry_after_s))
            return
        exchange.answer.end()
        exchange.finish(Trouble(exchange.answer.fault) if exchange.answer.fault else None)

    def _fail(self, outcome: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish(Trouble(exchange.answer.fault or outcome))  # an error event says more than the cut after it
            self.transport.abort()


class Client:
    """Sends requests to one target over kept-alive connections, as many as are needed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.idle: list[Connection] = []
        self._host, self._port, secure = target.address
        self._tls = ssl.create_default_context() if secure else None

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        with suppress(ValueError):
            self.idle.remove(connection)

    async def exchange(self, request: bytes, exchange: Exchange, patience_s: float, total_s: float) -> None:
        """Send ``request`` and wait until the answer is whole. Raises ``Trouble``.

        Leaves (closing the connection) if the first token takes longer than ``patience_s``, or all of it ``total_s``;
        also when cancelled.
        """
        connection = await self._connection()
        try:
            connection.send(request, exchange)
            async with asyncio.timeout(total_s):
                await asyncio.wait_for(exchange.begun, patience_s)
                await exchange.ended
        except TimeoutError:
            first = exchange.answer.first_s is None
            raise Trouble("client left: no first token in time" if first else "client left: took too long") from None
        finally:
            if not exchange.over:
                exchange.ended.cancel()  # nobody waits for what the closing will say
                connection.transport.abort()  # so that the target stops working for nobody
            elif not exchange.ended.cancelled():
                exchange.ended.exception()  # it was seen, even if nobody waits for it any more

    async def _connection(self) -> Connection:
        while self.idle:
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise Trouble("connection timed out") from None
        except ConnectionRefusedError:
            raise Trouble("connection refused") from None
        except OSError as error:
            raise Trouble(f"cannot connect: {type(error).__name__}") from None
        return connection

    def close(self) -> None:
        """Close the idle connections."""
        for connection in tuple(self.idle):
            connection.transport.abort()
        self.idle.clear()

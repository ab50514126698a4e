"""A replica whose answers are scripted byte by byte, on a real socket, and which remembers what it was sent.

An answer is a list of pieces: bytes are written, a number is a pause in seconds, an ``asyncio.Event`` is waited for,
``CUT`` resets the connection, ``CLOSE`` ends it in order. The gateway's probes are answered apart from the script.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, cast


class End(Enum):
    CUT = auto()
    CLOSE = auto()


CUT, CLOSE = End.CUT, End.CLOSE
Piece = bytes | float | asyncio.Event | End
Script = Sequence[Piece]


@dataclass
class Seen:
    """One request. ``gone_s`` is the loop's time at which the gateway closed before the answer was complete."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    at_s: float
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    gone_s: float | None = None

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


def response(body: bytes, status: int = 200, content_type: bytes = b"application/json", extra: bytes = b"") -> bytes:
    """A whole answer of known length."""
    head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
        status,
        content_type,
        len(body),
        extra,
    )
    return head + body


def chat(text: str = "hello", prompt: int = 7, completion: int = 2) -> bytes:
    """A chat answer that is no stream."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return response(json.dumps({"id": "chatcmpl-1", "choices": [choice], "usage": usage}).encode())


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(payload: Any) -> bytes:
    """One SSE event."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def role() -> bytes:
    return event({"id": "c1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def delta(text: str) -> bytes:
    return event({"id": "c1", "choices": [{"index": 0, "delta": {"content": text}}]})


def stop() -> bytes:
    return event({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def usage(prompt: int = 7, completion: int = 3) -> bytes:
    return event({"id": "c1", "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def stream(*events: bytes | float | asyncio.Event | End) -> list[Piece]:
    """A chunked event stream: each event in a chunk of its own, pauses and ends between them."""
    pieces: list[Piece] = [STREAM_HEAD]
    pieces += [chunk(piece) if isinstance(piece, bytes) else piece for piece in events]
    return [*pieces, LAST_CHUNK]


class Upstream:
    """``async with Upstream() as upstream``; ``answers`` come first, then ``default`` again and again."""

    def __init__(self, model: str = "qwen", context_tokens: int = 32_768, tls: ssl.SSLContext | None = None) -> None:
        self.model = model
        self.context_tokens = context_tokens
        self.metrics: Script = [response(b"vllm:num_requests_running 0\n", content_type=b"text/plain")]
        self.health: Script = [response(b"")]
        self.default: Script = [chat()]
        self.answers: deque[Script] = deque()
        self.seen: list[Seen] = []
        self.probes = 0
        self.inflight = 0
        self.inflight_max = 0
        self.port = 0
        self._tls = tls
        self._arrived = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def __aenter__(self) -> Upstream:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, ssl=self._tls, backlog=1_024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and reset every connection."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def call(self, number: int = 1, within_s: float = 5.0) -> Seen:
        """The ``number``-th model call, once it is here."""
        async with asyncio.timeout(within_s):
            while len(self.seen) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return self.seen[number - 1]

    def script_for(self, seen: Seen) -> Script:
        path = seen.target.partition(b"?")[0]
        if seen.method == b"GET" and path in (b"/health", b"/metrics", b"/v1/models"):
            self.probes += path == b"/health"
            listed = {"data": [{"id": self.model, "max_model_len": self.context_tokens}]}
            models = [response(json.dumps(listed).encode())]
            return {b"/health": self.health, b"/metrics": self.metrics, b"/v1/models": models}[path]
        self.seen.append(seen)
        self._arrived.set()
        return self.answers.popleft() if self.answers else self.default


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.buffer = bytearray()
        self.playing: asyncio.Task[None] | None = None
        self.seen: Seen | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.upstream._connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.upstream._connections.discard(self)
        if self.playing is not None and self.seen is not None:
            self.seen.gone_s = asyncio.get_running_loop().time()
            self.seen.gone.set()
            self.playing.cancel()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or self.playing is not None:
            return
        start, *lines = bytes(self.buffer[:end]).split(b"\r\n")
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        length = int(dict(headers).get(b"content-length", b"0"))
        if len(self.buffer) < end + 4 + length:
            return
        body = bytes(self.buffer[end + 4 : end + 4 + length])
        del self.buffer[: end + 4 + length]
        method, target, _ = start.split(b" ")
        loop = asyncio.get_running_loop()
        self.seen = Seen(method, target, headers, body, loop.time())
        self.playing = loop.create_task(self._play(self.upstream.script_for(self.seen), method != b"GET"))

    async def _play(self, script: Script, counted: bool) -> None:
        upstream = self.upstream
        upstream.inflight += counted
        upstream.inflight_max = max(upstream.inflight_max, upstream.inflight)
        try:
            for piece in script:
                await self._do(piece)
        finally:
            upstream.inflight -= counted
        self.playing = None
        if self.buffer and not self.transport.is_closing():
            self.data_received(b"")

    async def _do(self, piece: Piece) -> None:
        match piece:
            case bytes():
                self.transport.write(piece)
                await self.writable.wait()
            case asyncio.Event():
                await piece.wait()
            case End.CUT:
                self.playing = None
                self.transport.abort()
                raise asyncio.CancelledError
            case End.CLOSE:
                self.playing = None
                self.transport.close()
                raise asyncio.CancelledError
            case _:
                await asyncio.sleep(piece)


def bytewise(script: Script) -> Iterator[Piece]:
    """The same bytes, one write and one turn of the loop each."""
    for piece in script:
        if isinstance(piece, bytes):
            for index in range(len(piece)):
                yield piece[index : index + 1]
                yield 0.0
        else:
            yield piece

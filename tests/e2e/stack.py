"""A gateway in the test's own loop, in front of scripted replicas, and a client that speaks raw bytes to it.

When the block ends nothing may be left: no permit, waiter, exchange, client connection, or call without its record.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

import uvicorn
import uvloop
from uvicorn.server import ServerState

from gateway.app import Gateway
from gateway.settings import load
from gateway.telemetry.writer import LineWriter
from tests.e2e.upstream import Upstream

KEY = "sk-stack-key-of-the-tests"
ADMIN_KEY = "sk-stack-admin-key-of-the-tests"
AUTH = b"authorization: Bearer " + KEY.encode() + b"\r\n"
SETTLE_S = 3.0

Test = TypeVar("Test", bound=Callable[..., Coroutine[Any, Any, None]])


def served(test: Test) -> Test:
    """Run an async test in a uvloop of its own, as the gateway is served; unretrieved failures fail it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        complaints: list[str] = []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
            runner.run(test(*args, **kwargs))
        assert not complaints, complaints

    return cast("Test", run)


class Reply(NamedTuple):
    """A response as it came. ``complete``: its framing was kept to the end."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-gateway-reason")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = AUTH) -> None:
        self.send(post(body, path, extra))

    def leave(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()

    async def head(self, within_s: float = 10.0) -> tuple[int, list[tuple[str, str]]]:
        async with asyncio.timeout(within_s):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        start, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        return int(start.split(" ")[1]), pairs

    async def reply(self, within_s: float = 10.0, *, bodyless: bool = False) -> Reply:
        status, pairs = await self.head(within_s)
        headers = dict(pairs)
        async with asyncio.timeout(within_s):
            if bodyless or status in (100, 204):
                return Reply(status, headers, b"", True)
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
                return Reply(status, headers, body, True)
            if headers.get("transfer-encoding") == "chunked":
                parts: list[bytes] = []
                try:
                    while part := await self.chunk(within_s):
                        parts.append(part)
                except (asyncio.IncompleteReadError, ConnectionError):
                    return Reply(status, headers, b"".join(parts), False)
                return Reply(status, headers, b"".join(parts), True)
            return Reply(status, headers, await self.reader.read(-1), True)

    async def chunk(self, within_s: float = 10.0) -> bytes:
        """The next chunk of a chunked body, empty at its end."""
        async with asyncio.timeout(within_s):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def closed(self, within_s: float = 5.0) -> bytes:
        """What still came before the gateway closed the connection; a reset counts as closed."""
        try:
            async with asyncio.timeout(within_s):
                return await self.reader.read(-1)
        except ConnectionError:
            return b""


class Stack:
    """A running gateway."""

    def __init__(self, gateway: Gateway, config: uvicorn.Config, writer: LineWriter, log: Path, settings: Path) -> None:
        self.gateway = gateway
        self.writer = writer
        self.port = 0
        self.log = log
        self.settings = settings
        self._config = config
        self._state = ServerState()

    @property
    def log_text(self) -> str:
        return self.log.read_text()

    def calls(self) -> list[dict[str, Any]]:
        """The records written so far."""
        lines = [json.loads(line) for line in self.log_text.splitlines()]
        return [line for line in lines if line.get("event") == "call"]

    async def record(self, number: int = 1, within_s: float = SETTLE_S) -> dict[str, Any]:
        """The ``number``-th call's record, once it is written."""
        await until(lambda: len(self.calls()) >= number, within_s)
        return self.calls()[number - 1]

    async def listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        front = self.gateway.front
        server = await loop.create_server(
            lambda: front(self._config, self._state, {}, loop), "127.0.0.1", 0, backlog=2_048
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))

    async def stalled_client(self) -> Client:
        """One that reads nothing, with little room in its kernel's buffer."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = Client(*await asyncio.open_connection(sock=sock, limit=1_024))
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        return client

    async def ask(self, data: bytes, within_s: float = 10.0) -> Reply:
        """The reply to raw bytes on a connection of their own."""
        async with await self.client() as client:
            client.send(data)
            return await client.reply(within_s, bodyless=data.startswith(b"HEAD"))

    async def post(self, body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = AUTH) -> Reply:
        return await self.ask(post(body, path, extra))

    def idle(self) -> bool:
        """Whether nothing of any call is left."""
        path = self.gateway.path
        replicas = [replica for model in path.models.values() for replica in model.pool]
        return not (
            path.exchanges
            or path.fronts
            or any(replica.inflight or replica.light for replica in replicas)
            or any(model.gate.depth for model in path.models.values())
        )


def post(body: bytes, path: bytes = b"/v1/chat/completions", extra: bytes = AUTH) -> bytes:
    """A POST with ``Host`` and a declared length."""
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (path, extra, len(body), body)


def get(path: bytes, extra: bytes = AUTH, method: bytes = b"GET") -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (method, path, extra)


def prompt(text: str = "hi", **members: Any) -> bytes:
    """A chat request's body."""
    asked = {"model": "qwen", "messages": [{"role": "user", "content": text}], **members}
    return json.dumps(asked, ensure_ascii=False).encode()


async def until(condition: Callable[[], bool], within_s: float = SETTLE_S, what: str = "condition") -> None:
    """Return when ``condition`` holds; fail after ``within_s``."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {within_s:g} s") from None


def settings_of(
    upstreams: Mapping[str, Upstream], server: Mapping[str, Any], model: Mapping[str, Any], replica: Mapping[str, Any]
) -> dict[str, Any]:
    replicas = [{"name": name, "url": upstream.url, **replica} for name, upstream in upstreams.items()]
    return {
        "server": {"probe_interval_s": 0.1, **server},
        "auth": {"admin_key": ADMIN_KEY},
        "models": [{"name": "qwen", "replicas": replicas, **model}],
        "teams": [{"name": "tests", "keys": [{"id": "e2e", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]}],
    }


@asynccontextmanager
async def stack(
    *upstreams: Upstream,
    server: Mapping[str, Any] = {},
    model: Mapping[str, Any] = {},
    replica: Mapping[str, Any] = {},
    sections: Mapping[str, Any] = {},
) -> AsyncIterator[Stack]:
    """A gateway in front of ``upstreams`` (which are started), named ``r0``, ``r1`` …"""
    async with AsyncExitStack() as leaving:
        for upstream in upstreams:
            await leaving.enter_async_context(upstream)
        folder = leaving.enter_context(tempfile.TemporaryDirectory(prefix="gateway-stack-"))
        named = {f"r{index}": upstream for index, upstream in enumerate(upstreams)}
        path, log = Path(folder, "gateway.yaml"), Path(folder, "log")
        path.write_text(json.dumps({**settings_of(named, server, model, replica), **sections}))
        fd = os.open(log, os.O_CREAT | os.O_WRONLY)
        leaving.callback(os.close, fd)
        writer = LineWriter(fd)
        leaving.callback(writer.close)
        gateway = Gateway(load(path, {}).compile(), writer)
        config = uvicorn.Config(
            gateway, log_config=None, ws="none", lifespan="off", interface="asgi3", access_log=False
        )
        config.load()
        running = Stack(gateway, config, writer, log, path)
        await gateway.start()
        leaving.push_async_callback(gateway.stop)
        listening = await running.listen()
        leaving.callback(listening.close)
        yield running
        await until(running.idle, what="nothing being left")

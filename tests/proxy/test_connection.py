"""One connection to a replica, byte by byte: what is an answer, what is none, and when a connection is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.clock import LoopClock
from gateway.proxy.connection import (
    ClosedEarly,
    ConnectFailed,
    Cut,
    ProtocolBroken,
    Response,
    Stale,
    UpstreamFault,
)
from gateway.proxy.upstream import Upstream, origin_of
from gateway.testing.loop import VirtualLoop
from gateway.testing.network import FakeServer, Peer
from tests.proxy.conftest import whole

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


@pytest.fixture
def wire(loop: VirtualLoop) -> Any:
    wire = Wire(loop)
    yield wire
    wire.upstream.close()
    wire.server.close()
    wire.run(asyncio.sleep(0.01))
    assert wire.upstream.open_connections == 0
    assert wire.server.open_connections == 0
    assert asyncio.all_tasks(loop) == set()


LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
TRAILERS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + LENGTH
KEPT = {"length": LENGTH, "chunked": CHUNKED, "trailers": TRAILERS, "1xx": CONTINUED}


@pytest.mark.parametrize("raw", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_every_framing_in_reads_of_any_size_and_the_connection_is_kept(wire: Wire, raw: bytes, size: int) -> None:
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
    wire.says([pieces, pieces])
    assert [wire.get(), wire.get()] == [(200, b"hello")] * 2
    assert len(wire.server.peers) == 1
    assert wire.upstream.idle_connections == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    ],
)
def test_a_connection_that_is_to_close_is_not_kept(wire: Wire, raw: bytes) -> None:
    wire.says([raw], [raw])
    assert [wire.get(), wire.get()] == [(200, b"hello")] * 2
    assert len(wire.server.peers) == 2
    assert wire.upstream.idle_connections == 0


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_ends_with_its_head(wire: Wire, status: int) -> None:
    wire.says([b"HTTP/1.1 %d X\r\n\r\n" % status, LENGTH])
    assert wire.get() == (status, b"")
    assert wire.get() == (200, b"hello")
    assert len(wire.server.peers) == 1


def test_an_empty_body_is_an_answer(wire: Wire) -> None:
    wire.says(
        [
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ]
    )
    assert [wire.get(), wire.get()] == [(200, b"")] * 2


@pytest.mark.parametrize("delay", [[], [0.5]])
def test_a_body_without_a_length_ends_with_the_connection(wire: Wire, delay: list[float]) -> None:
    wire.says([[b"HTTP/1.1 200 OK\r\n\r\n", b"hel", b"lo"], *delay, None])
    assert wire.get() == (200, b"hello")
    assert wire.upstream.idle_connections == 0


def test_a_body_without_a_length_is_cut_by_a_reset(wire: Wire) -> None:
    wire.says([b"HTTP/1.1 200 OK\r\n\r\nhello", 0.5, ConnectionResetError()])
    with pytest.raises(Cut):
        wire.get()


@pytest.mark.parametrize("raw", [LENGTH[:-1], CHUNKED[:-5], CHUNKED[:-1]])
def test_b4_an_incomplete_body_is_cut(wire: Wire, raw: bytes) -> None:
    wire.says([raw, 0.5, None])
    with pytest.raises(Cut):
        wire.get()


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
def test_closed_before_the_first_body_byte_may_be_tried_elsewhere(wire: Wire, raw: bytes) -> None:
    wire.says([[raw] if raw else [], None])
    with pytest.raises(ClosedEarly) as caught:
        wire.get()
    assert caught.value.retryable
    assert not isinstance(caught.value, Stale)


BROKEN = {
    "garbage": b"\x16\x03\x01\x02\x00",
    "http2": b"HTTP/2 200\r\n\r\n",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "gzip": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
    "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"content-length: 0\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_http_is_refused_and_not_repeated(wire: Wire, raw: bytes) -> None:
    wire.says([raw])
    with pytest.raises(ProtocolBroken) as caught:
        wire.get()
    assert not caught.value.retryable
    assert wire.upstream.idle_connections == 0


@pytest.mark.parametrize(
    "piece", [b"x-a: " + b"a" * 60_000 + b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000], ids=["headers", "1xx"]
)
def test_an_endless_head_is_bounded(wire: Wire, piece: bytes) -> None:
    lead = [] if piece.startswith(b"HTTP") else [b"HTTP/1.1 200 OK\r\n"]
    wire.says([[*lead, *[piece] * 20]])
    with pytest.raises(ProtocolBroken, match="too large"):
        wire.get()


SURPLUS = {
    "garbage": b"garbage",
    "an answer": LENGTH,
    "an empty answer": b"HTTP/1.1 204 X\r\n\r\n",
    "half a head": b"HTTP/1.1 2",
}


@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS.keys())
@pytest.mark.parametrize("raw", [LENGTH, CHUNKED])
def test_surplus_in_the_same_read_ends_the_connection_but_not_the_answer(
    wire: Wire, raw: bytes, surplus: bytes
) -> None:
    wire.says([raw + surplus], [LENGTH])
    assert wire.get() == (200, b"hello")
    assert wire.get() == (200, b"hello")
    assert len(wire.server.peers) == 2


@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS.keys())
@pytest.mark.parametrize("raw", [LENGTH, CHUNKED])
def test_surplus_behind_the_end_of_a_body_under_way(wire: Wire, raw: bytes, surplus: bytes) -> None:
    cut = raw.index(b"he") + 1
    wire.says([raw[:cut]], [LENGTH])

    async def in_two() -> tuple[Response, bytes]:
        task = wire.loop.create_task(wire.fetch())
        await asyncio.sleep(1)
        wire.server.peers[0].send(raw[cut:] + surplus)
        return await task

    assert wire.run(in_two())[1] == b"hello"
    assert wire.get() == (200, b"hello")
    assert len(wire.server.peers) == 2


@pytest.mark.parametrize("surplus", SURPLUS.values(), ids=SURPLUS.keys())
def test_surplus_on_an_idle_connection_ends_it(wire: Wire, surplus: bytes) -> None:
    wire.says([[LENGTH]], [LENGTH])
    assert wire.get() == (200, b"hello")
    wire.server.peers[0].send(surplus)
    wire.run(asyncio.sleep(0.1))
    assert wire.get() == (200, b"hello")
    assert len(wire.server.peers) == 2
    assert wire.requests == 2


def test_what_comes_before_anybody_listens_is_kept_in_order(wire: Wire) -> None:
    wire.says([[CHUNKED[:60], CHUNKED[60:]]])

    async def late() -> tuple[bytes, int]:
        response = await wire.upstream.send(REQUEST)
        await asyncio.sleep(1)
        body = Body()
        response.attach(body)
        return await body.ended, body.pieces

    assert wire.run(late()) == (b"hello", 2)
    assert wire.upstream.idle_connections == 1


def test_e4_an_idle_connection_is_not_used_after_four_seconds(wire: Wire) -> None:
    wire.says([LENGTH], [LENGTH])
    wire.get()
    wire.run(asyncio.sleep(4.0))
    wire.get()
    assert len(wire.server.peers) == 2
    assert wire.server.peers[0].gone_at_s is not None


def test_e4_the_sweep_closes_idle_connections(wire: Wire) -> None:
    wire.says([LENGTH])
    wire.get()
    wire.upstream.sweep(wire.loop.time() + 3.9)
    assert wire.upstream.idle_connections == 1
    wire.upstream.sweep(wire.loop.time() + 4.0)
    assert wire.upstream.idle_connections == 0
    assert wire.server.open_connections == 0


@pytest.mark.parametrize("end", [None, ConnectionResetError()])
def test_e4_the_keep_alive_race_is_repeated_once_on_a_fresh_connection(wire: Wire, end: Exception | None) -> None:
    wire.says([LENGTH, [], end], [LENGTH])
    wire.get()
    assert wire.get() == (200, b"hello")
    assert wire.requests == 3  # the second one never got an answer


def test_e4_but_not_twice(wire: Wire) -> None:
    wire.says([LENGTH, [], None], [[], None])
    wire.get()
    with pytest.raises(ClosedEarly) as caught:
        wire.get()
    assert not isinstance(caught.value, Stale)
    assert len(wire.server.peers) == 2


def test_e4_and_never_after_a_byte_of_an_answer(wire: Wire) -> None:
    wire.says([LENGTH, b"H", None], [LENGTH])
    wire.get()
    with pytest.raises(ClosedEarly):
        wire.get()
    assert len(wire.server.peers) == 1


def test_refused_and_slow_connections_are_faults(wire: Wire) -> None:
    wire.server.refuses = ConnectionRefusedError(111, "Connection refused")
    with pytest.raises(ConnectFailed, match="Connection refused"):
        wire.get()
    wire.server.refuses, wire.server.connect_s = None, 60.0
    before = wire.loop.time()
    with pytest.raises(ConnectFailed, match="within 5 s"):
        wire.get()
    assert wire.loop.time() - before == pytest.approx(5.0)


def test_b8_a_paused_response_takes_nothing_from_the_network(wire: Wire) -> None:
    wire.says([[b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello"], 1.0, None])

    async def pausing() -> bytes:
        response = await wire.upstream.send(REQUEST)
        body = Body()
        response.attach(body)
        response.pause()
        assert not wire.server.peers[0].reading
        wire.server.peers[0].send(b"world")
        await asyncio.sleep(10)
        assert body.data == b"hello"
        response.resume()
        return await body.ended

    assert wire.run(pausing()) == b"helloworld"


def test_b8_a_connection_goes_back_reading_though_its_last_reader_was_behind(wire: Wire) -> None:
    wire.says([LENGTH, LENGTH])

    class Slow(Body):
        def on_data(self, data: bytes) -> None:
            super().on_data(data)
            response.pause()

    response = wire.run(wire.upstream.send(REQUEST))
    body = Slow()
    response.attach(body)
    assert wire.run(body.ended) == b"hello"
    assert wire.server.peers[0].reading
    assert wire.get() == (200, b"hello")
    assert len(wire.server.peers) == 1


def test_a_response_that_is_over_cannot_touch_the_next_one_on_its_connection(wire: Wire) -> None:
    wire.says([LENGTH, 1.0, LENGTH])

    async def overlap() -> bytes:
        first = await wire.upstream.send(REQUEST)
        body = Body()
        first.attach(body)
        await body.ended
        second = wire.loop.create_task(wire.fetch())
        await asyncio.sleep(0.5)
        first.pause()
        first.abort()
        return (await second)[1]

    assert wire.run(overlap()) == b"hello"
    assert len(wire.server.peers) == 1


def test_a1_an_abandoned_response_closes_its_connection_unless_it_was_complete(wire: Wire) -> None:
    wire.says([LENGTH, LENGTH[:-1]])

    async def abandon() -> None:
        (await wire.upstream.send(REQUEST)).abort()

    wire.run(abandon())
    assert wire.upstream.idle_connections == 1
    wire.run(abandon())
    assert wire.upstream.open_connections == 0
    assert wire.server.open_connections == 0


@pytest.mark.parametrize("connect_s", [0.0, 2.0])
def test_a1_a_cancelled_request_closes_its_connection(wire: Wire, connect_s: float) -> None:
    wire.server.connect_s = connect_s
    wire.says([[], 100.0])

    async def cancel() -> None:
        task = wire.loop.create_task(wire.upstream.send(REQUEST))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    wire.run(cancel())
    assert wire.server.open_connections == 0


def test_a_closed_upstream_keeps_no_connection(wire: Wire) -> None:
    wire.says([LENGTH])
    wire.upstream.close()
    assert wire.get() == (200, b"hello")
    assert wire.upstream.open_connections == 0


def test_the_length_is_told_where_it_is_known(wire: Wire) -> None:
    wire.says([whole(200, b"12"), CHUNKED])
    assert [wire.run(wire.fetch())[0].length, wire.run(wire.fetch())[0].length] == [2, None]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://gpu1:8000", ("gpu1", 8000, False, b"gpu1:8000")),
        ("https://gpu1", ("gpu1", 443, True, b"gpu1:443")),
        ("http://[2001:db8::1]:8000/", ("2001:db8::1", 8000, False, b"[2001:db8::1]:8000")),
    ],
)
def test_origins(url: str, expected: tuple[str, int, bool, bytes]) -> None:
    origin = origin_of(url)
    assert (*origin, origin.host_header) == expected

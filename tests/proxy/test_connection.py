"""One connection to a replica, byte by byte: what is an answer, what is none, and when a connection is kept."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.connection import (
    ClosedEarly,
    Cut,
    ProtocolBroken,
    Response,
    Stale,
)
from tests.proxy.wire import CHUNKED, CONTINUED, LENGTH, REQUEST, TRAILERS, Body, Wire

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

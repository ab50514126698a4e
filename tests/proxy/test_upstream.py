"""The keep-alive pool of one replica: which connection serves whom, and when one is closed."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.connection import (
    ClosedEarly,
    ConnectFailed,
    Stale,
)
from gateway.proxy.upstream import origin_of
from tests.proxy.replicas import whole
from tests.proxy.wire import CHUNKED, LENGTH, REQUEST, Body, Wire


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

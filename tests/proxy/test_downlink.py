"""Answers on the wire: the framing chosen once, and a cut that never looks like an end."""

from __future__ import annotations

import pytest

from gateway.proxy.downlink import HttpDownlink
from gateway.testing.loop import VirtualLoop
from gateway.testing.network import FakeTransport


class Link:
    """A downlink, and what its client got."""

    def __init__(self, loop: VirtualLoop, *, http10: bool = False, keep: bool = True) -> None:
        import asyncio

        self.transport = FakeTransport(asyncio.Protocol(), loop)
        self.kept: list[bool] = []
        self.down = HttpDownlink(
            self.transport, [(b"date", b"today")], http10=http10, keep=keep, on_done=self.kept.append
        )

    @property
    def sent(self) -> bytes:
        return bytes(self.transport.peer._received)


def test_a_known_length(loop: VirtualLoop) -> None:
    link = Link(loop)
    link.down.start(200, [(b"a", b"b")], 2)
    assert link.down.write(b"ok")
    link.down.finish()
    assert link.sent == b"HTTP/1.1 200 OK\r\ndate: today\r\na: b\r\ncontent-length: 2\r\n\r\nok"
    assert link.kept == [True]
    assert not link.transport.is_closing()


def test_a_stream_is_chunked_and_ends_with_the_last_chunk(loop: VirtualLoop) -> None:
    link = Link(loop)
    link.down.start(200, [], None)
    link.down.write(b"x" * 20)
    link.down.write(b"")  # would end the body
    link.down.write(b"y")
    link.down.finish()
    assert link.sent.partition(b"\r\n\r\n")[2] == b"14\r\n" + b"x" * 20 + b"\r\n1\r\ny\r\n0\r\n\r\n"
    assert link.kept == [True]


def test_http_1_0_gets_no_chunks_and_no_connection_kept(loop: VirtualLoop) -> None:
    link = Link(loop, http10=True)
    link.down.start(200, [], None)
    link.down.write(b"x")
    link.down.finish()
    assert b"chunked" not in link.sent
    assert b"connection: close\r\n" in link.sent
    assert link.sent.endswith(b"\r\n\r\nx")
    assert link.kept == [False]


@pytest.mark.parametrize("status", [204, 304])
def test_no_framing_where_there_is_no_body(loop: VirtualLoop, status: int) -> None:
    link = Link(loop)
    link.down.start(status, [], 0)
    link.down.finish()
    assert b"content-length" not in link.sent
    assert b"chunked" not in link.sent


def test_b4_a_cut_stream_has_no_last_chunk_but_all_that_was_written(loop: VirtualLoop) -> None:
    link = Link(loop)
    link.down.start(200, [], None)
    link.down.write(b"half")
    link.down.abort()
    assert link.sent.endswith(b"4\r\nhalf\r\n")
    assert (link.transport.is_closing(), link.transport.aborted, link.kept) == (True, False, [False])


@pytest.mark.parametrize("http10", [False, True])
def test_b4_where_a_clean_close_would_look_whole_the_connection_is_reset(loop: VirtualLoop, http10: bool) -> None:
    link = Link(loop, http10=http10)
    link.down.start(200, [], None if http10 else 10)
    link.down.write(b"half")
    link.down.abort()
    assert link.transport.aborted
    assert link.kept == [False]


def test_after_the_end_nothing_is_sent(loop: VirtualLoop) -> None:
    link = Link(loop)
    link.down.start(200, [], 2)
    link.down.write(b"ok")
    link.down.finish()
    before = link.sent
    link.down.start(500, [], 0)
    assert link.down.write(b"more")
    link.down.finish()
    link.down.abort()
    assert (link.sent, link.kept) == (before, [True])


def test_the_last_answer_says_so(loop: VirtualLoop) -> None:
    link = Link(loop)
    link.down.last()
    link.down.start(200, [], 0)
    link.down.finish()
    assert b"connection: close\r\n" in link.sent
    assert link.kept == [False]


def test_b8_writes_say_when_the_client_is_behind(loop: VirtualLoop) -> None:
    link = Link(loop)
    link.down.start(200, [], None)
    link.down.paused = True
    assert not link.down.write(b"x")
    link.down.paused = False
    assert link.down.write(b"x")

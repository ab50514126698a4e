"""Several requests on one connection: order, bounds, and what must never get between two answers."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import psutil
import pytest

from gateway.proxy.front import Front
from tests.e2e.stack import AUTH, Client, Stack, get, post, prompt, served, stack, until
from tests.e2e.upstream import DONE, Upstream, chat, delta, role, stop, stream

BODY = prompt()
STREAMED = prompt(stream=True)


def front(running: Stack) -> Front:
    (only,) = running.gateway.path.fronts
    assert isinstance(only, Front)
    return only


@served
async def test_front_pipelined_answers_come_in_order() -> None:
    upstream = Upstream()
    upstream.answers += [[0.2, chat("one")], [chat("two")]]
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(BODY) + get(b"/healthz") + get(b"/v1/../x") + post(BODY) + get(b"/nowhere", method=b"HEAD"))
        assert b"one" in (await client.reply()).body
        assert (await client.reply()).json == {"status": "ok"}
        assert (await client.reply()).status == 404
        assert b"two" in (await client.reply()).body
        assert (await client.reply(bodyless=True)).status == 404
        assert len(upstream.seen) == 2


@served
async def test_front_a_pipelined_call_starts_when_the_one_before_is_over() -> None:
    gate = asyncio.Event()
    upstream = Upstream()
    upstream.answers.append(stream(role(), gate, stop(), DONE))
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(STREAMED) + post(BODY))
        await upstream.call()
        await asyncio.sleep(0.1)
        assert len(upstream.seen) == 1
        gate.set()
        assert (await client.reply()).complete
        assert (await client.reply()).status == 200


@served
async def test_front_too_many_pipelined_requests_end_the_connection_after_the_answers() -> None:
    gate = asyncio.Event()
    upstream = Upstream()
    upstream.answers.append([gate, chat()])
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(BODY) + get(b"/healthz") * 200)
        await upstream.call()
        gate.set()
        for _ in range(8):
            assert (await client.reply()).status == 200
        assert await client.closed() == b""


@served
async def test_front_a_huge_second_head_while_the_first_call_streams_is_bounded() -> None:
    gate = asyncio.Event()
    upstream = Upstream()
    upstream.answers.append(stream(role(), gate, stop(), DONE))
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(STREAMED) + b"GET /healthz HTTP/1.1\r\nhost: x\r\na: ")
        await upstream.call()
        before = psutil.Process().memory_info().rss
        for _ in range(640):
            client.send(b"v" * 65_536)
            await client.writer.drain()
        grown = psutil.Process().memory_info().rss - before
        assert grown < 16_000_000, f"{grown:,} bytes for one header"
        gate.set()
        reply = await client.reply()
        assert (reply.status, reply.complete) == (200, True)  # the answer under way is none the worse
        assert await client.closed() == b""


@served
async def test_front_a_second_head_after_a_large_body_is_not_counted_with_it() -> None:
    """One read may hold the end of a large body and the beginning of the next head."""
    async with stack(Upstream(context_tokens=1_000_000)) as running, await running.client() as client:
        large = prompt("x" * 200_000)
        client.send(post(large) + b"GET /healthz HTTP/1.1\r\nho")
        assert (await client.reply()).status == 200
        client.send(b"st: x\r\n\r\n")
        assert (await client.reply()).status == 200


@served
async def test_front_malformed_bytes_behind_a_call_do_not_disturb_its_answer() -> None:
    upstream = Upstream()
    upstream.answers.append(stream(role(), 0.1, delta("whole"), stop(), DONE))
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(STREAMED) + b"\x00garbage\r\n\r\n" * 10)
        reply = await client.reply()
        assert reply.complete
        assert b"whole" in reply.body
        assert await client.closed() == b""


@served
async def test_front_100_continue_waits_for_the_answer_before_it() -> None:
    gate = asyncio.Event()
    upstream = Upstream()
    upstream.answers.append(stream(role(), gate, stop(), DONE))
    waiting = b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY)
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(STREAMED) + b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + AUTH + waiting)
        await client.head()
        await client.chunk()
        await asyncio.sleep(0.05)
        gate.set()
        parts = [part async for part in _chunks(client)]
        assert parts[-1] == DONE
        assert (await client.reply()).status == 100
        client.send(BODY)
        assert (await client.reply()).status == 200


async def _chunks(client: Client):  # type: ignore[no-untyped-def]
    while part := await client.chunk():
        yield part


@pytest.mark.parametrize("data", [get(b"/v1/../x"), post(b"{}"), get(b"/")])
@served
async def test_front_a_client_that_asks_and_never_reads_piles_up_nothing(data: bytes) -> None:
    async with stack(Upstream(), server={"idle_s": 0.5}) as running:
        client = await running.stalled_client()
        await until(lambda: len(running.gateway.path.fronts) == 1)
        connection = front(running)
        assert connection.transport is not None
        most = behind = 0
        while behind < 500 and not connection.transport.is_closing():
            client.send(data * 6)
            most = max(most, connection.transport.get_write_buffer_size())
            behind += connection.flow is not None and connection.flow.write_paused
            await asyncio.sleep(0)
        assert most < 400_000, f"{most:,} bytes of answers wait"
        client.leave()


@served
async def test_front_a_stream_behind_unread_answers_is_not_buffered() -> None:
    upstream = Upstream()
    filler = delta("x" * 60_000)
    upstream.answers += [stream(role(), *[filler] * 100, DONE), stream(role(), *[filler] * 1_000, DONE)]
    async with stack(upstream, server={"idle_s": 0.5}) as running:
        client = await running.stalled_client()
        client.send(post(STREAMED) * 2)
        await until(lambda: len(running.gateway.path.fronts) == 1)
        connection = front(running)
        await asyncio.sleep(0.3)
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 1_000_000
        client.leave()


@served
async def test_front_a_half_closed_client_has_left() -> None:
    """A client that closed looks the same, and its engine must stop."""
    upstream = Upstream()
    upstream.answers.append([30.0, chat()])
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(BODY))
        seen = await upstream.call()
        client.writer.write_eof()
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        assert (await running.record())["outcome"] == "client_gone"


@served
async def test_front_a_closing_connection_nobody_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.proxy.front.CLOSE_S", 0.3)
    upstream = Upstream()
    upstream.answers.append(stream(role(), *[delta("x" * 60_000)] * 1_000, DONE))
    async with stack(upstream, model={"timeouts": {"write_stall_s": 0.3}}) as running:
        client = await running.stalled_client()
        client.send(post(STREAMED))
        assert (await running.record())["outcome"] == "client_stalled"
        await until(running.idle, what="the stalled client's connection being cut")
        client.leave()


def split(data: bytes, seed: int) -> list[bytes]:
    """``data`` in pieces: single bytes for seed 0, else at random places."""
    places = random.Random(seed)
    cuts = range(1, len(data)) if seed == 0 else sorted(places.sample(range(1, len(data)), places.randint(1, 40)))
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


@pytest.mark.parametrize("seeds", [range(1), range(1, 60)], ids=["bytewise", "random"])
@served
async def test_front_the_places_where_reads_split_change_nothing(seeds: range) -> None:
    upstream = Upstream()
    offer = AUTH + b"connection: upgrade\r\nupgrade: h2c\r\n"
    chunked = b"transfer-encoding: chunked\r\n\r\n%x;e=1\r\n%b\r\n0\r\nt: v\r\n\r\n" % (len(BODY), BODY)
    data = b"".join(
        (
            post(BODY),
            get(b"/healthz"),
            b"\r\n",
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + AUTH + chunked,
            post(BODY, extra=offer),
            get(b"/v1/../x", method=b"HEAD"),
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + offer + chunked,
            post(b"[]", extra=AUTH + b"connection: close\r\n"),
        )
    )
    async with stack(upstream) as running:
        for seed in seeds:
            async with await running.client() as client:
                for piece in split(data, seed):
                    client.send(piece)
                    await asyncio.sleep(0)
                for status in (200, 200, 200, 200, 404, 200, 400):
                    assert (await client.reply(bodyless=status == 404)).status == status, seed
                assert await client.closed() == b""
        assert {seen.body for seen in upstream.seen} == {BODY}
        assert len(upstream.seen) == 4 * len(seeds)


@served
async def test_front_garbage_never_does_more_than_close_a_connection() -> None:
    """Valid requests with bytes changed, dropped and doubled."""
    places = random.Random(7)
    whole = post(BODY) + get(b"/healthz") + post(BODY, extra=AUTH + b"connection: upgrade\r\nupgrade: h2c\r\n")
    async with stack(Upstream(), server={"header_read_s": 0.3, "body_read_s": 0.3, "idle_s": 0.3}) as running:
        for _ in range(300):
            data = bytearray(whole)
            for _ in range(places.randint(1, 4)):
                at = places.randrange(len(data))
                match places.randrange(3):
                    case 0:
                        data[at] = places.randrange(256)
                    case 1:
                        del data[at : at + places.randint(1, 20)]
                    case _:
                        data[at:at] = data[at : at + places.randint(1, 50)]
            async with await running.client() as client:
                client.send(bytes(data))
                client.writer.write_eof() if places.randrange(2) else None
                await asyncio.sleep(0.001)
        async with await running.client() as client:
            client.send(whole)
            assert [(await client.reply()).status for _ in range(3)] == [200] * 3
        assert "Traceback" not in running.log_text

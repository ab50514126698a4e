"""What the front door makes of request heads: bounds, double meanings, odd paths, versions."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.stack import AUTH, Stack, get, post, prompt, served, stack
from tests.e2e.upstream import Upstream

PATH = b"/v1/chat/completions"
BODY = prompt()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
POST = b"POST %b HTTP/1.1\r\nhost: x\r\n%b" % (PATH, AUTH)


async def refused_and_closed(running: Stack, data: bytes, status: int) -> None:
    """``data`` is answered once with ``status``, the connection is closed, and the next one works."""
    async with await running.client() as client:
        client.send(data)
        reply = await client.reply()
        assert (reply.status, reply.headers.get("connection")) == (status, "close"), data[:200]
        assert reply.json["error"]["code"] == reply.reason
        assert await client.closed() == b"", data[:200]


AMBIGUOUS = {
    "two lengths": POST + b"content-length: 1\r\n" + LENGTH + b"\r\n",
    "the same length twice": POST + LENGTH + LENGTH + b"\r\n" + BODY,
    "length and chunked": POST + LENGTH + CHUNKED + b"\r\n0\r\n\r\n",
    "gzip, chunked": POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"transfer-encoding: identity\r\n\r\n",
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST %b HTTP/1.0\r\n%b%b\r\n0\r\n\r\n" % (PATH, AUTH, CHUNKED),
    "space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n",
    "signed length": POST + b"content-length: +5\r\n\r\nabcde",
    "negative length": POST + b"content-length: -5\r\n\r\n",
    "endless length": POST + b"content-length: " + b"9" * 5_000 + b"\r\n\r\n",
    "bare line feeds": b"GET /healthz HTTP/1.1\nhost: x\n\n",
    "folded header": b"GET /healthz HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
    "bare carriage return": b"GET /healthz HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n",
    "NUL in a header": b"GET /healthz HTTP/1.1\r\nhost: x\r\na: b\0\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "HTTP/0.9": b"GET /healthz HTTP/0.9\r\nhost: x\r\n\r\n",
    "HTTP/2.0": b"GET /healthz HTTP/2.0\r\nhost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "CONNECT": b"CONNECT upstream:443 HTTP/1.1\r\nhost: upstream:443\r\n\r\n",
    "unknown method": b"BREW /pot HTTP/1.1\r\nhost: x\r\n\r\n",
    "bytes in the path": b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n",
}


@served
async def test_front_refuses_heads_that_two_readers_could_read_differently() -> None:
    async with stack(Upstream()) as running:
        for name, data in AMBIGUOUS.items():
            try:
                await refused_and_closed(running, data, 400)
            except (AssertionError, TimeoutError, asyncio.IncompleteReadError) as error:
                raise AssertionError(f"{name}: {error!r}") from error


DIRTY = [
    b"//v1/chat/completions",
    b"/v1//chat/completions",
    b"/v1/../metrics",
    b"/v1/%2e%2e/metrics",
    b"/v1/..%2fmetrics",
    b"/./metrics",
    b"/metrics%00",
    b"/v1/chat%2fcompletions",
    b"/v1\\chat\\completions",
    b"/v1/models/../../metrics",
    b"/v1/models/%2e%2e/%2e%2e/metrics",
    b"/v1/models/%252e%252e/metrics",
]
UNKNOWN = [
    b"/V1/Chat/Completions",
    b"/v1/chat/completions/",
    b"/v1/chat/completions;x",
    b"/v1/chat/completions#x",
    b"/metrics;x",
    b"/METRICS",
    b"/metrics/",
    b"/admin",
    b"/docs",
    b"/openapi.json",
]


@served
async def test_front_odd_paths_reach_no_other_route_and_no_replica() -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        for path in DIRTY + UNKNOWN:
            for auth in (b"", AUTH):
                for data in (get(path, auth), post(BODY, path, auth)):
                    reply = await running.ask(data)
                    assert (reply.status, reply.reason) == (404, "not_found"), data
                assert (await running.ask(get(path, auth, b"HEAD"))).status in (404, 405)
        assert upstream.seen == []


@served
async def test_front_keeps_the_connection_after_a_path_it_does_not_know() -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        for data, bodyless, status in [
            (get(DIRTY[0], b"", b"HEAD"), True, 404),
            (get(UNKNOWN[0], b"", b"HEAD"), True, 404),
            (post(BODY, DIRTY[0]), False, 404),
            (post(BODY, UNKNOWN[0]), False, 404),
            (get(b"/healthz"), False, 200),
        ]:
            client.send(data)
            assert (await client.reply(bodyless=bodyless)).status == status


@served
async def test_front_absolute_targets_are_read_by_their_path() -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        assert (await running.ask(get(b"http://x/healthz"))).status == 200
        assert (await running.post(BODY, b"http://elsewhere:1/v1/chat/completions?a=b")).status == 200
        assert upstream.seen[0].target == b"/v1/chat/completions?a=b"
        assert (await running.post(BODY, b"http://x?y=/v1/chat/completions")).status in (404, 405)
        assert (await running.post(BODY, b"http://x//v1/chat/completions")).status == 404
        assert len(upstream.seen) == 1


@served
async def test_front_bounds_the_number_and_the_bytes_of_headers() -> None:
    async with stack(Upstream()) as running:
        many = b"".join(b"h%d: v\r\n" % index for index in range(101))
        await refused_and_closed(running, get(b"/healthz", many), 431)
        await refused_and_closed(running, get(b"/healthz", b"h: " + b"v" * 40_000 + b"\r\n"), 431)
        await refused_and_closed(running, get(b"/healthz?" + b"q" * 40_000), 431)
        await refused_and_closed(running, b"GET /" + b"a" * 400_000, 431)
        fits = b"".join(b"h%d: %b\r\n" % (index, b"v" * 300) for index in range(95))
        assert (await running.ask(get(b"/healthz", fits))).status == 200


@served
async def test_front_one_header_sent_slowly_is_bounded_too() -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\na: ")
        for _ in range(20):
            client.send(b"v" * 2_000)
            await asyncio.sleep(0.001)
        assert (await client.reply()).status == 431
        assert await client.closed() == b""


@pytest.mark.parametrize("tail", [b"3;", b"3\r\nabc\r\n0\r\ntrailer: "], ids=["chunk extension", "trailer"])
@served
async def test_front_chunk_extensions_and_trailers_are_bounded(tail: bytes) -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(POST + CHUNKED + b"\r\n" + tail)
        for _ in range(20):
            client.send(b"v" * 2_000)
            await asyncio.sleep(0.001)
        assert (await client.reply()).status == 431
        assert await client.closed() == b""


@served
async def test_front_slow_heads_time_out_and_silent_connections_close() -> None:
    async with (
        stack(Upstream(), server={"header_read_s": 0.3, "idle_s": 0.5}) as running,
        await running.client() as silent,
        await running.client() as slow,
        await running.client() as used,
    ):
        slow.send(b"GET /healthz HTTP/1.1\r\nhost:")
        used.send(get(b"/healthz"))
        assert (await used.reply()).status == 200
        for _ in range(10):
            await asyncio.sleep(0.05)
            slow.send(b" ")
        reply = await slow.reply()
        assert (reply.status, reply.reason) == (408, "request_timeout")
        assert await slow.closed() == b""
        assert await silent.closed() == b""  # nothing was asked, nothing is said
        assert await used.closed() == b""


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"foo/1"])
@served
async def test_front_upgrades_are_served_as_plain_http(protocol: bytes) -> None:
    """Java's HttpClient offers h2c on every request, those with a body too."""
    upstream = Upstream()
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\nhttp2-settings: AAMAAABk\r\n" % protocol
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(BODY, extra=AUTH + offer) + get(b"/healthz", offer) + get(b"/v1/../x", offer))
        assert (await client.reply()).status == 200
        assert upstream.seen[0].body == BODY
        names = {name for name, _ in upstream.seen[0].headers}
        assert not names & {b"upgrade", b"connection", b"http2-settings"}
        assert (await client.reply()).status == 200
        assert (await client.reply()).status == 404
        client.send(POST + offer + CHUNKED + b"\r\n")
        await asyncio.sleep(0.01)
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert (await client.reply()).status == 200
        assert upstream.seen[1].body == BODY


@served
async def test_front_speaks_http_1_0() -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(b"POST %b HTTP/1.0\r\n%b%b\r\n%b" % (PATH, AUTH, LENGTH, BODY))
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.closed() == b""
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await client.reply()).status == 200
        assert await client.closed() == b""


@served
async def test_front_connection_close_is_kept() -> None:
    async with stack(Upstream()) as running:
        for data in (post(BODY, extra=AUTH + b"connection: close\r\n"), get(b"/healthz", b"connection: close\r\n")):
            async with await running.client() as client:
                client.send(data + b"\r\n")
                reply = await client.reply()
                assert (reply.status, reply.headers["connection"]) == (200, "close")
                assert await client.closed() == b""

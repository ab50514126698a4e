"""Request bodies at the front door: limits, slow uploads, refusals before the upload, 100-continue."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.stack import AUTH, KEY, Stack, post, prompt, served, stack, until
from tests.e2e.upstream import Upstream

PATH = b"/v1/chat/completions"
POST = b"POST %b HTTP/1.1\r\nhost: x\r\n" % PATH
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
LIMIT = 33_554_432


def padded(size: int) -> bytes:
    """A chat body of exactly ``size`` bytes."""
    start = prompt("")
    return start.replace(b'"content": ""', b'"content": "%b"' % (b"x" * (size - len(start))))


@served
async def test_c5_a_body_of_exactly_the_limit_passes() -> None:
    upstream = Upstream(context_tokens=100_000_000)
    async with stack(upstream) as running:
        body = padded(LIMIT)
        assert len(body) == LIMIT
        assert (await running.post(body)).status == 200
        assert upstream.seen[0].body == body


@pytest.mark.parametrize("size", [130_000, 1_100_000, 8_500_000])
@served
async def test_c5_no_smaller_hidden_limit(size: int) -> None:
    upstream = Upstream(context_tokens=100_000_000)
    async with stack(upstream) as running, await running.client() as client:
        body = padded(size)
        client.send(POST + AUTH + CHUNKED)
        for start in range(0, size, 65_536):
            piece = body[start : start + 65_536]
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\n\r\n")
        assert (await client.reply()).status == 200
        assert upstream.seen[0].body == body


@served
async def test_c5_a_declared_length_over_the_limit_is_refused_at_once() -> None:
    upstream = Upstream()
    async with stack(upstream) as running, await running.client() as client:
        client.send(POST + AUTH + b"content-length: %d\r\n\r\n" % (LIMIT + 1))
        reply = await client.reply(2.0)  # nothing of the body was sent
        assert (reply.status, reply.reason, reply.headers["connection"]) == (413, "request_too_large", "close")
        assert "33,554,432" in reply.json["error"]["message"]
        assert (await running.record())["outcome"] == "refused"
        assert upstream.seen == []


@pytest.mark.parametrize("declared", [True, False])
@served
async def test_c5_who_sends_it_all_the_same_sees_the_413_and_no_reset(declared: bool) -> None:
    async with stack(Upstream(), server={"body_bytes_max": 100_000}) as running, await running.client() as client:
        size = 20_000_000
        client.send(POST + AUTH + (b"content-length: %d\r\n\r\n" % size if declared else CHUNKED))
        piece = b"x" * 100_000
        for _ in range(size // len(piece)):
            client.send(piece if declared else b"%x\r\n%b\r\n" % (len(piece), piece))
            await client.writer.drain()
        reply = await client.reply()
        assert reply.status == 413
        assert await client.closed() == b""
        assert (await running.record())["status"] == 413


@pytest.mark.parametrize("key", [b"", b"authorization: Bearer wrong\r\n"])
@served
async def test_front_401_comes_before_the_body_is_read(key: bytes) -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(POST + key + b"content-length: 30000000\r\n\r\n")
        reply = await client.reply(2.0)
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        assert await client.closed() == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [(AUTH + b"content-length: 40000000\r\n", 413), (b"content-length: 10\r\n", 401), (b"content-length: 0\r\n", 401)],
)
@served
async def test_front_who_waits_for_100_continue_is_refused_without_it(head: bytes, status: int) -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(POST + head + b"expect: 100-continue\r\n\r\n")
        assert (await client.reply(2.0)).status == status


@served
async def test_front_100_continue_is_sent_when_the_body_is_welcome() -> None:
    upstream = Upstream()
    body = prompt()
    async with stack(upstream) as running, await running.client() as client:
        client.send(POST + AUTH + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert (await client.reply(2.0)).status == 100
        client.send(body)
        assert (await client.reply(2.0)).status == 200
        assert upstream.seen[0].body == body
        assert upstream.seen[0].header(b"expect") is None


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@served
async def test_front_curl_uploads_two_megabytes(tmp_path: Path) -> None:
    upstream = Upstream(context_tokens=10_000_000)
    (tmp_path / "body").write_bytes(padded(2_000_000))
    async with stack(upstream) as running:

        def curl(*arguments: str) -> str:
            command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-m", "10", *arguments]
            url = f"http://127.0.0.1:{running.port}/v1/chat/completions"
            command += ["--data-binary", f"@{tmp_path / 'body'}", url]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        key = f"authorization: Bearer {KEY}"
        expect = "expect: 100-continue"
        assert await asyncio.to_thread(curl, "-H", key, "-H", expect) == "200"
        assert await asyncio.to_thread(curl, "-H", key, "-H", expect, "--http2") == "200"
        assert await asyncio.to_thread(curl, "-H", "x-api-key: wrong", "-H", expect) == "401"
        assert await asyncio.to_thread(curl, "-H", "x-api-key: wrong") == "401"
        assert len(upstream.seen) == 2


def held(running: Stack) -> tuple[int, int]:
    """Exchanges and permits now."""
    path = running.gateway.path
    return len(path.exchanges), sum(r.inflight for model in path.models.values() for r in model.pool)


@served
async def test_front_a_slow_upload_holds_nothing_and_times_out() -> None:
    upstream = Upstream()
    async with stack(upstream, server={"body_read_s": 0.4}) as running, await running.client() as client:
        tasks = len(running.gateway.path.tasks)
        client.send(POST + AUTH + b"content-length: 1000\r\n\r\n")
        for _ in range(8):
            client.send(b"x")
            await asyncio.sleep(0.1)  # longer in all than the limit on silence
            assert held(running) == (0, 0)
            assert len(running.gateway.path.tasks) == tasks
        reply = await client.reply(2.0)
        assert (reply.status, reply.reason) == (408, "request_timeout")
        assert await client.closed() == b""
        record = await running.record()
        assert (record["outcome"], record["status"]) == ("refused", 408)
        assert upstream.seen == []


@pytest.mark.parametrize("path", [PATH, b"/healthz"])
@served
async def test_front_a_malformed_chunk_is_refused_at_once(path: bytes) -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        client.send(b"POST %b HTTP/1.1\r\nhost: x\r\n%b%b5\r\nabcdeXX" % (path, AUTH, CHUNKED))
        reply = await client.reply(2.0)
        assert (reply.status, reply.reason) == (400, "invalid_request")
        assert await client.closed() == b""


@served
async def test_front_a_client_that_leaves_in_the_middle_of_its_upload_leaves_nothing() -> None:
    async with stack(Upstream()) as running:
        async with await running.client() as client:
            client.send(POST + AUTH + b"content-length: 1000\r\n\r\nabc")
            await until(lambda: len(running.gateway.path.fronts) == 1)
        await until(running.idle)


@served
async def test_front_a_large_body_for_control_is_refused_in_true_words() -> None:
    async with stack(Upstream()) as running:
        reply = await running.post(b"x" * 1_100_000, b"/v1/chat/completions/")
        assert reply.status == 413
        assert "1,048,576" in reply.json["error"]["message"]
        assert (await running.post(b"x" * 1_000_000, b"/v1/chat/completions/")).status == 404


@served
async def test_front_no_body_at_all_is_a_clear_400() -> None:
    async with stack(Upstream()) as running:
        for data in (post(b""), POST + AUTH + b"\r\n", POST + AUTH + CHUNKED + b"0\r\n\r\n"):
            reply = await running.ask(data)
            assert (reply.status, reply.reason) == (400, "invalid_request")

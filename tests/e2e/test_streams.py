"""Answers on their way through: the same bytes, at the same moment, and every kind of end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psutil
import pytest

from tests.e2e.stack import AUTH, Stack, post, prompt, served, stack, until
from tests.e2e.upstream import (
    CLOSE,
    CUT,
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Upstream,
    bytewise,
    chat,
    chunk,
    delta,
    event,
    response,
    role,
    stop,
    stream,
    usage,
)

STREAMED = prompt(stream=True)
COUNTED = prompt(stream=True, stream_options={"include_usage": True})
TOKENS = {"prompt": 7, "completion": 3}


def crlf(events: bytes) -> bytes:
    return events.replace(b"\n", b"\r\n")


TEXT = role() + delta("你好") + delta("🙂🏳️‍🌈") + delta("") + stop()
BODIES = {
    "text": TEXT + usage() + DONE,
    "crlf": crlf(TEXT + usage() + DONE),
    "comments and unknown fields": b": hi\n\nretry: 5\nid: 7\n\n" + TEXT + usage() + DONE,
    "tool calls": role()
    + event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 3, "id": "x", "odd": [1.0, None]}]}}]})
    + usage()
    + DONE,
}


@pytest.mark.parametrize("name", list(BODIES))
@served
async def test_b1_one_byte_at_a_time_is_the_same_bytes_and_counted(name: str) -> None:
    body = BODIES[name]
    upstream = Upstream()
    upstream.answers.append(list(bytewise([STREAM_HEAD, *[chunk(body[i : i + 1]) for i in range(len(body))]])))
    upstream.answers[0].append(LAST_CHUNK)  # type: ignore[attr-defined]
    async with stack(upstream) as running:
        reply = await running.post(COUNTED)
        assert (reply.body, reply.complete) == (body, True)
        record = await running.record()
        assert {key: record[key] for key in TOKENS} == TOKENS
        assert (record["outcome"], record["completed"], record.get("estimated", False)) == ("ok", True, False)
        assert record["ttft_ms"] > 0


@served
async def test_b1_lines_of_two_megabytes_pass() -> None:
    upstream = Upstream()
    body = role() + delta("x" * 2_000_000) + stop() + usage() + DONE
    upstream.answers += [stream(body), stream(*[body[i : i + 7_919] for i in range(0, len(body), 7_919)])]
    async with stack(upstream) as running:
        for _ in range(2):
            assert (await running.post(COUNTED)).body == body
        assert (await running.record(2))["completion"] == 3


@pytest.mark.parametrize("framing", ["length", "close", "chunked"])
@served
async def test_b1_every_framing_of_the_upstream_arrives_whole(framing: str) -> None:
    body = json.dumps({"choices": [{"message": {"content": "é" * 50_000}}]}, ensure_ascii=False).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    upstream = Upstream()
    match framing:
        case "length":
            upstream.answers.append([response(body)])
        case "close":
            upstream.answers.append([head + b"connection: close\r\n\r\n" + body[:10_000], 0.01, body[10_000:], CLOSE])
        case _:
            upstream.answers.append([head + b"transfer-encoding: chunked\r\n\r\n", chunk(body), LAST_CHUNK])
    async with stack(upstream) as running:
        reply = await running.post(prompt())
        assert (reply.status, reply.body, reply.complete) == (200, body, True)


@served
async def test_b2_each_chunk_arrives_before_the_next_is_sent() -> None:
    gates = [asyncio.Event() for _ in range(20)]
    pieces: list[bytes | asyncio.Event] = [role()]
    for index, gate in enumerate(gates):
        pieces += [gate, delta(f"t{index}")]
    upstream = Upstream()
    upstream.answers.append(stream(*pieces, stop(), DONE))
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(COUNTED))
        await client.head()
        assert await client.chunk() == role()
        for index, gate in enumerate(gates):
            gate.set()
            assert delta(f"t{index}").startswith(await client.chunk(0.5))
        while await client.chunk():
            pass


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}, {}])
@served
async def test_b3_the_client_sees_the_usage_it_asked_for_and_the_record_has_it_always(options: Any) -> None:
    asked = prompt(stream=True) if options is None else prompt(stream=True, stream_options=options)
    upstream = Upstream()
    upstream.answers.append(stream(role(), delta("a"), stop(), usage(), DONE))
    async with stack(upstream) as running:
        reply = await running.post(asked)
        wants = options is not None and options.get("include_usage", True)
        assert (b'"choices": []' in reply.body) is wants
        assert reply.body == role() + delta("a") + stop() + (usage() if wants else b"") + DONE
        assert json.loads(upstream.seen[0].body)["stream_options"]["include_usage"] is True if not wants else True
        record = await running.record()
        assert {key: record[key] for key in TOKENS} == TOKENS


@pytest.mark.parametrize("end", [CUT, CLOSE], ids=["reset", "closed"])
@served
async def test_b4_a_replica_that_dies_in_the_stream_leaves_one_error_event(end: Any) -> None:
    upstream = Upstream()
    upstream.answers.append(stream(role(), delta("one"), delta("two"), 0.02, end))
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(STREAMED))
        reply = await client.reply()
        assert not reply.complete
        events = reply.body.split(b"\n\n")
        assert events[:3] == [piece.rstrip() for piece in (role(), delta("one"), delta("two"))]
        (error,) = [json.loads(line.removeprefix(b"data: ")) for line in events[3:] if line]
        assert error["error"]["code"] == "upstream_error"
        assert b"[DONE]" not in reply.body
        assert b"finish_reason" not in reply.body
        assert await client.closed() == b""
        record = await running.record()
        assert (record["outcome"], record["completed"], record["estimated"]) == ("upstream_cut", False, True)
        assert record["completion"] == 2


@served
async def test_b4_in_the_middle_of_an_event_the_error_is_still_an_event_of_its_own() -> None:
    upstream = Upstream()
    upstream.answers.append(stream(role(), delta("whole"), delta("half")[:20], 0.02, CUT))
    async with stack(upstream) as running:
        last = (await running.post(COUNTED)).body.rstrip(b"\n").split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"


@served
async def test_b4_a_body_of_known_length_that_is_cut_does_not_end_cleanly() -> None:
    upstream = Upstream()
    upstream.answers.append([chat("x" * 5_000)[:-2_000], 0.02, CUT])
    async with stack(upstream) as running, await running.client() as client:
        client.send(post(prompt()))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.reply()
        assert (await running.record())["outcome"] == "upstream_cut"


@served
async def test_b5_the_engines_own_error_event_passes_and_is_recorded_as_one() -> None:
    failure = b'data: {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}\n\n'
    upstream = Upstream()
    upstream.answers.append(stream(role(), delta("a"), failure, DONE))
    async with stack(upstream) as running:
        reply = await running.post(STREAMED)
        assert (reply.body, reply.complete) == (role() + delta("a") + failure + DONE, True)
        assert (await running.record())["outcome"] == "upstream_error"


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 501])
@served
async def test_b5_the_engines_own_status_and_body_pass(status: int) -> None:
    body = b'{"error": {"message": "no", "type": "BadRequestError", "param": null, "code": %d}}' % status
    upstream = Upstream()
    upstream.default = [response(body, status)]
    async with stack(upstream) as running:
        reply = await running.post(STREAMED)
        assert (reply.status, reply.body) == (status, body)
        record = await running.record()
        assert record["outcome"] == ("upstream_rejected" if status < 500 else "upstream_error")


@served
async def test_b6_deltas_are_never_rebuilt() -> None:
    odd = (
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\\"a"}}],'
        b'"reasoning":"hm","new_field":{"z":1,"a":2}},"index":0}],"x":1.50,"x":2}\n\n'
    )
    upstream = Upstream()
    upstream.answers.append(stream(odd, stop(), usage(), DONE))
    async with stack(upstream) as running:
        assert (await running.post(STREAMED)).body == odd + stop() + DONE


@served
async def test_b7_silence_before_the_first_token_is_filled_with_comments() -> None:
    upstream = Upstream()
    upstream.answers.append([0.9, *stream(role(), delta("a"), stop(), usage(), DONE)])
    async with stack(upstream, server={"keepalive_s": 0.2}) as running, await running.client() as client:
        client.send(post(STREAMED))
        status, headers = await client.head()
        assert status == 200
        assert dict(headers)["content-type"].startswith("text/event-stream")
        parts = []
        while part := await client.chunk():
            parts.append(part)
        comments = [part for part in parts if part == b": keep-alive\n\n"]
        assert 1 <= len(comments) <= 5
        assert b"".join(part for part in parts if part not in comments) == role() + delta("a") + stop() + DONE


@served
async def test_b7_a_late_refusal_is_an_event_of_the_stream() -> None:
    upstream = Upstream()
    upstream.answers.append([0.6, response(b'{"error": {"message": "bad\nrequest", "code": 400}}', 400)])
    async with stack(upstream, server={"keepalive_s": 0.2}, model={"retry": {"attempts_max": 1}}) as running:
        reply = await running.post(STREAMED)
        assert (reply.status, reply.complete) == (200, False)
        events = [part for part in reply.body.split(b"\n\n") if part.startswith(b"data:")]
        assert len(events) == 1
        assert b"[DONE]" not in reply.body
        assert (await running.record())["outcome"] == "upstream_rejected"


@served
async def test_b7_calls_that_stream_nothing_get_no_comments() -> None:
    upstream = Upstream()
    upstream.answers.append([0.6, chat()])
    async with stack(upstream, server={"keepalive_s": 0.2}) as running:
        reply = await running.post(prompt())
        assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "hello")


def buffered(running: Stack) -> int:
    return sum(front.transport.get_write_buffer_size() for front in running.gateway.path.fronts)  # type: ignore[attr-defined]


@served
async def test_b8_a_client_that_stops_reading_is_bounded_and_cut() -> None:
    upstream = Upstream()
    filler = delta("x" * 60_000)
    upstream.answers.append(stream(role(), *[filler] * 1_700, DONE))  # 100 MB
    async with stack(upstream, model={"timeouts": {"write_stall_s": 0.8}}) as running:
        before = psutil.Process().memory_info().rss
        client = await running.stalled_client()
        client.send(post(STREAMED))
        seen = await upstream.call()
        await asyncio.sleep(0.5)
        assert upstream.inflight == 1
        assert buffered(running) < 1_000_000
        assert psutil.Process().memory_info().rss - before < 30_000_000  # the upstream's buffers are in here, too
        async with asyncio.timeout(3.0):
            await seen.gone.wait()
        assert (await running.record())["outcome"] == "client_stalled"
        client.leave()


@served
async def test_b8_a_slow_reader_slows_the_replica_and_gets_it_all() -> None:
    upstream = Upstream()
    filler = delta("x" * 60_000)
    upstream.answers.append(stream(role(), *[filler] * 300, DONE))  # 18 MB
    async with stack(upstream) as running, await running.stalled_client() as client:
        client.send(post(STREAMED))
        await upstream.call()
        await asyncio.sleep(0.2)
        assert upstream.inflight == 1  # it has not got rid of its answer
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        client.reader._limit = 2**20  # type: ignore[attr-defined]
        reply = await client.reply(20.0)
        assert reply.complete
        assert len(reply.body) == len(role()) + 300 * len(filler) + len(DONE)


@served
async def test_b9_the_first_token_is_no_role_chunk_and_no_comment() -> None:
    upstream = Upstream()
    upstream.answers.append(stream(role(), b": comment\n\n", 0.3, delta("a"), 0.1, stop(), usage(), DONE))
    async with stack(upstream) as running:
        await running.post(STREAMED)
        record = await running.record()
        assert 280 < record["ttft_ms"] < 390
        assert record["e2e_ms"] > record["ttft_ms"] + 80


@served
async def test_b4_http_1_0_streams_end_with_the_connection_and_cuts_are_resets() -> None:
    upstream = Upstream()
    upstream.answers += [
        stream(role(), delta("a"), stop(), usage(), DONE),
        stream(role(), delta("b"), 0.05, CUT),
    ]
    asked = b"POST /v1/chat/completions HTTP/1.0\r\n%bcontent-length: %d\r\n\r\n%b" % (AUTH, len(STREAMED), STREAMED)
    async with stack(upstream) as running:
        reply = await running.ask(asked)
        assert "transfer-encoding" not in reply.headers
        assert reply.body == role() + delta("a") + stop() + DONE
        with pytest.raises(ConnectionResetError):
            await running.ask(asked)


@served
async def test_e4_an_idle_connection_the_replica_closed_never_surfaces() -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        assert (await running.post(prompt())).status == 200
        await until(lambda: any(r.upstream.idle_connections for r in running.gateway.path.models["qwen"].pool))
        upstream.answers += [[CUT], [chat("again")]]  # closes the kept connection on the next request
        reply = await running.post(prompt())
        assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "again")
        assert (await running.record(2))["attempts"] == 1

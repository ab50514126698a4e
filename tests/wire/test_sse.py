"""The stream watcher: the bytes that go out and the facts found, however the stream is cut into reads."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import Endpoint, Usage
from gateway.wire.sse import EVENT_BYTES_MAX, HELD_BYTES_MAX, TAIL_BYTES, SseWatcher
from gateway.wire.watch import Watcher, watch
from tests.wire import streams

SSE = b"text/event-stream; charset=utf-8"
CHAT_USAGE = Usage(prompt=11, completion=3, cached=8, reasoning=1)
CRLF = streams.CHAT_FULL.replace(b"\n", b"\r\n")
ODD = (
    b"\n\r\n: comment\n\ndata:"
    + streams.HELLO[6:]
    + b"id: 7\nretry: 3\nevent: x\n"
    + streams.CHINESE
    # one event on two data lines
    + streams.HELLO[:-3].replace(b',"choices"', b'\ndata: ,"choices"')
    + b"}\n\ndata: {not json}\n\n"
    + streams.USAGE
    + streams.DONE
)
CASES = {
    "chat": (Endpoint.CHAT, streams.CHAT_FULL, CHAT_USAGE, 4),
    "chat_crlf": (Endpoint.CHAT, CRLF, CHAT_USAGE, 4),
    "chat_odd": (Endpoint.CHAT, ODD, CHAT_USAGE, 3),
    "completions": (Endpoint.COMPLETIONS, streams.COMPLETIONS, Usage(4, 1), 1),
    "messages": (Endpoint.MESSAGES, streams.MESSAGES, Usage(20, 5, 16), 2),
    "responses": (Endpoint.RESPONSES, streams.RESPONSES, Usage(9, 2, 4, 1), 2),
}


def facts(watcher: Watcher) -> tuple[object, ...]:
    return (
        watcher.tokens,
        watcher.first_token,
        watcher.usage,
        watcher.finish_reason,
        watcher.failed,
        watcher.completed,
        watcher.response_id,
        watcher.has_content,
    )


def run(endpoint: Endpoint, pieces: list[bytes], *, strip: bool = False) -> tuple[bytes, tuple[object, ...]]:
    watcher = watch(endpoint, SSE, strip)
    out = [watcher.feed(piece) for piece in pieces]
    out.append(watcher.finish())
    return b"".join(out), facts(watcher)


def without_usage(stream: bytes) -> bytes:
    events = stream.split(b"\n\n")
    return b"\n\n".join(event for event in events if b'"choices":[],"usage":{' not in event)


@pytest.mark.parametrize("case", CASES)
def test_f4_usage_tokens_and_end_are_found_in_every_family(case: str) -> None:
    endpoint, stream, usage, tokens = CASES[case]
    out, found = run(endpoint, [stream])
    assert out == stream
    finish = {"messages": "end_turn", "responses": "completed", "completions": "length", "chat_odd": None}
    ids = {"messages": "msg_1", "responses": "resp_1", "completions": "cmpl-1"}
    expected_id = ids.get(case, streams.CHAT_ID)
    assert found == (tokens, True, usage, finish.get(case, "stop"), False, True, expected_id, True)


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_b1_every_split_point_gives_the_same_bytes(case: str, strip: bool) -> None:
    endpoint, stream, _, _ = CASES[case]
    whole = run(endpoint, [stream], strip=strip)
    for cut in range(len(stream) + 1):
        assert run(endpoint, [stream[:cut], stream[cut:]], strip=strip) == whole, cut
    assert run(endpoint, [bytes([byte]) for byte in stream], strip=strip) == whole


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("case", CASES)
@given(cuts=st.lists(st.integers(0, 4_000), max_size=12))
@settings(max_examples=40, deadline=None)
def test_b1_random_chunkings_give_the_same_bytes(case: str, strip: bool, cuts: list[int]) -> None:
    endpoint, stream, _, _ = CASES[case]
    edges = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert run(endpoint, pieces, strip=strip) == run(endpoint, [stream], strip=strip)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES])
def test_b2_bytes_go_out_as_they_come_in(endpoint: Endpoint) -> None:
    watcher = watch(endpoint, SSE, strip_usage=False)
    stream = streams.CHAT_FULL
    for at in range(0, len(stream), 7):
        assert watcher.feed(stream[at : at + 7]) == stream[at : at + 7]


def test_b2_whole_events_are_not_held_for_a_later_one_when_stripping() -> None:
    watcher = watch(Endpoint.CHAT, SSE, strip_usage=True)
    assert watcher.feed(streams.ROLE + streams.HELLO[:30]) == streams.ROLE
    assert watcher.feed(streams.HELLO[30:]) == streams.HELLO


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_b3_only_the_usage_only_chunk_is_stripped(line_end: bytes) -> None:
    empty = streams.USAGE.split(b',"usage"')[0] + b',"usage":null}\n\n'
    continuous = streams.HELLO[:-3] + b',"usage":{"prompt_tokens":11,"completion_tokens":1}}\n\n'
    stream = (streams.ROLE + continuous + empty + streams.STOP).replace(b"\n", line_end)
    end = streams.DONE.replace(b"\n", line_end)
    usage = streams.USAGE.replace(b"\n", line_end)
    out, found = run(Endpoint.CHAT, [stream + usage + end], strip=True)
    assert out == stream + end
    assert found[2] == CHAT_USAGE
    assert run(Endpoint.CHAT, [stream + usage + end], strip=False)[0] == stream + usage + end


def test_b3_a_usage_chunk_that_ends_the_body_without_a_blank_line_is_stripped_too() -> None:
    out, found = run(Endpoint.CHAT, [streams.HELLO, streams.USAGE[:-2]], strip=True)
    assert (out, found[2]) == (streams.HELLO, CHAT_USAGE)


def test_b3_an_open_event_is_given_up_past_4_kib_and_held_below() -> None:
    start = b'data: {"id":"x","choices":[],"pad":"'
    watcher = watch(Endpoint.CHAT, SSE, strip_usage=True)
    assert watcher.feed(start) == b""
    pad = b"p" * HELD_BYTES_MAX
    assert watcher.feed(pad) == start + pad
    end = b'","usage":{"prompt_tokens":5}}\n\n'
    assert watcher.feed(end) == end  # its start went out, so the rest must
    assert watcher.usage == Usage(prompt=5)
    assert watcher.feed(streams.USAGE) == b""


def test_b3_held_bytes_of_a_stream_that_ends_inside_an_event_come_out_at_the_end() -> None:
    watcher = watch(Endpoint.CHAT, SSE, strip_usage=True)
    assert watcher.feed(streams.HELLO + streams.HELLO[:20]) == streams.HELLO
    assert watcher.finish() == streams.HELLO[:20]
    assert watcher.finish() == b""


@pytest.mark.parametrize(
    ("endpoint", "event"),
    [
        (Endpoint.CHAT, streams.ERROR),
        (Endpoint.COMPLETIONS, b'data: {"object":"error","message":"boom","type":"x","code":500}\n\n'),
        (Endpoint.MESSAGES, streams.named("error", '{"type":"error","error":{"type":"api_error","message":"b"}}')),
        (Endpoint.RESPONSES, streams.named("error", '{"type":"error","code":"server_error","message":"b"}')),
        (Endpoint.RESPONSES, streams.ERROR),
        (
            Endpoint.RESPONSES,
            streams.named("response.failed", '{"type":"response.failed","response":{"id":"r","status":"failed"}}'),
        ),
    ],
)
def test_b5_the_engines_own_error_passes_and_is_noted(endpoint: Endpoint, event: bytes) -> None:
    out, found = run(endpoint, [event], strip=endpoint is Endpoint.CHAT)
    assert out == event
    assert found[4] is True
    assert found[0] == 0


@pytest.mark.parametrize("event", [streams.PING, streams.ROLE, streams.STOP, streams.USAGE, streams.DONE])
def test_b9_what_carries_no_token_is_no_first_token(event: bytes) -> None:
    watcher = watch(Endpoint.CHAT, SSE, strip_usage=False)
    watcher.feed(event)
    assert (watcher.first_token, watcher.tokens, watcher.has_content) == (False, 0, False)


@pytest.mark.parametrize(
    ("event", "visible"),
    [
        (streams.HELLO, True),
        (streams.TOOL, True),
        (streams.REASONING, False),
        (streams.REASONING.replace(b"reasoning", b"reasoning_content"), False),
    ],
)
def test_b9_text_reasoning_and_tool_calls_are_first_tokens(event: bytes, visible: bool) -> None:
    watcher = watch(Endpoint.CHAT, SSE, strip_usage=False)
    watcher.feed(streams.ROLE + event)
    assert (watcher.first_token, watcher.tokens, watcher.has_content) == (True, 1, visible)


def test_b4_a_cut_stream_is_not_completed() -> None:
    out, found = run(Endpoint.CHAT, [streams.CHAT])
    assert out == streams.CHAT
    assert found[5] is False
    assert found[2] is None


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("size", [1_000, 65_536])
def test_b1_a_2_mb_line_passes_in_bounded_memory_and_hides_nothing_after_it(strip: bool, size: int) -> None:
    line = streams.chat_chunk('{"content":"%s"}' % ("a" * 2_000_000))
    stream = streams.ROLE + line + streams.HELLO + streams.USAGE + streams.DONE
    watcher = watch(Endpoint.CHAT, SSE, strip)
    assert isinstance(watcher, SseWatcher)
    out = []
    for at in range(0, len(stream), size):
        out.append(watcher.feed(stream[at : at + size]))
        assert len(watcher._open) <= EVENT_BYTES_MAX + 2 * TAIL_BYTES + size
    out.append(watcher.finish())
    assert b"".join(out) == (without_usage(stream) if strip else stream)
    assert (watcher.tokens, watcher.usage, watcher.completed) == (2, CHAT_USAGE, True)


def test_f4_usage_and_end_of_an_oversized_last_response_event_are_found() -> None:
    start, end = streams.RESPONSES.split(b'[{"type":"message"}]')
    stream = start + b'[{"type":"message","text":"' + b"a" * 2_000_000 + b'"}]' + end
    for size in (4_096, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        out, found = run(Endpoint.RESPONSES, pieces)
        assert out == stream
        assert found[2:6] == (Usage(9, 2, 4, 1), "completed", False, True)


@pytest.mark.parametrize("payload", [b"{", b"[]", b"null", b'{"choices":5}', b'{"choices":[{"delta":7}]}', b'"x"'])
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES])
def test_b6_what_cannot_be_read_passes_unread(endpoint: Endpoint, payload: bytes) -> None:
    event = b"data: " + payload + b"\n\n"
    out, found = run(endpoint, [event], strip=True)
    assert out == event
    assert found[:2] == (0, False)


def test_b9_anthropic_tool_use_is_a_token() -> None:
    block = (
        '{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}'
    )
    watcher = watch(Endpoint.MESSAGES, SSE, strip_usage=False)
    watcher.feed(streams.named("content_block_start", block))
    assert (watcher.tokens, watcher.has_content) == (1, True)


def test_f4_anthropic_input_without_the_cached_part_is_completed_by_it() -> None:
    delta = (
        '{"type":"message_delta","delta":{},"usage":{"input_tokens":4,"output_tokens":5,"cache_read_input_tokens":16}}'
    )
    watcher = watch(Endpoint.MESSAGES, SSE, strip_usage=False)
    watcher.feed(streams.named("message_delta", delta))
    assert watcher.usage == Usage(prompt=20, completion=5, cached=16)

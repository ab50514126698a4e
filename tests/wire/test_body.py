"""Request bodies: what is read agrees with the engine's parser, what is forwarded is the client's."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.domain import TextSize
from gateway.errors import InvalidRequest
from gateway.wire.body import BodyFacts, parse, rewrite
from gateway.wire.endpoints import ROUTES

JSON = b"application/json"
LAX_BOOL = TypeAdapter(bool)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    ["model", "stream", "stream_options", "messages", "tools", "max_tokens", "prompt", "input", "system", "extra", "é"]
)


def facts(body: bytes, path: bytes = b"/v1/chat/completions") -> BodyFacts:
    return parse(ROUTES[path], body, JSON)


def of(path: bytes = b"/v1/chat/completions", **members: Any) -> BodyFacts:
    return facts(json.dumps({"model": "q", **members}).encode(), path)


def engine_bool(value: Any) -> bool:
    try:
        return LAX_BOOL.validate_python(value)
    except ValidationError:
        return False


@given(st.lists(st.tuples(names, values), max_size=8), st.booleans())
@settings(max_examples=200, deadline=None)
def test_c1_parse_agrees_with_the_engines_parser_on_any_object(
    members: list[tuple[str, Any]], ascii_only: bool
) -> None:
    pairs = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=ascii_only)}" for key, value in members)
    body = ("{" + ", ".join(pairs) + "}").encode("utf-8", "surrogatepass")
    seen = json.loads(body)
    model = seen.get("model")
    for path in (b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/v1/embeddings"):
        if model is not None and not isinstance(model, str):
            with pytest.raises(InvalidRequest):
                facts(body, path)
        else:
            found = facts(body, path)
            assert found.model == model
            assert found.stream is (path != b"/v1/embeddings" and engine_bool(seen.get("stream")))


@given(st.dictionaries(st.text(), values, max_size=6), st.booleans(), st.integers(0, 3))
@example({"model": "a", "stream_options": None}, True, 0)
@example({"stream_options": {"continuous_usage_stats": True}}, True, 0)
@settings(max_examples=200, deadline=None)
def test_c1_rewrite_changes_only_what_it_should(members: dict[str, Any], usage: bool, indent: int) -> None:
    body = json.dumps(members, indent=indent or None).encode()
    after = json.loads(rewrite(body, model="real", include_usage=usage))
    expected: dict[str, Any] = {**members, "model": "real"}
    if usage:
        options = members.get("stream_options")
        if options is None or isinstance(options, dict):
            options = {**(options or {}), "include_usage": True}
            options.pop("continuous_usage_stats", None)  # beside include_usage it puts usage into every chunk
        expected["stream_options"] = options
    assert after == expected
    assert list(after) == list(expected)


def test_c1_untouched_values_keep_their_bytes_and_order() -> None:
    body = (
        b'{ "temperature" : 1.0e0, "model":"alias", "top_p":0.10000000000000000001,"seed":12345678901234567890123,'
        b'\n "messages":[{"role":"\\u0075ser", "content":"\\ud83d\\ude00 \\/ \xe4\xbd\xa0"} ],"x":[1 ,2],"y":"\\ud800"}'
    )
    assert rewrite(body, model="real", include_usage=True) == (
        b'{"temperature":1.0e0,"model":"real","top_p":0.10000000000000000001,"seed":12345678901234567890123,'
        b'"messages":[{"role":"\\u0075ser", "content":"\\ud83d\\ude00 \\/ \xe4\xbd\xa0"} ],"x":[1 ,2],"y":"\\ud800",'
        b'"stream_options":{"include_usage":true}}'
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"allowed","model":"forbidden"}',
        b'{"model":"allowed","\\u006dodel":"forbidden"}',
        b'{"\\u006dodel":5,"model":"forbidden"}',
        b' {"model":"allowed","x":{"model":"y"},"model" : "forb\\u0069dden"} ',
    ],
)
def test_c1_of_duplicate_keys_the_last_wins_as_for_the_engine(body: bytes) -> None:
    assert facts(body).model == json.loads(body)["model"] == "forbidden"
    assert json.loads(rewrite(body, model="real"), object_pairs_hook=lambda pairs: pairs)[0] == ("model", "real")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"null",
        b"{",
        b'{"model":"q"} x',
        b'{"model":"q",}',
        b"{'model':'q'}",
        b'{"model":5}',
        b'{"model":["q"]}',
        b'{"model":"\xff"}',
        b'\xef\xbb\xbf{"model":"q"}',
        '{"model":"q"}'.encode("utf-16"),
        '{"model":"q"}'.encode("utf-16-le"),
        '{"model":"q"}'.encode("utf-32-le"),
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_c1_only_what_is_no_json_object_with_a_model_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        facts(body)


@pytest.mark.parametrize(
    "body", [b'{"canary-key":canary}', b'{"model":{"canary":1}}', b'["canary"]', b'{"model":"\xffcanary"}']
)
def test_g2_refusals_never_quote_the_body(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        facts(body)
    assert "canary" not in refusal.value.message


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (0, None), (-5, None), (1.5, None), ("100", None), (True, None), (10**30, None), ([], None), (7, 7)],
)
def test_f2_odd_max_tokens_are_no_bound_and_no_error(value: Any, expected: int | None) -> None:
    assert of(max_tokens=value).max_tokens == expected
    assert of(b"/v1/messages", max_tokens=value).max_tokens == expected
    assert of(b"/v1/responses", max_output_tokens=value).max_tokens == expected


def test_f2_the_greater_of_both_limits_counts() -> None:
    assert of(max_tokens=10, max_completion_tokens=30).max_tokens == 30
    assert of(max_tokens=40, max_completion_tokens=None).max_tokens == 40
    assert of(b"/v1/completions", max_tokens=10, max_completion_tokens=30).max_tokens == 10
    assert facts(b'{"max_tokens":1e999,"max_completion_tokens":9}').max_tokens == 9


@pytest.mark.parametrize(
    ("options", "wants"),
    [
        (None, False),
        ({}, True),
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ("x", False),
        ([], False),
    ],
)
def test_b3_usage_is_wanted_as_the_engine_reads_it(options: Any, wants: bool) -> None:
    assert of(stream=True, stream_options=options).wants_usage is wants


@pytest.mark.parametrize(
    "content", [None, 5, 1.5, True, {}, [], [None], [5], [[]], [{}], {"text": None}, [{"type": "text", "text": 5}]]
)
@pytest.mark.parametrize("path", [path for path, route in ROUTES.items() if not route.multipart])
def test_c1_odd_content_is_left_to_the_engine(path: bytes, content: Any) -> None:
    odd = {
        "messages": [{"role": "martian", "content": content}],
        "prompt": content,
        "input": content,
        "system": content,
    }
    assert of(path, **odd).model == "q"
    assert of(path, messages=content, tools=content, query=content, documents=content, tokens=content).model == "q"


def test_c1_deep_nesting_lone_surrogates_and_bad_utf8_in_content_pass() -> None:
    deep = b'{"model":"q","messages":[{"content":' + b"[" * 300 + b'"a"' + b"]" * 300 + b"}]}"
    assert facts(deep).size == TextSize(narrow=1, messages=1)
    assert facts(b'{"messages":[{"role":"user","content":"ab\\ud83d"}]}').size == TextSize(2, 1, 1, three_byte=1)
    assert facts(b'{"messages":[{"role":"user","content":"ab\xff"}]}').size == TextSize(2, 1, 1, three_byte=1)
    assert facts(b'{"messages":[{"role":"user","content":"abc","x":1e999}]}').size.narrow >= 3


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 1_000}}


@pytest.mark.parametrize(
    ("path", "members", "size"),
    [
        (
            b"/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hello 你好"}]},
            TextSize(6, 2, 1, three_byte=2),
        ),
        (
            b"/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, IMAGE, IMAGE]}]},
            TextSize(2, 0, 1, 2),
        ),
        (
            b"/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A" * 999}}]}]},
            TextSize(0, 0, 1, 1),
        ),
        (
            b"/v1/chat/completions",
            {
                "messages": [
                    {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": '{"a":1}'}}]}
                ]
            },
            TextSize(7, 0, 1, digits=1),
        ),
        (b"/v1/completions", {"prompt": "Hello"}, TextSize(5)),
        (b"/v1/completions", {"prompt": ["Hello", "你好"]}, TextSize(5, 2, three_byte=2)),
        (b"/v1/completions", {"prompt": [1, 2, 3]}, TextSize(tokens=3)),
        (b"/v1/completions", {"prompt": [[1, 2, 3], [4]]}, TextSize(tokens=4)),
        (b"/v1/completions", {"prompt": []}, TextSize()),
        (b"/v1/responses", {"input": "Hello", "instructions": "Be brief"}, TextSize(13, 0, 1)),
        (
            b"/v1/responses",
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                    {"type": "function_call_output", "call_id": "c1", "output": "42"},
                ]
            },
            TextSize(4, 0, 2, digits=2),
        ),
        (
            b"/v1/messages",
            {
                "system": [{"type": "text", "text": "Sys", "cache_control": {"type": "ephemeral"}}],
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "A" * 999}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "done"}]},
                ],
            },
            TextSize(7, 0, 2, 1),
        ),
        (b"/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hey"}]}, TextSize(3, 0, 1)),
        (b"/v1/embeddings", {"input": ["ab", "cd"]}, TextSize(4)),
        (b"/v1/rerank", {"query": "ab", "documents": ["cd", {"text": "ef"}]}, TextSize(6)),
        (b"/score", {"text_1": "ab", "text_2": ["cd", "e"]}, TextSize(5)),
        (b"/tokenize", {"prompt": "abc"}, TextSize(3)),
        (b"/detokenize", {"tokens": [5, 6]}, TextSize(tokens=2)),
    ],
)
def test_c6_text_is_counted_and_media_is_not(path: bytes, members: dict[str, Any], size: TextSize) -> None:
    assert of(path, **members).size == size


def test_c6_tools_and_schemas_weigh_their_bytes() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    size = of(messages=[], tools=[tool, tool]).size
    assert size == TextSize(narrow=len(json.dumps([tool, tool])), messages=2)  # one each
    assert of(messages=[], tools=None, response_format=None).size == TextSize()


def test_a6_a_body_of_countless_tiny_strings_is_weighed_unopened_without_its_images() -> None:
    words = [{"role": "user", "content": "hi"}] * 60_000
    image = {"role": "user", "content": [IMAGE]}
    size = of(messages=[image, *words]).size
    assert size.images == 1
    assert 120_000 < size.narrow < 60_000 * 40


def test_parse_reads_the_previous_response() -> None:
    assert of(b"/v1/responses", previous_response_id="resp_1").previous_response_id == "resp_1"
    assert of(b"/v1/responses", previous_response_id=5).previous_response_id is None


def test_c1_half_emojis_reach_the_engine_in_their_places() -> None:
    body = rb'{"model":"a","x":"\\ud800 \ud83d","messages":[{"content":"\ude00\ud83d\ude00\uD83D"}]}'
    expected = body.replace(b'"a"', b'"b"')
    assert rewrite(body, model="b") == expected
    assert facts(body).size == TextSize(0, 3, 1, three_byte=3)


@pytest.mark.parametrize("repeats", [1, 60, 5_000])
@pytest.mark.parametrize("turns", [1, 7, 400])
def test_c6_kinds_of_characters_are_told_in_short_and_long_prompts(repeats: int, turns: int) -> None:
    line = "Zeile 12: größer, 你好世界; 345.67 Привет\n"
    text = line * repeats
    cuts = [len(text) * i // turns for i in range(turns + 1)]
    parts = [text[start:end] for start, end in pairwise(cuts)]
    size = of(messages=[{"role": "user", "content": part} for part in parts]).size
    assert size.narrow + size.wide == len(text)
    near = 0 if len(text) < 512 else 0.12 * len(text)  # a long prompt is sampled
    assert abs(size.wide - 12 * repeats) <= near
    assert abs(size.digits - 7 * repeats) <= near
    assert abs(size.three_byte - 4 * repeats) <= near


def test_c6_rows_of_a_table_are_not_sampled_at_one_column() -> None:
    for width in range(8, 140, 3):
        row = "1" * (width // 2) + "x" * (width - width // 2 - 1) + "\n"
        size = of(messages=[{"role": "user", "content": row * (60_000 // width)}]).size
        assert 0.4 < size.digits / size.narrow < 0.55, width

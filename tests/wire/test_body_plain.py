"""A chat of plain text is read in one go, and must be read as any other body is."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import body as wire_body
from gateway.wire.body import BodyFacts, parse
from gateway.wire.endpoints import ROUTES

CHAT = ROUTES[b"/v1/chat/completions"]
odd = st.sampled_from([None, True, False, 0, 1, -1, 2**70, 1.5, "true", "x", [], {}, [1], {"a": 1}])
text = st.text(max_size=40)
turns = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), st.one_of(text, odd), max_size=4),
    max_size=4,
)
plain_turns = st.lists(st.fixed_dictionaries({"role": text, "content": text}), max_size=5)
members = {
    "model": st.one_of(text, st.none()),
    "messages": st.one_of(plain_turns, turns, odd),
    "stream": odd,
    "stream_options": st.one_of(odd, st.dictionaries(st.sampled_from(["include_usage", "x"]), odd, max_size=2)),
    "max_tokens": st.one_of(st.integers(-5, 10**9), odd),
    "max_completion_tokens": st.one_of(st.integers(-5, 10**9), odd),
    "tools": odd,
    "response_format": odd,
    "previous_response_id": st.one_of(odd, text),
    "temperature": odd,
}


def _carefully(raw: bytes) -> BodyFacts:
    with patch.object(wire_body, "_plain_chat", return_value=None):
        return parse(CHAT, raw, b"application/json")


@given(st.fixed_dictionaries({}, optional=members))
def test_plain_and_careful_reading_agree(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields).encode()
    assert parse(CHAT, raw, b"application/json") == _carefully(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"a","messages":[{"role":"user","content":"hi"}],"model":"b"}',
        b'{"messages":[{"role":"user","content":"hi"}],"messages":[{"role":"user","content":"longer"}]}',
        b'{"messages":[{"content":"hi"}]}',
        b'{"messages":[{"role":"user","content":"\\ud83d\\ude00 \\u4f60"}],"mo\\u0064el":"m"}',
    ],
)
def test_odd_spellings_are_read_alike(raw: bytes) -> None:
    assert parse(CHAT, raw, b"application/json") == _carefully(raw)


def test_the_shape_of_most_calls_is_plain() -> None:
    raw = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":5,"temperature":0.1}'
    with patch.object(wire_body, "_open", side_effect=AssertionError("opened")):
        assert parse(CHAT, raw, b"").max_tokens == 5

"""OpenAI's shapes as vLLM writes them: stream events, whole answers, errors.

Readers note in a ``Facts`` what a piece of an answer says. They are typed decodes of the few members that matter;
anything else in an event is skipped over, and what does not fit the types is let pass unread.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from gateway.errors import GatewayError
from gateway.wire.facts import Facts
from gateway.wire.usage import UsageReport

DONE: Final = b"[DONE]"


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # before vLLM 0.12
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    """One choice: ``delta`` of a chat chunk, ``message`` of a whole chat answer, ``text`` of a completion."""

    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    id: str | None = None
    choices: list[_Choice] | None = None
    usage: UsageReport | None = None


class _Failure(msgspec.Struct, gc=False):
    error: Any = None
    object: str | None = None  # {"object": "error"} before vLLM 0.10
    type: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    status: str | None = None
    usage: UsageReport | None = None
    output: list[_Item] = []


class _ResponseEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: msgspec.Raw = msgspec.Raw()
    response: _Response | None = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_FAILURE: Final = msgspec.json.Decoder(_Failure)
_RESPONSE: Final = msgspec.json.Decoder(_Response)
_RESPONSE_EVENT: Final = msgspec.json.Decoder(_ResponseEvent)
_ENDINGS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_ENDING_TYPE: Final = re.compile(rb'"type"\s*:\s*"response\.(completed|incomplete|failed)"')
_EMPTY: Final = frozenset({b"", b'""', b"null", b"{}"})


def read_chunk(facts: Facts, payload: bytes) -> bool:
    """Note what one stream event of chat, completions or transcriptions says; return whether it only tells usage."""
    if payload[:1] != b"{":
        facts.completed = facts.completed or payload.strip() == DONE
        return False
    try:
        chunk = _CHUNK.decode(payload)
    except msgspec.DecodeError:
        return False
    choices = chunk.choices
    if facts.response_id is None:
        facts.response_id = chunk.id
    if chunk.usage is not None:
        facts.saw_usage(chunk.usage)
    if choices is None:
        facts.failed = facts.failed or is_failure(payload)
        return False
    _read_choices(facts, choices)
    return not choices and chunk.usage is not None


def _read_choices(facts: Facts, choices: list[_Choice]) -> None:
    spoke = visible = False
    for choice in choices:
        if choice.finish_reason is not None:
            facts.finish_reason = choice.finish_reason
        delta = choice.delta or choice.message
        if choice.text or (delta is not None and (delta.content or delta.tool_calls)):
            visible = True
        elif delta is not None and (delta.reasoning or delta.reasoning_content):
            spoke = True
    if spoke or visible:
        facts.saw_token(visible=visible)


def read_response_event(facts: Facts, payload: bytes) -> bool:
    """Note what one event of a ``/v1/responses`` stream says; never one to strip (returns False)."""
    try:
        event = _RESPONSE_EVENT.decode(payload)
    except msgspec.DecodeError:
        return False
    kind = event.type
    if kind.endswith(".delta"):
        if bytes(event.delta) not in _EMPTY:
            facts.saw_token(visible="reasoning" not in kind)
    elif event.response is not None:
        _read_response(facts, event.response)
        if kind in _ENDINGS:
            _end_response(facts, kind.removeprefix("response."))
    elif kind == "error" or (not kind and is_failure(payload)):
        facts.failed = True
    return False


def _read_response(facts: Facts, response: _Response) -> None:
    facts.response_id = response.id or facts.response_id
    facts.saw_usage(response.usage)
    facts.failed = facts.failed or response.status == "failed"


def _end_response(facts: Facts, status: str) -> None:
    facts.completed = True
    facts.finish_reason = status
    facts.failed = facts.failed or status == "failed"


def read_response_tail(facts: Facts, tail: bytes) -> None:
    """Note the ending of a responses stream whose last event was too large to keep: ``tail`` is that event's end."""
    endings = _ENDING_TYPE.findall(tail)
    if endings:
        _end_response(facts, endings[-1].decode())


def read_body(facts: Facts, body: bytes) -> None:
    """Note what a whole JSON answer of any OpenAI endpoint but ``/v1/responses`` says."""
    chunk = _CHUNK.decode(body)
    facts.response_id = chunk.id
    facts.saw_usage(chunk.usage)
    _read_choices(facts, chunk.choices or [])
    facts.failed = chunk.choices is None and is_failure(body)


def read_response_body(facts: Facts, body: bytes) -> None:
    """Note what a whole JSON answer of ``/v1/responses`` says."""
    response = _RESPONSE.decode(body)
    _read_response(facts, response)
    facts.finish_reason = response.status
    for item in response.output:
        facts.saw_token(visible=item.type != "reasoning")
    facts.failed = facts.failed or (response.status is None and is_failure(body))


def is_failure(payload: bytes) -> bool:
    """Whether a JSON object is an engine's error, in any of the shapes vLLM has had for it."""
    try:
        failure = _FAILURE.decode(payload)
    except msgspec.DecodeError:
        return False
    return bool(failure.error) or "error" in (failure.object, failure.type)


def _error_member(error: GatewayError) -> dict[str, str | None]:
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: GatewayError) -> bytes:
    """Return ``error`` as the JSON body OpenAI's clients expect."""
    return msgspec.json.encode({"error": _error_member(error)})


def sse_error(error: GatewayError) -> bytes:
    """Return ``error`` as the event that ends a broken chat or completions stream."""
    return b"data: " + error_body(error) + b"\n\n"


def sse_response_error(error: GatewayError) -> bytes:
    """Return ``error`` as the event that ends a broken ``/v1/responses`` stream."""
    event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"

"""Anthropic's shapes as vLLM writes them on ``/v1/messages``: stream events, whole answers, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.errors import GatewayError
from gateway.wire.facts import Facts
from gateway.wire.usage import UsageReport


class _Block(msgspec.Struct, gc=False):
    """A content block, or a delta of one (whose types end in ``_delta``)."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    id: str | None = None
    type: str = ""
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: UsageReport | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Block | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: UsageReport | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_MESSAGE: Final = msgspec.json.Decoder(_Message)

_TYPES_BY_STATUS: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def read_event(facts: Facts, payload: bytes) -> bool:
    """Note what one event of a ``/v1/messages`` stream says; never one to strip (returns False)."""
    try:
        event = _EVENT.decode(payload)
    except msgspec.DecodeError:
        return False
    match event.type:
        case "content_block_delta" | "content_block_start":
            _read_block(facts, event.delta or event.content_block or _Block())
        case "message_start" if event.message is not None:
            facts.response_id = event.message.id
            facts.saw_usage(event.message.usage)
        case "message_delta":
            facts.saw_usage(event.usage)
            if event.delta is not None:
                facts.finish_reason = event.delta.stop_reason or facts.finish_reason
        case "message_stop":
            facts.completed = True
        case "error":
            facts.failed = True
    return False


def _read_block(facts: Facts, block: _Block) -> None:
    if block.text or block.partial_json or block.type == "tool_use":
        facts.saw_token(visible=True)
    elif block.thinking:
        facts.saw_token(visible=False)


def read_body(facts: Facts, body: bytes) -> None:
    """Note what a whole JSON answer of ``/v1/messages`` says."""
    message = _MESSAGE.decode(body)
    facts.response_id = message.id
    facts.finish_reason = message.stop_reason
    facts.saw_usage(message.usage)
    for block in message.content or []:
        _read_block(facts, block)
    facts.failed = message.type == "error"


def error_body(error: GatewayError) -> bytes:
    """Return ``error`` as the JSON body Anthropic's clients expect."""
    kind = _TYPES_BY_STATUS.get(error.status, "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})


def sse_error(error: GatewayError) -> bytes:
    """Return ``error`` as the event that ends a broken ``/v1/messages`` stream."""
    return b"event: error\ndata: " + error_body(error) + b"\n\n"

"""Bodies of Anthropic's ``/v1/messages``: named events, one content block per kind of token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from gateway.domain import Usage
from gateway.sim.answer import Answer, Kind, Piece, ToolCall
from gateway.sim.shapes import Heading, encode, event

_STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
)


class MessagesShape:
    """``message_start``, blocks (start, deltas, stop), ``message_delta`` with usage, ``message_stop``."""

    def __init__(self, heading: Heading, tool: ToolCall | None) -> None:
        self._id = f"msg_{heading.id}"
        self._model = heading.model
        self._tool = tool
        self._open: Kind | None = None
        self._index = -1

    def opening(self, usage: Usage) -> bytes:
        """``message_start`` with the prompt's tokens."""
        message = self._message([], None, {"input_tokens": usage.prompt, "output_tokens": 0})
        return event("message_start", {"type": "message_start", "message": message})

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """Deltas, opening and closing blocks where the kind changes."""
        return b"".join(self._switch(piece.kind) + self._delta(piece) for piece in pieces)

    def closing(self, answer: Answer, usage: Usage) -> bytes:
        """The last block's end, why it stopped, usage."""
        delta = {"stop_reason": _STOP_REASONS[answer.finish], "stop_sequence": None}
        return b"".join(
            (
                self._switch(None),
                event("message_delta", {"type": "message_delta", "delta": delta, "usage": _usage(usage)}),
                event("message_stop", {"type": "message_stop"}),
            )
        )

    def whole(self, answer: Answer, usage: Usage) -> bytes:
        """A ``message``."""
        content: list[object] = []
        if thinking := answer.text(Kind.REASONING):
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if text := answer.text(Kind.TEXT):
            content.append({"type": "text", "text": text})
        if answer.tool is not None and answer.text(Kind.TOOL):
            content.append({**self._tool_block(), "input": _parsed(answer.text(Kind.TOOL))})
        return encode(self._message(content, _STOP_REASONS[answer.finish], _usage(usage)))

    def _message(self, content: list[object], reason: str | None, usage: Mapping[str, int]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _switch(self, kind: Kind | None) -> bytes:
        if kind is self._open:
            return b""
        frames = b""
        if self._open is not None:
            frames = event("content_block_stop", {"type": "content_block_stop", "index": self._index})
        self._open = kind
        if kind is None:
            return frames
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": self._block(kind)}
        return frames + event("content_block_start", start)

    def _block(self, kind: Kind) -> dict[str, object]:
        if kind is Kind.TEXT:
            return {"type": "text", "text": ""}
        if kind is Kind.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        return self._tool_block()

    def _tool_block(self) -> dict[str, object]:
        tool = self._tool
        return {"type": "tool_use", "id": tool.id if tool else "", "name": tool.name if tool else "", "input": {}}

    def _delta(self, piece: Piece) -> bytes:
        field, kind = {
            Kind.TEXT: ("text", "text_delta"),
            Kind.REASONING: ("thinking", "thinking_delta"),
            Kind.TOOL: ("partial_json", "input_json_delta"),
        }[piece.kind]
        delta = {"type": kind, field: piece.text}
        return event("content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta})


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt,
        "output_tokens": usage.completion,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
    }


def _parsed(arguments: str) -> Any:
    """A tool's input; one cut short by the token limit is no JSON and is left out."""
    try:
        return msgspec.json.decode(arguments.encode())
    except msgspec.DecodeError:
        return {}

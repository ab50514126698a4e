"""Bodies of ``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.domain import Usage
from gateway.sim.answer import Answer, Kind, Piece, ToolCall
from gateway.sim.shapes import Heading, data, encode, openai_usage

_DONE = b"data: [DONE]\n\n"


class ChatShape:
    """A role chunk with empty content, a chunk per step, one with the finish reason, usage if asked for, ``[DONE]``."""

    def __init__(self, heading: Heading, tool: ToolCall | None, include_usage: bool) -> None:
        self._base = {
            "id": f"chatcmpl-{heading.id}",
            "created": heading.created_s,
            "model": heading.model,
        }
        self._tool = tool
        self._include_usage = include_usage
        self._named = False
        head = encode({**self._base, "object": "chat.completion.chunk"})[:-1]
        self._head = b"data: " + head + b',"choices":[{"index":0,"delta":'
        self._tail = b',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'

    def opening(self, _: Usage) -> bytes:
        """The role chunk; it is no token."""
        return self._delta({"role": "assistant", "content": ""})

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """One chunk per kind of token in the step."""
        return b"".join(self._delta(delta) for piece in pieces for delta in self._deltas(piece))

    def closing(self, answer: Answer, usage: Usage) -> bytes:
        """Finish reason, usage, ``[DONE]``."""
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": answer.finish, "stop_reason": None}
        head = {**self._base, "object": "chat.completion.chunk"}
        frames = [data({**head, "choices": [last]})]
        if self._include_usage:
            frames.append(data({**head, "choices": [], "usage": openai_usage(usage)}))
        return b"".join(frames) + _DONE

    def whole(self, answer: Answer, usage: Usage) -> bytes:
        """A ``chat.completion``."""
        text, reasoning = answer.text(Kind.TEXT), answer.text(Kind.REASONING)
        message: dict[str, object] = {"role": "assistant", "content": text or None, "tool_calls": []}
        message["reasoning"] = reasoning or None
        if answer.tool is not None and (arguments := answer.text(Kind.TOOL)):
            function = {"name": answer.tool.name, "arguments": arguments}
            message["tool_calls"] = [{"id": answer.tool.id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish, "stop_reason": None}
        return encode({**self._base, "object": "chat.completion", "choices": [choice], "usage": openai_usage(usage)})

    def _delta(self, delta: dict[str, object]) -> bytes:
        return self._head + encode(delta) + self._tail

    def _deltas(self, piece: Piece) -> Iterable[dict[str, object]]:
        if piece.kind is Kind.TEXT:
            yield {"content": piece.text}
        elif piece.kind is Kind.REASONING:
            yield {"reasoning": piece.text}
        elif self._tool is not None:
            if not self._named:
                self._named = True
                function = {"name": self._tool.name, "arguments": ""}
                yield {"tool_calls": [{"id": self._tool.id, "type": "function", "index": 0, "function": function}]}
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece.text}}]}


class CompletionShape:
    """``text_completion`` chunks; no role chunk."""

    def __init__(self, heading: Heading, include_usage: bool) -> None:
        self._base = {
            "id": f"cmpl-{heading.id}",
            "object": "text_completion",
            "created": heading.created_s,
            "model": heading.model,
        }
        self._include_usage = include_usage
        self._head = b"data: " + encode(self._base)[:-1] + b',"choices":[{"index":0,"text":'
        self._tail = b',"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'

    def opening(self, _: Usage) -> bytes:
        """Nothing."""
        return b""

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """One chunk per step."""
        return b"".join(self._head + encode(piece.text) + self._tail for piece in pieces)

    def closing(self, answer: Answer, usage: Usage) -> bytes:
        """Finish reason, usage, ``[DONE]``."""
        frames = [data({**self._base, "choices": [self._choice("", answer.finish)]})]
        if self._include_usage:
            frames.append(data({**self._base, "choices": [], "usage": openai_usage(usage)}))
        return b"".join(frames) + _DONE

    def whole(self, answer: Answer, usage: Usage) -> bytes:
        """A ``text_completion``."""
        choice = self._choice(answer.text(Kind.TEXT), answer.finish)
        return encode({**self._base, "choices": [choice], "usage": openai_usage(usage)})

    @staticmethod
    def _choice(text: str, finish: str) -> dict[str, object]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}

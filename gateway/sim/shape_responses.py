"""Bodies of ``/v1/responses``: named, numbered events that end with ``response.completed`` or ``.incomplete``."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.domain import Usage
from gateway.sim.answer import Answer, Kind, Piece, ToolCall
from gateway.sim.shapes import Heading, encode, event


class ResponsesShape:
    """One output item: a message, or a function call."""

    def __init__(self, heading: Heading, tool: ToolCall | None) -> None:
        self._id = f"resp_{heading.id}"
        self._item_id = f"{'fc' if tool else 'msg'}_{heading.id}"
        self._heading = heading
        self._tool = tool
        self._sequence = 0

    def opening(self, _: Usage) -> bytes:
        """``response.created`` to the (empty) item."""
        response = self._response("in_progress", [], None)
        frames = [self._event("response.created", response=response)]
        frames.append(self._event("response.in_progress", response=response))
        item = self._item("in_progress", "")
        frames.append(self._event("response.output_item.added", output_index=0, item=item))
        if self._tool is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            frames.append(self._part("response.content_part.added", part=part))
        return b"".join(frames)

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """Deltas of text or arguments."""
        return b"".join(self._delta(piece.text) for piece in pieces)

    def closing(self, answer: Answer, usage: Usage) -> bytes:
        """The finished parts, the item and the whole response with usage."""
        status = "incomplete" if answer.finish == "length" else "completed"
        item = self._item(status, self._said(answer))
        frames: list[bytes] = []
        if self._tool is None:
            text = self._said(answer)
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            frames.append(self._part("response.output_text.done", text=text, logprobs=[]))
            frames.append(self._part("response.content_part.done", part=part))
        else:
            done = {"item_id": self._item_id, "output_index": 0, "name": self._tool.name}
            frames.append(self._event("response.function_call_arguments.done", **done, arguments=self._said(answer)))
        frames.append(self._event("response.output_item.done", output_index=0, item=item))
        frames.append(self._event(f"response.{status}", response=self._response(status, [item], usage)))
        return b"".join(frames)

    def whole(self, answer: Answer, usage: Usage) -> bytes:
        """A ``response``."""
        status = "incomplete" if answer.finish == "length" else "completed"
        return encode(self._response(status, [self._item(status, self._said(answer))], usage))

    def _said(self, answer: Answer) -> str:
        return answer.text(Kind.TEXT if self._tool is None else Kind.TOOL)

    def _event(self, name: str, **fields: object) -> bytes:
        frame = event(name, {"type": name, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return frame

    def _part(self, name: str, **fields: object) -> bytes:
        return self._event(name, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _delta(self, text: str) -> bytes:
        if self._tool is None:
            return self._part("response.output_text.delta", delta=text, logprobs=[])
        return self._event("response.function_call_arguments.delta", item_id=self._item_id, output_index=0, delta=text)

    def _item(self, status: str, text: str) -> dict[str, object]:
        if self._tool is not None:
            call = {"call_id": self._tool.id, "name": self._tool.name, "arguments": text}
            return {"id": self._item_id, "type": "function_call", "status": status, **call}
        content: list[object] = (
            [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}] if text else []
        )
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, status: str, output: list[dict[str, object]], usage: Usage | None) -> dict[str, object]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._heading.created_s,
            "model": self._heading.model,
            "status": status,
            "output": output,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": None,
            "instructions": None,
            "metadata": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": 1.0,
            "top_p": 1.0,
            "usage": None if usage is None else _usage(usage),
        }


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }

"""What vLLM's bodies have in common: the seam between a generation and the shape its endpoint gives it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.domain import Usage
from gateway.sim.answer import Answer, Piece


@dataclass(frozen=True, slots=True)
class Heading:
    """What every body of one generation repeats. ``id`` has no prefix yet; ``created_s`` is Unix time."""

    id: str
    model: str
    created_s: int


class Shape(Protocol):
    """One endpoint's way to say an answer, as a stream (opening, pieces, closing) or whole."""

    def opening(self, usage: Usage, /) -> bytes:
        """The bytes before the first token."""
        ...

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """The events for the tokens of one step."""
        ...

    def closing(self, answer: Answer, usage: Usage) -> bytes:
        """The bytes after the last token."""
        ...

    def whole(self, answer: Answer, usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...


def encode(value: object) -> bytes:
    """JSON."""
    return msgspec.json.encode(value)


def data(value: object) -> bytes:
    """One unnamed server-sent event."""
    return b"data: %b\n\n" % encode(value)


def event(name: str, value: object) -> bytes:
    """One named server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(value))


def openai_usage(usage: Usage) -> dict[str, object]:
    """Usage as chat and completions say it, with ``--enable-prompt-tokens-details``."""
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }

"""What an answer says of itself while it passes by, and how usage is read in every naming engines have for it."""

from __future__ import annotations

import re
from typing import Final, Protocol

import msgspec

from gateway.domain import Usage


class Facts:
    """What was seen of an answer so far.

    ``tokens`` counts events that carry text, reasoning or a tool call (in a whole JSON body: the completion tokens);
    ``first_token`` is set by the first of them, never by the role chunk or a comment. ``has_content`` means visible
    text or a tool call, not reasoning. ``failed`` is the engine's own error passing by; ``completed`` the answer's own
    end (``[DONE]``, ``message_stop``, ``response.completed`` …, a whole JSON body).
    """

    __slots__ = (
        "completed",
        "failed",
        "finish_reason",
        "first_token",
        "has_content",
        "response_id",
        "tokens",
        "usage",
    )

    def __init__(self) -> None:
        self.tokens: int = 0
        self.first_token: bool = False
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.failed: bool = False
        self.completed: bool = False
        self.response_id: str | None = None
        self.has_content: bool = False

    def saw_token(self, *, visible: bool) -> None:
        """Note one event with tokens in it; ``visible`` if they are more than reasoning."""
        self.tokens += 1
        self.first_token = True
        if visible:
            self.has_content = True

    def saw_usage(self, report: UsageReport | None) -> None:
        """Note a usage report. Reports are running totals and may be partial: the larger number of each kind stays."""
        if report is not None:
            self.usage = Usage(*map(max, self.usage or Usage(), report.usage()))


class Watcher(Protocol):
    """Sees an answer's bytes pass by and tells what they said (see ``Facts``)."""

    tokens: int
    first_token: bool
    usage: Usage | None
    finish_reason: str | None
    failed: bool
    completed: bool
    response_id: str | None
    has_content: bool

    def feed(self, data: bytes) -> bytes:
        """Take the upstream's next bytes; return those to forward now."""
        ...

    def finish(self) -> bytes:
        """Take note that the body ended cleanly; return any bytes still held."""
        ...


class _Details(msgspec.Struct, gc=False):
    cached_tokens: float | None = None
    reasoning_tokens: float | None = None


class UsageReport(msgspec.Struct, gc=False):
    """``usage`` of OpenAI's chat and completions, of its responses, and of Anthropic's messages."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    cache_read_input_tokens: float | None = None

    def usage(self) -> Usage:
        """Return the tokens spent. Anthropic's ``input_tokens`` may leave out what the cache held: it is added."""
        inputs = self.prompt_tokens_details or self.input_tokens_details
        outputs = self.completion_tokens_details or self.output_tokens_details
        prompt = _count(self.prompt_tokens or self.input_tokens)
        cached = _count(inputs.cached_tokens if inputs else self.cache_read_input_tokens)
        return Usage(
            prompt=prompt if cached <= prompt else prompt + cached,
            completion=_count(self.completion_tokens or self.output_tokens),
            cached=cached,
            reasoning=_count(outputs.reasoning_tokens if outputs else None),
        )


def _count(value: float | None) -> int:
    return int(value) if value and value > 0 else 0


# Quotes inside JSON strings are escaped, so that this can only match a real member; details nest one level.
_USAGE_MEMBER: Final = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_USAGE: Final = msgspec.json.Decoder(UsageReport)


def last_usage(tail: bytes) -> UsageReport | None:
    """Return the last usage report in the end of a JSON document too large to keep, or ``None``."""
    at = tail.rfind(b'"usage"')
    while at >= 0:
        match = _USAGE_MEMBER.match(tail, at)
        if match:
            try:
                return _USAGE.decode(match.group(1))
            except msgspec.DecodeError:
                return None
        at = tail.rfind(b'"usage"', 0, at)  # "usage": null of a later member
    return None

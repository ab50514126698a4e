"""How usage is read, in every naming that engines have for it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gateway.domain import Usage


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

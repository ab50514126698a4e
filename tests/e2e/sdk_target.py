"""What the SDK suite runs against: a base URL, a key, a model, and what is not to be had there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import anthropic
import openai
import pytest

TIMEOUT_S = 60.0


class Capability(StrEnum):
    """What not every server has; everything else in the suite is required of all."""

    KEYS = "wrong keys are refused"
    GATEWAY_HEADERS = "the gateway's own response headers"
    TOOL_CALLS = "tool calls by tool_choice"
    JSON_SCHEMA = "answers that follow a JSON schema"
    MANY_CHOICES = "more than one choice"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    MODEL_BY_NAME = "/v1/models/{name}"
    EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True)
class Target:
    """A server under test. ``missing`` gives the reason for each capability it lacks: its tests skip with it."""

    base_url: str
    api_key: str
    model: str
    context_tokens: int
    missing: Mapping[Capability, str] = field(default_factory=dict)

    def needs(self, capability: Capability) -> None:
        """Skip the running test, with the reason, where ``capability`` is missing."""
        if capability in self.missing:
            pytest.skip(f"{capability}: {self.missing[capability]}")

    def openai(self, api_key: str | None = None) -> openai.OpenAI:
        """A client that does not retry, so that the first failure shows."""
        return openai.OpenAI(
            base_url=f"{self.base_url}/v1", api_key=api_key or self.api_key, max_retries=0, timeout=TIMEOUT_S
        )

    def async_openai(self) -> openai.AsyncOpenAI:
        """The same, for ``async with``."""
        return openai.AsyncOpenAI(
            base_url=f"{self.base_url}/v1", api_key=self.api_key, max_retries=0, timeout=TIMEOUT_S
        )

    def anthropic(self, api_key: str | None = None) -> anthropic.Anthropic:
        """A client that does not retry."""
        return anthropic.Anthropic(
            base_url=self.base_url, api_key=api_key or self.api_key, max_retries=0, timeout=TIMEOUT_S
        )

    def async_anthropic(self) -> anthropic.AsyncAnthropic:
        """The same, for ``async with``."""
        return anthropic.AsyncAnthropic(base_url=self.base_url, api_key=self.api_key, max_retries=0, timeout=TIMEOUT_S)

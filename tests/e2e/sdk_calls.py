"""Arguments of SDK calls whose answers have a known length or a known form, whatever the model says."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from tests.e2e.sdk_target import Target

LENGTH = 24
LONG = 3_000  # tokens: far more than a client reads that leaves midway
ROOM = 300  # tokens: a grammar ends the answer long before
MESSAGES: list[Any] = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "Why is the sky blue? 天空为什么是蓝色的？ 🌤"},
]
PROMPT = "Once upon a time, 从前,"


class Forecast(BaseModel):
    """Closed sets only: a random model would never end a free string."""

    city: Literal["Berlin", "Paris"]
    days: Literal[1, 2, 3]
    alerts: bool


FORECAST_SCHEMA: dict[str, Any] = {**Forecast.model_json_schema(), "additionalProperties": False}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "forecast",
        "description": "The weather of the next days.",
        "parameters": FORECAST_SCHEMA,
    },
}
TOOL_CHOICES = {"required": "required", "named": {"type": "function", "function": {"name": "forecast"}}}


def chat(target: Target, length: int = LENGTH, **more: Any) -> dict[str, Any]:
    """A chat call whose answer has exactly ``length`` tokens."""
    return {
        "model": target.model,
        "messages": MESSAGES,
        "max_tokens": length,
        "temperature": 0,
        "seed": 1,
        "extra_body": {"ignore_eos": True},
        **more,
    }


def tool_call(target: Target, choice: str) -> dict[str, Any]:
    """A chat call that must come back as one call of ``forecast``."""
    tools = {"tools": [TOOL], "tool_choice": TOOL_CHOICES[choice], "parallel_tool_calls": False}
    return chat(target, ROOM, **tools, extra_body={})


def completion(target: Target, **more: Any) -> dict[str, Any]:
    """A text completion of exactly ``LENGTH`` tokens."""
    return {
        "model": target.model,
        "prompt": PROMPT,
        "max_tokens": LENGTH,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
        **more,
    }


def response(target: Target, **more: Any) -> dict[str, Any]:
    """A response of at most ``LENGTH`` tokens."""
    return {"model": target.model, "input": PROMPT, "max_output_tokens": LENGTH, "temperature": 0, **more}


def message(target: Target, length: int = LENGTH, **more: Any) -> dict[str, Any]:
    """An Anthropic message of at most ``length`` tokens."""
    return {
        "model": target.model,
        "messages": MESSAGES[1:],
        "max_tokens": length,
        "extra_body": {"temperature": 0},  # newer SDKs have no argument for it, vLLM has
        **more,
    }

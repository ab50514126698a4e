"""Tool calls and structured output of chat completions; a grammar makes even a random model follow them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.sdk_calls import LENGTH, MESSAGES, ROOM, TOOL, TOOL_CHOICES, Forecast, chat, tool_call
from tests.e2e.sdk_target import Capability, Target


class TestChatTools:
    """Tools and schemas, streamed and not."""

    @pytest.mark.parametrize("choice", TOOL_CHOICES)
    def test_tool_call(self, target: Target, choice: str) -> None:
        target.needs(Capability.TOOL_CALLS)
        with target.openai() as client:
            (answered,) = client.chat.completions.create(**tool_call(target, choice)).choices
        (call,) = answered.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, bool(call.id)) == ("forecast", True)
        Forecast.model_validate_json(call.function.arguments, strict=True)

    @pytest.mark.parametrize("choice", TOOL_CHOICES)
    def test_tool_call_streamed(self, target: Target, choice: str) -> None:
        """B6: the pieces keep their index and join to valid arguments."""
        target.needs(Capability.TOOL_CALLS)
        with (
            target.openai() as client,
            client.chat.completions.create(**tool_call(target, choice), stream=True) as stream,
        ):
            pieces = [piece for chunk in stream for choice in chunk.choices for piece in choice.delta.tool_calls or []]
        functions = [piece.function for piece in pieces if piece.function]
        assert {piece.index for piece in pieces} == {0}
        assert [piece.id for piece in pieces if piece.id] == [pieces[0].id]
        assert [function.name for function in functions if function.name] == ["forecast"]
        arguments = "".join(function.arguments or "" for function in functions)
        Forecast.model_validate_json(arguments, strict=True)

    def test_answer_to_a_tool_result(self, target: Target) -> None:
        """The second half of a tool's round: the call and its result go back in."""
        arguments = json.dumps({"city": "Berlin", "days": 2, "alerts": False})
        call = {"id": "call-1", "type": "function", "function": {"name": "forecast", "arguments": arguments}}
        history = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call-1", "content": "Rain, then sun."},
        ]
        with target.openai() as client:
            answer = client.chat.completions.create(**chat(target, messages=history, tools=[TOOL], tool_choice="none"))
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens == LENGTH

    def test_structured_output(self, target: Target) -> None:
        target.needs(Capability.JSON_SCHEMA)
        with target.openai() as client:
            answer = client.chat.completions.parse(**chat(target, ROOM, response_format=Forecast, extra_body={}))
        assert isinstance(answer.choices[0].message.parsed, Forecast)
        assert answer.choices[0].finish_reason == "stop"

    def test_structured_output_streamed(self, target: Target) -> None:
        target.needs(Capability.JSON_SCHEMA)
        with (
            target.openai() as client,
            client.chat.completions.stream(**chat(target, ROOM, response_format=Forecast, extra_body={})) as stream,
        ):
            final = stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Forecast)

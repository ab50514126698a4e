"""Messages with the ``anthropic`` SDK, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from tests.e2e.sdk_calls import FORECAST_SCHEMA, LENGTH, LONG, MESSAGES, ROOM, Forecast, message
from tests.e2e.sdk_target import Capability, Target

TOOL: dict[str, Any] = {"name": "forecast", "input_schema": FORECAST_SCHEMA}
TOOL_CHOICE: dict[str, Any] = {"type": "tool", "name": "forecast", "disable_parallel_tool_use": True}


class TestAnthropic:
    """``/v1/messages`` and its token count."""

    @pytest.fixture(autouse=True)
    def _served(self, target: Target) -> None:
        target.needs(Capability.MESSAGES)

    def test_message(self, target: Target) -> None:
        with target.anthropic() as client:
            answer = client.messages.create(**message(target))
        assert (answer.type, answer.role, answer.model) == ("message", "assistant", target.model)
        assert answer.content[0].type == "text"
        assert answer.content[0].text
        assert answer.stop_reason in ("max_tokens", "end_turn")
        assert answer.usage.input_tokens > 0
        assert 0 < answer.usage.output_tokens <= LENGTH

    @pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]], ids=["text", "blocks"])
    def test_system(self, target: Target, system: Any) -> None:
        with target.anthropic() as client:
            without = client.messages.create(**message(target)).usage.input_tokens
            assert client.messages.create(**message(target, system=system)).usage.input_tokens > without

    def test_events(self, target: Target) -> None:
        with target.anthropic() as client, client.messages.create(**message(target, stream=True)) as stream:
            events = list(stream)
        kinds = [event.type for event in events]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert set(kinds[2:-3]) == {"content_block_delta"}
        usage = events[-2].usage
        assert 0 < usage.output_tokens <= LENGTH

    def test_stream_helper(self, target: Target) -> None:
        with target.anthropic() as client, client.messages.stream(**message(target)) as stream:
            text = "".join(stream.text_stream)
            answer = stream.get_final_message()
        assert text
        assert text == answer.content[0].text
        assert answer.stop_reason in ("max_tokens", "end_turn")

    def test_async_stream(self, target: Target) -> None:
        async def final() -> anthropic.types.Message:
            async with target.async_anthropic() as client, client.messages.stream(**message(target)) as stream:
                return await stream.get_final_message()

        assert asyncio.run(final()).content

    def test_client_leaves_midway(self, target: Target) -> None:
        with target.anthropic() as client:
            with client.messages.create(**message(target, LONG, stream=True)) as stream:
                assert next(iter(stream)).type == "message_start"
            assert client.messages.create(**message(target)).content

    def test_tool_use(self, target: Target) -> None:
        target.needs(Capability.TOOL_CALLS)
        with target.anthropic() as client:
            answer = client.messages.create(**message(target, ROOM, tools=[TOOL], tool_choice=TOOL_CHOICE))
        (use,) = [block for block in answer.content if block.type == "tool_use"]
        assert (use.name, bool(use.id)) == ("forecast", True)
        Forecast.model_validate(use.input, strict=True)
        assert answer.stop_reason == "tool_use"

    def test_tool_use_streamed(self, target: Target) -> None:
        target.needs(Capability.TOOL_CALLS)
        with (
            target.anthropic() as client,
            client.messages.stream(**message(target, ROOM, tools=[TOOL], tool_choice=TOOL_CHOICE)) as stream,
        ):
            answer = stream.get_final_message()
        (use,) = [block for block in answer.content if block.type == "tool_use"]
        Forecast.model_validate(use.input, strict=True)

    def test_count_tokens(self, target: Target) -> None:
        with target.anthropic() as client:
            counted = client.messages.count_tokens(model=target.model, messages=MESSAGES[1:]).input_tokens
            assert counted == client.messages.create(**message(target)).usage.input_tokens

    def test_raw_response(self, target: Target) -> None:
        with target.anthropic() as client:
            raw = client.messages.with_raw_response.create(**message(target))
        assert raw.headers["content-type"] == "application/json"
        assert raw.parse().content

    @pytest.mark.parametrize("stream", [False, True])
    def test_h3_unknown_model(self, target: Target, stream: bool) -> None:
        with target.anthropic() as client, pytest.raises(anthropic.NotFoundError) as refusal:
            client.messages.create(**message(target, model="no-such-model"), stream=stream)
        check_shape(refusal.value)

    @pytest.mark.parametrize("stream", [False, True])
    def test_h3_too_long_for_the_context(self, target: Target, stream: bool) -> None:
        with target.anthropic() as client, pytest.raises(anthropic.BadRequestError) as refusal:
            client.messages.create(**message(target, target.context_tokens + 1), stream=stream)
        check_shape(refusal.value)

    def test_h3_wrong_key(self, target: Target) -> None:
        target.needs(Capability.KEYS)
        stranger = target.anthropic(api_key="sk-of-somebody-else")
        with stranger as client, pytest.raises(anthropic.AuthenticationError) as refusal:
            client.messages.create(**message(target))
        check_shape(refusal.value)


def check_shape(error: anthropic.APIStatusError) -> None:
    """H3: errors have Anthropic's shape."""
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.body["error"]["type"]
    assert error.body["error"]["message"]

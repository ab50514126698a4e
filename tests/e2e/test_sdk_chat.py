"""Chat completions with the ``openai`` SDK, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.e2e.sdk_calls import LENGTH, LONG, chat
from tests.e2e.sdk_target import Capability, Target

TOGETHER = 8


def check_chunks(chunks: list[ChatCompletionChunk], usage_asked: bool) -> None:
    """Exactly what was asked: a role, text, one finish reason, and usage for those who wanted it (B3)."""
    usage_chunks = [chunk for chunk in chunks if not chunk.choices]
    assert len(usage_chunks) == (1 if usage_asked else 0)
    assert [chunk.usage for chunk in chunks if chunk.usage] == [chunk.usage for chunk in usage_chunks]
    if usage_asked:
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == LENGTH
        assert chunks[-1].usage.prompt_tokens > 0
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    assert choices[-1].finish_reason == "length"
    assert "".join(choice.delta.content or "" for choice in choices)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


class TestChat:
    """Answers, streams and refusals of ``/v1/chat/completions``."""

    def test_answer(self, target: Target) -> None:
        with target.openai() as client:
            answer = client.chat.completions.create(**chat(target))
        assert answer.object == "chat.completion"
        assert answer.model == target.model
        (choice,) = answer.choices
        assert choice.message.role == "assistant"
        assert choice.message.content
        assert choice.finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == LENGTH
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + LENGTH

    def test_max_completion_tokens(self, target: Target) -> None:
        arguments = chat(target)
        arguments["max_completion_tokens"] = arguments.pop("max_tokens")
        with target.openai() as client:
            answer = client.chat.completions.create(**arguments)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == LENGTH

    def test_many_choices(self, target: Target) -> None:
        target.needs(Capability.MANY_CHOICES)
        with target.openai() as client:
            answer = client.chat.completions.create(**chat(target, n=2, temperature=1))
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2 * LENGTH

    @pytest.mark.parametrize("include_usage", [None, False, True])
    def test_b3_stream_gives_what_was_asked(self, target: Target, include_usage: bool | None) -> None:
        options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
        with (
            target.openai() as client,
            client.chat.completions.create(**chat(target, stream=True, **options)) as stream,
        ):
            check_chunks(list(stream), usage_asked=bool(include_usage))

    def test_stream_helper(self, target: Target) -> None:
        with target.openai() as client, client.chat.completions.stream(**chat(target)) as stream:
            kinds = [event.type for event in stream]
            final = stream.current_completion_snapshot
        assert "content.delta" in kinds
        assert final.choices[0].finish_reason == "length"
        assert final.choices[0].message.content

    def test_many_together(self, target: Target) -> None:
        """Streams and plain answers side by side on one asynchronous client; none mixes with another."""

        async def plain(client: AsyncOpenAI) -> None:
            answer = await client.chat.completions.create(**chat(target))
            assert answer.usage is not None
            assert answer.usage.completion_tokens == LENGTH

        async def streamed(client: AsyncOpenAI) -> None:
            stream = await client.chat.completions.create(
                **chat(target, stream=True, stream_options={"include_usage": True})
            )
            async with stream:
                check_chunks([chunk async for chunk in stream], usage_asked=True)

        async def everyone() -> None:
            async with target.async_openai() as client:
                await asyncio.gather(*(ask(client) for ask in (plain, streamed) for _ in range(TOGETHER)))

        asyncio.run(everyone())

    def test_client_leaves_midway(self, target: Target) -> None:
        """Closing a long stream returns at once, and the same client goes on."""
        with target.openai() as client:
            with client.chat.completions.create(**chat(target, LONG, stream=True)) as stream:
                assert len([next(stream) for _ in range(3)]) == 3
            assert client.chat.completions.create(**chat(target)).choices

    def test_async_client_leaves_midway(self, target: Target) -> None:
        async def leave() -> None:
            async with target.async_openai() as client:
                async with await client.chat.completions.create(**chat(target, LONG, stream=True)) as stream:
                    async for _ in stream:
                        break
                assert (await client.chat.completions.create(**chat(target))).choices

        asyncio.run(leave())

    def test_raw_response(self, target: Target) -> None:
        with target.openai() as client:
            raw = client.chat.completions.with_raw_response.create(**chat(target))
        assert raw.status_code == 200
        assert raw.headers["content-type"] == "application/json"
        assert raw.parse().choices

    def test_gateway_headers(self, target: Target) -> None:
        target.needs(Capability.GATEWAY_HEADERS)
        with target.openai() as client:
            raw = client.chat.completions.with_raw_response.create(
                **chat(target), extra_headers={"X-Request-Id": "from-the-client"}
            )
        assert raw.headers["x-request-id"] == raw.request_id == "from-the-client"
        assert raw.headers["x-gateway-replica"]
        assert raw.headers["x-gateway-route"]
        assert float(raw.headers["x-gateway-queue-ms"]) >= 0


class TestChatErrors:
    """Refusals arrive as the SDK's own exceptions, whether or not a stream was asked for."""

    @staticmethod
    def refused(client: OpenAI, kind: type[openai.APIStatusError], stream: bool, arguments: dict[str, Any]) -> Any:
        """The error body of a call that must be refused with ``kind``."""
        with pytest.raises(kind) as refusal:
            client.chat.completions.create(**arguments, stream=stream)
        assert isinstance(refusal.value.body, dict)
        assert refusal.value.body["message"]
        return refusal.value

    @pytest.mark.parametrize("stream", [False, True])
    def test_unknown_model(self, target: Target, stream: bool) -> None:
        with target.openai() as client:
            error = self.refused(client, openai.NotFoundError, stream, chat(target, model="no-such-model"))
        assert "no-such-model" in error.message

    @pytest.mark.parametrize("stream", [False, True])
    def test_bad_parameter(self, target: Target, stream: bool) -> None:
        with target.openai() as client:
            self.refused(client, openai.BadRequestError, stream, chat(target, 0))

    @pytest.mark.parametrize("stream", [False, True])
    def test_too_long_for_the_context(self, target: Target, stream: bool) -> None:
        with target.openai() as client:
            self.refused(client, openai.BadRequestError, stream, chat(target, target.context_tokens + 1))

    @pytest.mark.parametrize("stream", [False, True])
    def test_wrong_key(self, target: Target, stream: bool) -> None:
        target.needs(Capability.KEYS)
        with target.openai(api_key="sk-of-somebody-else") as client:
            self.refused(client, openai.AuthenticationError, stream, chat(target))

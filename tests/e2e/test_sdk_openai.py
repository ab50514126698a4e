"""Completions, responses, models and embeddings with the ``openai`` SDK."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.e2e.sdk_calls import LENGTH, PROMPT, completion, response
from tests.e2e.sdk_target import Capability, Target


class TestOpenAI:
    """Every other endpoint of the SDK that vLLM serves for a text model."""

    def test_completion(self, target: Target) -> None:
        with target.openai() as client:
            answer = client.completions.create(**completion(target))
        (choice,) = answer.choices
        assert choice.text
        assert choice.finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == LENGTH

    @pytest.mark.parametrize("include_usage", [None, False, True])
    def test_b3_completion_stream_gives_what_was_asked(self, target: Target, include_usage: bool | None) -> None:
        options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
        with (
            target.openai() as client,
            client.completions.create(**completion(target, stream=True, **options)) as stream,
        ):
            chunks = list(stream)
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices)
        assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]
        usages = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
        assert usages == ([LENGTH] if include_usage else [])
        assert sum(not chunk.choices for chunk in chunks) == len(usages)

    def test_completion_of_token_ids(self, target: Target) -> None:
        with target.openai() as client:
            answer = client.completions.create(**completion(target, prompt=[65, 66, 67, 68, 69]))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 5

    def test_response(self, target: Target) -> None:
        target.needs(Capability.RESPONSES)
        with target.openai() as client:
            answer = client.responses.create(**response(target))
        assert answer.object == "response"
        assert answer.output_text
        assert answer.status in ("completed", "incomplete")
        assert answer.usage is not None
        assert 0 < answer.usage.output_tokens <= LENGTH

    def test_response_stream(self, target: Target) -> None:
        target.needs(Capability.RESPONSES)
        with target.openai() as client, client.responses.create(**response(target, stream=True)) as stream:
            events = list(stream)
        kinds = [event.type for event in events]
        assert kinds[0] == "response.created"
        assert kinds[-1] in ("response.completed", "response.incomplete")
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events[-1].response
        assert text == final.output_text
        assert final.usage is not None
        assert 0 < final.usage.output_tokens <= LENGTH
        numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
        assert numbers == sorted(numbers)

    def test_async_response_stream(self, target: Target) -> None:
        target.needs(Capability.RESPONSES)

        async def kinds() -> list[str]:
            async with target.async_openai() as client:
                stream = await client.responses.create(**response(target, stream=True))
                return [event.type async for event in stream]

        assert "response.output_text.delta" in asyncio.run(kinds())

    def test_response_of_an_unknown_model(self, target: Target) -> None:
        target.needs(Capability.RESPONSES)
        with target.openai() as client, pytest.raises(openai.NotFoundError):
            client.responses.create(**response(target, model="no-such-model"))

    def test_models(self, target: Target) -> None:
        with target.openai() as client:
            models = client.models.list().data
        assert target.model in [model.id for model in models]
        assert {model.object for model in models} == {"model"}

    def test_model_by_name(self, target: Target) -> None:
        target.needs(Capability.MODEL_BY_NAME)
        with target.openai() as client:
            assert client.models.retrieve(target.model).id == target.model
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("no-such-model")

    def test_models_with_a_wrong_key(self, target: Target) -> None:
        target.needs(Capability.KEYS)
        with target.openai(api_key="sk-of-somebody-else") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()

    def test_embeddings(self, target: Target) -> None:
        target.needs(Capability.EMBEDDINGS)
        with target.openai() as client:
            answer = client.embeddings.create(model=target.model, input=[PROMPT, "another"], encoding_format="float")
        assert [item.index for item in answer.data] == [0, 1]
        assert all(item.embedding for item in answer.data)
        assert answer.usage.prompt_tokens > 0

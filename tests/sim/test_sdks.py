"""The ``openai`` and ``anthropic`` SDKs against the simulated server."""

import asyncio

import anthropic
import openai
import pytest
from pydantic import BaseModel

from gateway.sim.profiles import D3
from gateway.sim.server import SimServer

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
ASK = [{"role": "user", "content": "Hello there"}]


def run(scene):
    """Run ``scene`` with an ``openai`` client of a fresh server."""

    async def main():
        async with (
            SimServer(D3, speed=40.0) as server,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client,
        ):
            return await scene(client)

    return asyncio.run(main())


def run_anthropic(scene):
    """The same with an ``anthropic`` client."""

    async def main():
        async with (
            SimServer(D3, speed=40.0) as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client,
        ):
            return await scene(client)

    return asyncio.run(main())


def test_chat():
    async def scene(client):
        whole = await client.chat.completions.create(model="qwen", messages=ASK)
        stream = await client.chat.completions.create(
            model="qwen", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        return whole, [chunk async for chunk in stream]

    whole, chunks = run(scene)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens >= 60


def test_streamed_tool_call():
    async def scene(client):
        stream = await client.chat.completions.create(
            model="qwen", messages=ASK, tools=[TOOL], tool_choice="required", stream=True
        )
        return [chunk.choices[0] async for chunk in stream]

    choices = run(scene)
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert calls[0].function.name == "look_up"
    assert "".join(call.function.arguments for call in calls) == '{"city":"steady","days":1}'
    assert choices[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("content", "choice"),
    [("CALL_TOOL", "auto"), ("x", {"type": "function", "function": {"name": "look_up"}})],
)
def test_tool_call_and_its_result(content, choice):
    async def scene(client):
        messages = [{"role": "user", "content": content}]
        first = await client.chat.completions.create(model="qwen", messages=messages, tools=[TOOL], tool_choice=choice)
        message = first.choices[0].message
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}]
        return first, await client.chat.completions.create(model="qwen", messages=messages, tools=[TOOL])

    first, second = run(scene)
    assert first.choices[0].finish_reason == "tool_calls"
    assert second.choices[0].message.content


def test_structured_output():
    class Weather(BaseModel):
        city: str
        days: list[int]
        note: str | None

    async def scene(client):
        return await client.chat.completions.parse(model="qwen", messages=ASK, response_format=Weather)

    assert isinstance(run(scene).choices[0].message.parsed, Weather)


def test_completions():
    async def scene(client):
        whole = await client.completions.create(model="qwen", prompt="once")
        ids = await client.completions.create(model="qwen", prompt=[1, 2, 3], max_tokens=2)
        stream = await client.completions.create(model="qwen", prompt="once", stream=True)
        return whole, ids, "".join([chunk.choices[0].text async for chunk in stream])

    whole, ids, text = run(scene)
    assert whole.choices[0].text == text
    assert (whole.usage.completion_tokens, ids.usage.prompt_tokens) == (16, 3)


def test_responses():
    async def scene(client):
        whole = await client.responses.create(model="qwen", input="Hello", max_output_tokens=30)
        async with client.responses.stream(model="qwen", input="Hello", instructions="be brief") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        call = await client.responses.create(
            model="qwen",
            input="CALL_TOOL",
            tools=[{"type": "function", **TOOL["function"]}],
        )
        return whole, kinds, final, call

    whole, kinds, final, call = run(scene)
    assert (whole.status, whole.usage.output_tokens) == ("incomplete", 30)
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text
    assert call.output[0].name == "look_up"


def test_responses_parse():
    class Plan(BaseModel):
        steps: list[str]

    async def scene(client):
        return await client.responses.parse(model="qwen", input="plan", text_format=Plan)

    assert isinstance(run(scene).output_parsed, Plan)


def test_models_and_embeddings():
    async def scene(client):
        models = [model.id async for model in client.models.list()]
        return models, await client.embeddings.create(model="qwen", input=["a", "b"])

    models, embedded = run(scene)
    assert models == ["qwen"]
    assert [len(one.embedding) for one in embedded.data] == [8, 8]
    assert embedded.data[0].embedding != embedded.data[1].embedding


def test_errors():
    async def scene(client):
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=ASK)
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="qwen", messages=ASK, max_tokens=-1)

    run(scene)


def test_anthropic_messages():
    async def scene(client):
        asked = {"model": "qwen", "max_tokens": 400, "messages": ASK, "system": "be kind"}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="qwen", messages=ASK, system="be kind")
        return whole, text, final, counted

    whole, text, final, counted = run_anthropic(scene)
    assert whole.content[0].text == text == final.content[0].text
    assert whole.stop_reason == final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert counted.input_tokens == whole.usage.input_tokens


def test_anthropic_tools_and_thinking():
    tool = {"name": "look_up", "input_schema": TOOL["function"]["parameters"]}

    async def scene(client):
        asked = {"model": "qwen", "max_tokens": 2_000, "messages": ASK, "tools": [tool], "tool_choice": {"type": "any"}}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked, thinking={"type": "enabled", "budget_tokens": 1_024}) as stream:
            return whole, await stream.get_final_message()

    whole, final = run_anthropic(scene)
    assert whole.stop_reason == final.stop_reason == "tool_use"
    assert whole.content[0].input == final.content[1].input == {"city": "steady", "days": 1}
    assert final.content[0].type == "thinking"


def test_anthropic_errors():
    async def scene(client):
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(model="nope", max_tokens=5, messages=ASK)

    run_anthropic(scene)

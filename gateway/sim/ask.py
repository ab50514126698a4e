"""Request bodies -> ``Ask``: what every generating endpoint comes down to. Refuses what vLLM refuses, in its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.sim.text import answer_turn, foreign, image, turn

Body = Mapping[str, Any]
Tool = tuple[str, Mapping[str, Any]]
_CALL_WORD = "CALL_TOOL"
_ANY_JSON: Mapping[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}}


class Refusal(Exception):
    """An answer other than 200. ``type`` is vLLM's word for it."""

    def __init__(self, status: int, type_: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message
        self.param = param


def bad(message: str, param: str | None = None) -> Refusal:
    """A 400."""
    return Refusal(400, "BadRequestError", message, param)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for text. ``limit`` is the client's own bound on output tokens, if it set one."""

    prompt: str
    question: str
    limit: int | None
    stream: bool
    include_usage: bool = False
    ignore_eos: bool = False
    thinking: bool = False
    schema: Mapping[str, Any] | None = None
    tool: Tool | None = None
    stop: tuple[str, ...] = ()


def decode(raw: bytes) -> Body:
    """The JSON object in ``raw``."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad(f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise bad("Input should be a valid dictionary")
    return body


def chat(body: Body) -> Ask:
    """``/v1/chat/completions``."""
    messages = _list(body, "messages")
    tools = [_function(tool) for tool in body.get("tools") or ()]
    question = _text(messages[-1].get("content"))
    form = body.get("response_format") or {}
    return Ask(
        prompt=_tools_turn(body) + _turns(messages) + answer_turn(),
        question=question,
        limit=_limit(body, "max_completion_tokens", "max_tokens"),
        stream=bool(body.get("stream")),
        include_usage=_include_usage(body),
        ignore_eos=bool(body.get("ignore_eos")),
        thinking=bool((body.get("chat_template_kwargs") or {}).get("enable_thinking")),
        schema=_json_schema(form.get("type"), (form.get("json_schema") or {}).get("schema")),
        tool=_called(tools, body.get("tool_choice"), question),
        stop=_stop(body.get("stop")),
    )


def completions(body: Body) -> Ask:
    """``/v1/completions``; the prompt is a text or a list of token ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list):
        if not all(isinstance(token, int) for token in prompt):
            raise bad("The simulator serves one prompt per request", "prompt")
        prompt = foreign(prompt)
    if not isinstance(prompt, str) or not prompt:
        raise bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    limit = _limit(body, "max_tokens")
    return Ask(
        prompt=prompt,
        question=prompt[-200:],
        limit=16 if limit is None else limit,  # OpenAI's default for this endpoint, and vLLM's
        stream=bool(body.get("stream")),
        include_usage=_include_usage(body),
        ignore_eos=bool(body.get("ignore_eos")),
        stop=_stop(body.get("stop")),
    )


def responses(body: Body) -> Ask:
    """``/v1/responses``; always with usage."""
    given = body.get("input")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else _list(body, "input")
    tools = [_function(tool) for tool in body.get("tools") or ()]
    question = _text(messages[-1].get("content"))
    form = (body.get("text") or {}).get("format") or {}
    instructions = turn("system", str(body["instructions"])) if body.get("instructions") else ""
    return Ask(
        prompt=_tools_turn(body) + instructions + _turns(messages) + answer_turn(),
        question=question,
        limit=_limit(body, "max_output_tokens"),
        stream=bool(body.get("stream")),
        include_usage=True,
        ignore_eos=bool(body.get("ignore_eos")),
        schema=_json_schema(form.get("type"), form.get("schema")),
        tool=_called(tools, body.get("tool_choice"), question),
    )


def messages(body: Body) -> Ask:
    """``/v1/messages`` (Anthropic); always with usage."""
    turns = _list(body, "messages")
    tools = [(str(tool.get("name")), tool.get("input_schema") or {}) for tool in body.get("tools") or ()]
    question = _text(turns[-1].get("content"))
    system = turn("system", _text(body["system"])) if body.get("system") else ""
    return Ask(
        prompt=_tools_turn(body) + system + _turns(turns) + answer_turn(),
        question=question,
        limit=_limit(body, "max_tokens"),
        stream=bool(body.get("stream")),
        include_usage=True,
        ignore_eos=bool(body.get("ignore_eos")),
        thinking=(body.get("thinking") or {}).get("type") == "enabled",
        tool=_called(tools, body.get("tool_choice"), question),
        stop=_stop(body.get("stop_sequences")),
    )


def prompts(body: Body) -> list[str]:
    """The prompts of ``/tokenize`` (one) and ``/v1/embeddings``: text, token ids, lists of either, or messages."""
    given = body.get("input", body.get("prompt"))
    if given is None and "messages" in body:
        return [_tools_turn(body) + _turns(_list(body, "messages")) + answer_turn()]
    several = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    return [_plain_prompt(prompt) for prompt in several]


def _plain_prompt(given: object) -> str:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
        return foreign(given)
    raise bad("a prompt is needed: text, token ids or messages", "prompt")


def _list(body: Body, field: str) -> Sequence[Body]:
    value = body.get(field)
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise bad(f"{field}: a non-empty list of messages is needed", field)
    return value


def _limit(body: Body, *fields: str) -> int | None:
    for field in fields:
        value = body.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad(f"{field}: Input should be a valid integer", field)
        if value < 1:
            raise bad(f"{field} must be at least 1, got {value}.", field)
        return value
    return None


def _include_usage(body: Body) -> bool:
    options = body.get("stream_options")
    if options is not None and not body.get("stream"):
        raise bad("Stream options can only be defined when `stream=True`.", "stream_options")
    return bool((options or {}).get("include_usage"))


def _stop(value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(str(word) for word in words if word)


def _turns(turns: Sequence[Body]) -> str:
    return "".join(turn(str(item.get("role", item.get("type"))), _whole_text(item)) for item in turns)


def _whole_text(item: Body) -> str:
    """Everything of a message that a chat template would show."""
    calls = item.get("tool_calls") or item.get("arguments") or item.get("output")
    shown = _text(item.get("content"))
    return shown + msgspec.json.encode(calls).decode() if calls else shown


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_part_text(part) for part in content if isinstance(part, dict))


def _part_text(part: Body) -> str:
    kind = part.get("type")
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image_url":
        link = part.get("image_url")
        return image(str(link.get("url")) if isinstance(link, dict) else str(link))
    if kind in ("image", "input_image"):
        return image(str(part.get("image_url") or (part.get("source") or {}).get("data")))
    if kind == "tool_result":
        return _text(part.get("content"))
    return msgspec.json.encode(part).decode()


def _tools_turn(body: Body) -> str:
    return turn("system", msgspec.json.encode(body["tools"]).decode()) if body.get("tools") else ""


def _function(tool: Body) -> Tool:
    inner = tool.get("function") or tool
    return str(inner.get("name")), inner.get("parameters") or {}


def _called(tools: Sequence[Tool], choice: object, question: str) -> Tool | None:
    """The tool to call: the one named, or the first if one is required or the last message asks for it."""
    if isinstance(choice, dict):
        kind = choice.get("type")
        name = (choice.get("function") or choice).get("name")
        if name is not None:
            named = [tool for tool in tools if tool[0] == name]
            if not named:
                raise bad(f"The tool {name} has not been found in the tools list", "tool_choice")
            return named[0]
        choice = kind
    if choice in ("required", "any"):
        if not tools:
            raise bad("When using `tool_choice`, `tools` must be set.", "tool_choice")
        return tools[0]
    return tools[0] if tools and choice != "none" and _CALL_WORD in question else None


def _json_schema(kind: object, schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if kind == "json_schema":
        return schema or _ANY_JSON
    return _ANY_JSON if kind == "json_object" else None

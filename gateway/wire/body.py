"""What the gateway must know of a request body, and the two changes it may make to it.

The body is opened one level deep; members nobody needs are neither decoded nor judged, and what is forwarded are the
client's own bytes (the engine's verdict on them is the one that counts). Of duplicate keys the last wins, as in the
engine's own parser, so that both see the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gateway.domain import Endpoint, TextSize
from gateway.errors import InvalidRequest
from gateway.wire import multipart, surrogates
from gateway.wire.endpoints import Route
from gateway.wire.textsize import Scale, weigh

_TOKENS_MAX: Final = 100_000_000  # more is no bound but a mistake
_TRUE_WORDS: Final = frozenset({"1", "on", "t", "true", "y", "yes"})  # what the engine's pydantic takes for a boolean
_FALSE_WORDS: Final = frozenset({"0", "off", "f", "false", "n", "no"})

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OPTIONS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_ENCODER: Final = msgspec.json.Encoder()
_TRUE: Final = msgspec.Raw(b"true")
_NULL: Final = msgspec.Raw(b"null")

_CHAT_TURNS: Final = ("messages",)
_CHAT_SCHEMAS: Final = ("tools", "functions", "response_format", "structured_outputs", "guided_json")
_POOLING_CONTENT: Final = ("input", "prompt", "text_1", "text_2", "data_1", "data_2", "query", "queries", "documents")
_LIMITS_BY_ENDPOINT: Final[Mapping[Endpoint, tuple[str, ...]]] = {
    Endpoint.CHAT: ("max_tokens", "max_completion_tokens"),
    Endpoint.COMPLETIONS: ("max_tokens",),
    Endpoint.RESPONSES: ("max_output_tokens",),
    Endpoint.MESSAGES: ("max_tokens",),
}


class _PlainTurn(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class _Options(msgspec.Struct, gc=False):
    include_usage: bool = True  # as in vLLM, where it is left out


class _PlainChat(msgspec.Struct, gc=False):
    """A chat of nothing but text: the shape of most calls, and cheap to read in one go."""

    messages: list[_PlainTurn]
    model: str | None = None
    stream: bool | None = None
    stream_options: _Options | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: None = None
    functions: None = None
    response_format: None = None
    structured_outputs: None = None
    guided_json: None = None
    previous_response_id: None = None


_PLAIN_CHAT: Final = msgspec.json.Decoder(_PlainChat)
_PLAIN_BYTES_MAX: Final = 1_310_720  # of larger ones some hold so many strings that reading them holds up others


class _Members(NamedTuple):
    """Which top-level members carry text: turns, plain content, JSON that templates print."""

    turns: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()


_MEMBERS: Final[Mapping[Endpoint, _Members]] = {
    Endpoint.CHAT: _Members(_CHAT_TURNS, (), _CHAT_SCHEMAS),
    Endpoint.COMPLETIONS: _Members((), ("prompt", "suffix")),
    Endpoint.RESPONSES: _Members(("input",), ("instructions",), ("tools", "text")),
    Endpoint.MESSAGES: _Members(_CHAT_TURNS, ("system",), ("tools",)),
    Endpoint.COUNT_TOKENS: _Members(_CHAT_TURNS, ("system",), ("tools",)),
    Endpoint.TOKENIZE: _Members(_CHAT_TURNS, ("prompt",), ("tools",)),
    Endpoint.DETOKENIZE: _Members((), ("tokens",)),
}
_POOLING_MEMBERS: Final = _Members(_CHAT_TURNS, _POOLING_CONTENT)


class BodyFacts(NamedTuple):
    """What one request asks for.

    ``stream`` and ``wants_usage`` are as the engine will read them; ``max_tokens`` is the client's bound on the answer,
    ``None`` where it set none that makes sense. ``background`` asks for generation after the answer has ended.
    """

    model: str | None
    stream: bool
    wants_usage: bool
    max_tokens: int | None
    size: TextSize
    previous_response_id: str | None = None
    background: bool = False


def parse(route: Route, body: bytes, content_type: bytes) -> BodyFacts:
    """Return what ``body`` asks for.

    Raises ``InvalidRequest`` if it is no JSON object in UTF-8 (no form upload, where the route takes those) or its
    model is no string. Whatever else is wrong with it is left to the engine.
    """
    if route.multipart:
        return _parse_form(body, content_type)
    if route.endpoint is Endpoint.CHAT and len(body) <= _PLAIN_BYTES_MAX:
        facts = _plain_chat(body)
        if facts is not None:
            return facts
    fields, _ = _open(body)
    options = _value(fields, "stream_options")
    limits = _LIMITS_BY_ENDPOINT.get(route.endpoint)
    return BodyFacts(
        model=_model(fields),
        stream=limits is not None and as_bool(_value(fields, "stream")) is True,  # others stream nothing
        # vLLM's StreamOptions.include_usage is true where it is left out
        wants_usage=isinstance(options, dict) and as_bool(options.get("include_usage", True)) is True,
        max_tokens=_max_tokens(fields, limits or ()),
        size=_size(body, fields, _MEMBERS.get(route.endpoint, _POOLING_MEMBERS)),
        previous_response_id=_string(_value(fields, "previous_response_id")),
        background=route.endpoint is Endpoint.RESPONSES and as_bool(_value(fields, "background")) is True,
    )


def rewrite(body: bytes, *, model: str | None = None, include_usage: bool = False) -> bytes:
    """Return ``body`` with another ``model`` and/or ``stream_options.include_usage`` set.

    Usage in every chunk (``continuous_usage_stats``), which the engine gives only beside it, stays off then. Every
    other value keeps its bytes and its place; ``stream_options`` that are no object stay for the engine to refuse.
    Raises ``InvalidRequest`` if ``body`` is no JSON object.
    """
    fields, opened = _open(body)
    if model is not None:
        fields["model"] = msgspec.Raw(_ENCODER.encode(model))
    if include_usage:
        fields["stream_options"] = _with_usage(fields.get("stream_options", _NULL))
    rewritten = _ENCODER.encode(fields)
    return rewritten if opened is body else surrogates.restored(rewritten, body)


def rewrite_multipart(body: bytes, content_type: bytes, model: str) -> bytes:
    """Return the form ``body`` with another value in its model field; all other bytes stay.

    Raises ``InvalidRequest`` if it is no well-formed form upload.
    """
    return multipart.replace(body, content_type, "model", model.encode())


def as_bool(value: Any) -> bool | None:
    """Return the boolean the engine (pydantic, lax mode) reads in ``value``, or ``None`` where it reads none."""
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE_WORDS else False if word in _FALSE_WORDS else None
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return value == 1
    return None


def _open(body: bytes) -> tuple[dict[str, msgspec.Raw], bytes]:
    """Return the top-level members, and the bytes they are part of: ``body``, or it with stand-ins for surrogates."""
    try:
        try:
            return _FIELDS.decode(body), body
        except msgspec.DecodeError:
            mended = surrogates.replaced(body)
            return _FIELDS.decode(mended), mended
    except msgspec.ValidationError:
        raise InvalidRequest("The request body must be a JSON object.") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON in UTF-8 ({_reason(error)}).") from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None


def _with_usage(options: msgspec.Raw) -> msgspec.Raw:
    try:
        members = _OPTIONS.decode(options) or {}
    except (msgspec.DecodeError, RecursionError):
        return options
    members["include_usage"] = _TRUE
    members.pop("continuous_usage_stats", None)
    return msgspec.Raw(_ENCODER.encode(members))


def _reason(error: msgspec.DecodeError) -> str:
    """Return the codec's complaint: position and kind of the fault, never the text at fault."""
    return str(error).removeprefix("JSON is malformed: ")


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """Return the decoded member, ``None`` if it is absent or the codec cannot read it."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _model(fields: Mapping[str, msgspec.Raw]) -> str | None:
    model = _value(fields, "model")
    if isinstance(model, str):
        return model
    if bytes(fields.get("model", b"null")) == b"null":
        return None
    raise InvalidRequest("`model` must be a string.", param="model")


def _plain_chat(body: bytes) -> BodyFacts | None:
    """Return what ``parse`` would of a chat of plain text, ``None`` if there is more to the body than that."""
    try:
        chat = _PLAIN_CHAT.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    bounds = [bound for bound in (chat.max_tokens, chat.max_completion_tokens) if bound and 0 < bound <= _TOKENS_MAX]
    return BodyFacts(
        model=chat.model,
        stream=chat.stream is True,
        wants_usage=chat.stream_options is not None and chat.stream_options.include_usage,
        max_tokens=max(bounds, default=None),
        size=weigh([turn.content for turn in chat.messages], len(chat.messages)),
    )


def _max_tokens(fields: Mapping[str, msgspec.Raw], names: tuple[str, ...]) -> int | None:
    largest = 0
    for name in names:
        if name in fields:
            value = _value(fields, name)
            if type(value) is int and largest < value <= _TOKENS_MAX:
                largest = value
    return largest or None


def _size(body: bytes, fields: Mapping[str, msgspec.Raw], members: _Members) -> TextSize:
    scale = Scale(body)
    for names, add in (
        (members.turns, scale.add_turns),
        (members.content, scale.add_content),
        (members.schemas, scale.add_schemas),
    ):
        for name in names:
            raw = fields.get(name)
            if raw is not None:
                add(raw)
    return scale.size()


def _parse_form(body: bytes, content_type: bytes) -> BodyFacts:
    fields = multipart.fields(body, content_type)
    return BodyFacts(
        model=fields.get("model"),
        stream=as_bool(fields.get("stream")) is True,
        wants_usage=as_bool(fields.get("stream_include_usage")) is True,
        max_tokens=None,
        size=TextSize(),
    )

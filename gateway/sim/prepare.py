"""Raw body -> everything a generation needs. Pure and synchronous, so that big prompts can be prepared in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar
from zlib import crc32

from gateway.sim import ask as asks
from gateway.sim.answer import Answer, Kind, Wish, compose
from gateway.sim.ask import Ask, Body, Refusal, bad
from gateway.sim.text import encode

_T = TypeVar("_T")


class Prepared(NamedTuple):
    """A request understood: ``blocks`` are those of prompt and answer together."""

    ask: Ask
    answer: Answer
    prompt_tokens: int
    blocks: list[int]


class Embedded(NamedTuple):
    """A request for embeddings understood."""

    prompts: list[str]
    prompt_tokens: int
    blocks: list[int]
    base64: bool


def generation(raw: bytes, parse: Callable[[Body], Ask], model: str, max_model_len: int) -> Prepared:
    """Parse, tokenise and think up the answer. Raises ``Refusal``."""
    body = checked(raw, model)
    ask = shaped(parse, body)
    encoded = encode(ask.prompt)
    room = max_model_len - encoded.tokens
    if room < 1 or (ask.limit or 1) > room:
        raise _too_long(encoded.tokens, ask.limit or 1, max_model_len)
    answer = compose(
        Wish(
            seed=crc32(ask.prompt.encode()),
            question=ask.question,
            limit=ask.limit or room,
            ignore_eos=ask.ignore_eos,
            thinking=ask.thinking,
            schema=ask.schema,
            tool=ask.tool,
            stop=ask.stop,
        )
    )
    said = "".join(answer.text(kind) for kind in (Kind.REASONING, Kind.TEXT, Kind.TOOL))
    return Prepared(ask, answer, encoded.tokens, encoded.then(said))


def embeddings(raw: bytes, model: str, max_model_len: int) -> Embedded:
    """The same for ``/v1/embeddings``. Raises ``Refusal``."""
    body = checked(raw, model)
    prompts = shaped(asks.prompts, body)
    encoded = [encode(prompt) for prompt in prompts]
    longest, total = max(one.tokens for one in encoded), sum(one.tokens for one in encoded)
    if longest > max_model_len:
        raise _too_long(longest, 0, max_model_len)
    return Embedded(prompts, total, encode("".join(prompts)).blocks, body.get("encoding_format") == "base64")


def checked(raw: bytes, model: str) -> Body:
    """The body, if it asks for ``model`` or for none. Raises ``Refusal``."""
    body = asks.decode(raw)
    asked = body.get("model")
    if asked is not None and asked != model:
        raise Refusal(404, "NotFoundError", f"The model `{asked}` does not exist.", "model")
    return body


def shaped(parse: Callable[[Body], _T], body: Body) -> _T:
    """``parse`` applied to ``body``. Raises ``Refusal`` also where a field is of an odd type."""
    try:
        return parse(body)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):  # a field of another type than the API's
        raise bad("The request body has a field of the wrong type") from None


def _too_long(prompt: int, output: int, max_model_len: int) -> Refusal:
    return bad(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested {output} output tokens "
        f"and your prompt contains at least {prompt} input tokens, for a total of at least {prompt + output} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens.",
        "input_tokens",
    )

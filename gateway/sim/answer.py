"""What the simulated model says: readable, decided by a hash of the prompt alone, in tokens of ``text.pieces``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from gateway.sim.text import pieces

_OPENERS = ("In short", "As far as I can see", "To begin with", "Put simply", "For most teams", "On closer reading")
_SUBJECTS = ("the queue", "a long prompt", "this approach", "the second card", "each request", "the cache", "your plan")
_VERBS = ("keeps", "explains", "improves", "follows", "shares", "needs", "shows")
_OBJECTS = ("a steady pace", "the same prefix", "more memory", "the earlier answer", "a clear limit", "fewer steps")
_WIDE = (
    "简单来说,",
    "缓存让回答更快",
    "长提示需要更多时间",
    "请看下一步",
    "每个请求都会排队",
    "谢谢你的问题😀",
    "结果是稳定的",
)
_WIDE_SHARE = 0.3  # of the question's characters: then the answer is Chinese
_NATURAL_TOKENS = (60, 300)
_THINKING_TOKENS = (20, 120)
_DEPTH_MAX = 6
_LENGTH_MAX = 10_000


class Kind(Enum):
    """What a piece of an answer is."""

    REASONING = "reasoning"
    TEXT = "text"
    TOOL = "tool"


class Part(NamedTuple):
    """A stretch of the answer: one string per token."""

    kind: Kind
    tokens: Sequence[str]


class ToolCall(NamedTuple):
    """A function call: its id, its name and its arguments as JSON text."""

    id: str
    name: str
    arguments: str


class Piece(NamedTuple):
    """Consecutive tokens of one kind, as text."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, ready to be cut. ``finish`` is OpenAI's word: ``stop``, ``length`` or ``tool_calls``."""

    parts: tuple[Part, ...]
    finish: str
    tool: ToolCall | None = None

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        return sum(len(part.tokens) for part in self.parts)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thinking among them."""
        return sum(len(part.tokens) for part in self.parts if part.kind is Kind.REASONING)

    def cut(self, start: int, stop: int) -> Iterator[Piece]:
        """The text of tokens ``start`` to ``stop``, part by part."""
        for part in self.parts:
            if start < len(part.tokens) and stop > 0:
                yield Piece(part.kind, "".join(part.tokens[max(0, start) : stop]))
            start, stop = start - len(part.tokens), stop - len(part.tokens)

    def text(self, kind: Kind) -> str:
        """Everything of one kind."""
        return "".join("".join(part.tokens) for part in self.parts if part.kind is kind)


@dataclass(frozen=True, slots=True)
class Wish:
    """What shapes an answer: the prompt's ``seed`` and last words, and what the client asked for.

    ``schema`` asks for JSON that fits it, ``tool`` (name, schema of arguments) for a function call.
    """

    seed: int
    question: str
    limit: int
    ignore_eos: bool = False
    thinking: bool = False
    schema: Mapping[str, Any] | None = None
    tool: tuple[str, Mapping[str, Any]] | None = None
    stop: tuple[str, ...] = ()


def compose(wish: Wish) -> Answer:
    """The answer to ``wish``, never longer than its limit; an answer that reached it ends in ``length``."""
    parts: list[Part] = []
    if wish.thinking:
        parts.append(Part(Kind.REASONING, _prose(wish.seed ^ 0x5A5A, _between(wish.seed >> 3, _THINKING_TOKENS))))
    tool = None
    if wish.tool is not None:
        name, parameters = wish.tool
        tool = ToolCall(f"call-{wish.seed:08x}", name, _json(example(parameters)))
        parts.append(Part(Kind.TOOL, pieces(tool.arguments)))
    elif wish.schema is not None:
        parts.append(Part(Kind.TEXT, pieces(_json(example(wish.schema)))))
    else:
        parts.append(Part(Kind.TEXT, _speech(wish)))
    kept, complete = _limited(parts, wish.limit)
    finish = "length" if not complete or wish.ignore_eos else "tool_calls" if tool else "stop"
    return Answer(kept, finish, tool)


def example(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A small value that fits a JSON schema (the common part of it: types, enums, objects, arrays, references).

    Below ``_DEPTH_MAX`` optional things are left out, so that a schema that refers to itself comes to an end.
    """
    root, deep = schema if root is None else root, depth > _DEPTH_MAX
    if "$ref" in schema:
        return {} if deep else example(_resolve(str(schema["$ref"]), root), root, depth + 1)
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return example(schema[choice][-1 if deep else 0], root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        wanted = schema.get("required", ()) if deep else schema.get("properties", ())
        return {name: example(schema["properties"][name], root, depth + 1) for name in wanted}
    if kind == "array":
        length = min(_LENGTH_MAX, schema.get("minItems", 0 if deep else 1))
        return [example(schema.get("items", {}), root, depth + 1) for _ in range(length)]
    return _scalar(kind, schema)


def _scalar(kind: object, schema: Mapping[str, Any]) -> Any:
    if kind == "string":
        return "steady".ljust(min(_LENGTH_MAX, schema.get("minLength", 0)), ".")[: schema.get("maxLength")]
    lowest = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    return {"integer": lowest, "number": lowest, "boolean": True}.get(str(kind))


def _resolve(pointer: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    target: Any = root
    for name in pointer.removeprefix("#").strip("/").split("/"):
        target = target[name] if name else target
    return {} if target is root else dict(target)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _between(seed: int, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return low + seed % (high - low + 1)


def _speech(wish: Wish) -> Sequence[str]:
    length = wish.limit if wish.ignore_eos else _between(wish.seed, _NATURAL_TOKENS)
    wide = sum(not character.isascii() for character in wish.question[:200])
    if wide > _WIDE_SHARE * max(1, len(wish.question[:200])):
        tokens = _wide_prose(wish.seed, length)
    else:
        tokens = _prose(wish.seed, length)
    if not wish.stop or wish.ignore_eos:
        return tokens
    text = "".join(tokens)
    return pieces(text[: min((at for word in wish.stop if (at := text.find(word)) >= 0), default=len(text))])


def _prose(seed: int, length: int) -> Sequence[str]:
    """Whole sentences of at least ``length`` tokens."""
    sentences: list[str] = []
    characters = 0
    while characters < 4 * length:
        seed = crc32(seed.to_bytes(8, "big"))
        opener, subject = _OPENERS[seed % len(_OPENERS)], _SUBJECTS[(seed >> 8) % len(_SUBJECTS)]
        verb, thing = _VERBS[(seed >> 16) % len(_VERBS)], _OBJECTS[(seed >> 24) % len(_OBJECTS)]
        sentences.append(f"{opener}, {subject} {verb} {thing}. ")
        characters += len(sentences[-1])
    return pieces("".join(sentences).rstrip())


def _wide_prose(seed: int, length: int) -> Sequence[str]:
    tokens: list[str] = []
    while len(tokens) < length:
        seed = crc32(seed.to_bytes(8, "big"))
        tokens += pieces(_WIDE[seed % len(_WIDE)])
    return tokens


def _limited(parts: Sequence[Part], limit: int) -> tuple[tuple[Part, ...], bool]:
    kept: list[Part] = []
    for part in parts:
        taken = part.tokens[:limit]
        limit -= len(taken)
        if taken:
            kept.append(Part(part.kind, taken))
    return tuple(kept), sum(len(part.tokens) for part in kept) == sum(len(part.tokens) for part in parts)

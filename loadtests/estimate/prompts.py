"""Chat bodies as several keys send them: each key has its own kind of text, one mixes them all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

MIXED = "mixed"
TOOLS = "tools"
_TURNS_MAX = 16
_SYSTEM = "You are a helpful assistant of the department. Answer briefly and say what you do not know."


class Prompt(NamedTuple):
    """One call: who sends it, what it is made of, its body on the wire."""

    key: str
    kind: str
    body: bytes


class Writer:
    """Writes chat bodies of a given number of characters from passages of each kind."""

    def __init__(self, passages: Mapping[str, Sequence[str]], tools: Sequence[object], rng: Random) -> None:
        self._passages, self._toolbox, self._rng = passages, tools, rng
        self.kinds = (*passages, TOOLS)
        self.keys = (*self.kinds, MIXED)

    def kind_for(self, key: str) -> str:
        """What a key sends this time."""
        return self._rng.choice(self.kinds) if key == MIXED else key

    def write(self, key: str, kind: str, chars: int) -> Prompt:
        """A conversation of about ``chars`` characters, up to the last question."""
        body: dict[str, object] = {"model": "m"}
        if kind == TOOLS:
            tools, chars = self._tools(chars)
            body["tools"] = tools
            text = self._text("english", max(chars, 200))
        else:
            text = self._text(kind, chars)
        body["messages"] = self._turns(text)
        return Prompt(key, kind, json.dumps(body, ensure_ascii=False).encode())

    def _tools(self, chars: int) -> tuple[list[object], int]:
        """Tool definitions for up to nine tenths of ``chars``, and how many are left for the conversation."""
        share = chars * self._rng.uniform(0.3, 0.9)
        taken: list[object] = []
        at = self._rng.randrange(len(self._toolbox))
        while not taken or share > 0:
            tool = self._toolbox[at % len(self._toolbox)]
            taken.append(tool)
            size = len(json.dumps(tool))
            share, chars, at = share - size, chars - size, at + 1
        return taken, chars

    def _text(self, kind: str, chars: int) -> str:
        passages = self._passages[kind]
        at, parts, left = self._rng.randrange(len(passages)), [], chars
        while left > 0:
            part = passages[at % len(passages)][:left]
            parts.append(part)
            left, at = left - len(part) - 2, at + 1
        return "\n\n".join(parts)

    def _turns(self, text: str) -> list[dict[str, str]]:
        """``text`` shared out over a system message perhaps, and an odd number of turns."""
        turns = min(2 * self._rng.randrange(_TURNS_MAX // 2) + 1, 1 + len(text) // 400 * 2)
        cuts = sorted(self._rng.randrange(len(text) + 1) for _ in range(turns - 1))
        parts = [text[start:end] for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]
        said = [{"role": ("user", "assistant")[i % 2], "content": part} for i, part in enumerate(parts)]
        return [{"role": "system", "content": _SYSTEM}, *said] if self._rng.random() < 0.5 else said

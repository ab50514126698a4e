"""How much text a prompt is, before anyone tokenised it: counted with C-speed string operations only.

Everything is counted that a chat template could print, in whatever shape the client sent it; media (base64, URLs,
audio) is counted by the piece. Nothing is refused: what is odd is the engine's to judge.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from gateway.domain import TextSize

_MEDIA_KEYS: Final = frozenset(
    {
        "audio",
        "audio_url",
        "file",
        "file_data",
        "image",
        "image_embeds",
        "image_url",
        "input_audio",
        "video",
        "video_url",
    }
)
_MEDIA_SOURCES: Final = frozenset({"base64", "url", "file"})  # Anthropic: {"source": {"type": …}}
_LABEL_KEYS: Final = frozenset(
    {"type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "signature", "encrypted_content"}
)
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class Scale:
    """Weighs the members of one request body and adds them up; ``size`` is the sum."""

    __slots__ = ("_images", "_messages", "_narrow", "_tokens", "_wide")

    def __init__(self) -> None:
        self._narrow = self._wide = self._messages = self._images = self._tokens = 0

    @property
    def size(self) -> TextSize:
        """The sum so far."""
        return TextSize(self._narrow, self._wide, self._messages, self._images, self._tokens)

    def add_turns(self, raw: msgspec.Raw) -> None:
        """Add messages or conversation items: their text, and one turn each."""
        turns = _decoded(raw)
        self._messages += len(turns) if isinstance(turns, list) else 1
        self._add(turns)

    def add_content(self, raw: msgspec.Raw) -> None:
        """Add a string, token ids, content parts, or lists of these."""
        self._add(_decoded(raw))

    def add_schemas(self, raw: msgspec.Raw) -> None:
        """Add tool definitions or a response schema: printed as JSON by templates, so weighed by their own bytes."""
        literal = bytes(raw)
        if literal == b"null":
            return
        self._messages += literal.count(b'"function"') or 1
        self._add_text(literal.decode("utf-8", "replace"))

    def _add(self, value: Any) -> None:
        """Walk ``value`` without recursion, so that depth is nobody's problem."""
        stack = [value]
        while stack:
            match stack.pop():
                case str() as text:
                    self._add_text(text)
                case [int() as first, *_] as ids if type(first) is int:
                    self._tokens += len(ids)
                case list() as items:
                    stack += items
                case dict() as part:
                    stack += self._texts_of(part)
                case _:  # numbers, booleans and null weigh nothing
                    pass

    def _texts_of(self, part: dict[str, Any]) -> list[Any]:
        texts = []
        for key, value in part.items():
            if key in _MEDIA_KEYS:
                self._images += value is not None
            elif key == "source" and isinstance(value, dict) and value.get("type") in _MEDIA_SOURCES:
                self._images += 1
            elif key not in _LABEL_KEYS:
                texts.append(value)
        return texts

    def _add_text(self, text: str) -> None:
        length = len(text)
        narrow = length if text.isascii() else len(text.encode("ascii", "ignore"))
        self._narrow += narrow
        self._wide += length - narrow


def _decoded(raw: msgspec.Raw) -> Any:
    """Decode ``raw``; what the codec refuses but JSON allows (lone surrogates, 1e999) is mended, or taken as text."""
    literal = bytes(raw)
    for spelling in (bytes, _mended):
        try:
            return msgspec.json.decode(spelling(literal))
        except (msgspec.DecodeError, RecursionError):
            continue
    return literal.decode("utf-8", "replace")


def _mended(literal: bytes) -> bytes:
    """Replace surrogate escapes and bytes that are no UTF-8, keeping the length in characters near enough."""
    return _SURROGATE_ESCAPE.sub(rb"\\ufffd", literal).decode("utf-8", "replace").encode()

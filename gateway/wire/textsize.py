"""How much text a prompt is, before anyone tokenised it: counted with C-speed string operations only.

Everything is counted that a chat template could print, in whatever shape the client sent it; media (base64, URLs,
audio) is counted by the piece. Nothing is refused: what is odd is the engine's to judge. How many characters there are
is exact; which kinds they are of is exact in a short prompt and taken from a sample in a long one.
"""

from __future__ import annotations

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
_NOTHING: Final = frozenset({b"null", b"[]", b"{}"})
_BASE64: Final = b";base64,"
_SCHEMAS: Final = msgspec.json.Decoder(list[msgspec.Raw])


_OPENED_BYTES: Final = 1 << 18  # up to here every body is opened
_STRINGS_MAX: Final = 32_768  # a larger one of more strings is weighed unopened: it would hold up everybody else

_DIGITS: Final = b"0123456789"
_BEYOND_ASCII: Final = bytes(range(128, 256))
_WHOLE_CHARS: Final = 512
# By the number of bits in a longer prompt's length: of 3,000 characters some 250 are looked at, of a million 1,500. All
# are prime, so that a table's rows are not met at the same column each time.
_STRIDES: Final = (1,) * 10 + (3, 7, 13, 23, 37, 61, 97, 157, 251, 397, 641, 1_021, 2_039, 4_093, 8_191, 16_381, 32_749)


def weigh(texts: list[str], turns: int, images: int = 0, tokens: int = 0) -> TextSize:
    """Return the size of ``texts`` in so many ``turns``, with ``images`` and ``tokens`` counted elsewhere."""
    chars = sum(map(len, texts))
    if chars < _WHOLE_CHARS:
        stride, text = 1, "".join(texts)
    else:
        stride = _STRIDES[min(chars.bit_length(), len(_STRIDES) - 1)]
        text = _every(stride, texts)
    spelt = text.encode("utf-8", "replace")
    digits = (len(spelt) - len(spelt.translate(None, _DIGITS))) * stride
    if len(spelt) == len(text):  # all of it ASCII
        return TextSize(chars, 0, turns, images, tokens, min(digits, chars), 0)
    wide, three_byte = _wide_kinds(text, spelt)
    beyond = min(wide * stride, chars)
    narrow = chars - beyond
    return TextSize(narrow, beyond, turns, images, tokens, min(digits, narrow), min(three_byte * stride, beyond))


class Scale:
    """Weighs the members of one request ``body`` and adds them up; ``size()`` is the sum."""

    __slots__ = ("_images", "_messages", "_opens", "_texts", "_tokens")

    def __init__(self, body: bytes) -> None:
        self._messages = self._images = self._tokens = 0
        self._texts: list[str] = []
        self._opens = not _crowded(body)

    def size(self) -> TextSize:
        """Return the sum so far."""
        return weigh(self._texts, self._messages, self._images, self._tokens)

    def add_turns(self, raw: msgspec.Raw) -> None:
        """Add messages or conversation items: their text, and one turn each."""
        turns = self._open(raw)
        self._messages += len(turns) if isinstance(turns, list) else 1
        self._add(turns)

    def add_content(self, raw: msgspec.Raw) -> None:
        """Add a string, token ids, content parts, or lists of these."""
        literal = bytes(raw)
        if literal[:1] == b"[" and b'"' not in literal:  # token ids, perhaps in batches: no need to make 100,000 ints
            self._tokens += literal.count(b",") + 1 if literal.strip(b"[] \t\r\n") else 0
        else:
            self._add(self._open(raw))

    def add_schemas(self, raw: msgspec.Raw) -> None:
        """Add tool definitions or a response schema: printed as JSON by templates, so weighed by their own bytes."""
        literal = bytes(raw)
        if literal not in _NOTHING:
            try:
                self._messages += len(_SCHEMAS.decode(raw))
            except (msgspec.DecodeError, RecursionError):
                self._messages += 1
            self._texts.append(literal.decode("utf-8", "replace"))

    def _open(self, raw: msgspec.Raw) -> Any:
        """Decode ``raw``; what the codec refuses (bad UTF-8, 1e999) is mended, or else weighed as text."""
        if self._opens:
            try:
                return msgspec.json.decode(raw)
            except (msgspec.DecodeError, RecursionError):
                pass
            try:
                return msgspec.json.decode(_mended(raw))
            except (msgspec.DecodeError, RecursionError):
                pass
        self._add_unopened(bytes(raw))
        return None

    def _add_unopened(self, literal: bytes) -> None:
        """Add JSON as if all of it were text, but for base64."""
        head, *spans = literal.split(_BASE64)
        self._images += len(spans)
        for piece in (head, *(span[end:] for span in spans if (end := span.find(b'"')) >= 0)):
            self._texts.append(piece.decode("utf-8", "replace"))

    def _add(self, value: Any) -> None:
        """Walk ``value`` without recursion, so that depth is nobody's problem."""
        stack = [value]
        while stack:
            node = stack.pop()
            if type(node) is str:
                self._texts.append(node)
            elif type(node) is dict:
                self._add_part(node, stack)
            elif type(node) is list:
                stack += node  # numbers, booleans and null in it weigh nothing

    def _add_part(self, part: dict[str, Any], stack: list[Any]) -> None:
        """Add a message or a content part: its strings now, what is nested goes on the ``stack``."""
        for key, value in part.items():
            if key in _LABEL_KEYS:
                continue
            if key in _MEDIA_KEYS or (key == "source" and _is_media(value)):
                self._images += value is not None
            elif type(value) is str:
                self._texts.append(value)
            else:
                stack.append(value)


def _wide_kinds(text: str, spelt: bytes) -> tuple[int, int]:
    """How many characters of ``text`` are beyond ASCII, and how many of these take three or more bytes as ``spelt``."""
    narrow = len(spelt.translate(None, _BEYOND_ASCII))
    wide = len(text) - narrow
    return wide, min(wide, len(spelt) - narrow - 2 * wide)  # an emoji has four bytes and counts as two


def _every(stride: int, texts: list[str]) -> str:
    """Every ``stride``-th character of ``texts``, without joining them: they may be large."""
    parts, at = [], 0
    for text in texts:
        parts.append(text[-at % stride :: stride])
        at += len(text)
    return "".join(parts)


def _crowded(body: bytes) -> bool:
    """Whether a large JSON text may hold more strings than are worth opening."""
    return len(body) > _OPENED_BYTES and body.count(b'"') > 2 * _STRINGS_MAX


def _is_media(source: Any) -> bool:
    return isinstance(source, dict) and source.get("type") in _MEDIA_SOURCES


def _mended(raw: msgspec.Raw) -> bytes:
    """Replace bytes that are no UTF-8."""
    return bytes(raw).decode("utf-8", "replace").encode()

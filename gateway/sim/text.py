"""The simulator's tokeniser: up to four ASCII characters are one token, any other character is one.

A run of ASCII is cut from its start, so that an answer, cut the same way when it is generated, has the same tokens
when it returns as part of a longer prompt: a conversation finds its own blocks in the prefix cache. Private use
characters stand for the chat template's special tokens and for image tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

BLOCK_TOKENS = 16
IMAGE_TOKENS = 256

_TOKEN = re.compile(r"[\x00-\x7f]{1,4}|[^\x00-\x7f]")
_BLOCK = re.compile(r"(?>(?:[\x00-\x7f]{1,4}+|[^\x00-\x7f]){16})")  # atomic: a block never regroups its tokens
_TURN_END = "\ue000"
_TURNS = {"system": "\ue001", "developer": "\ue001", "user": "\ue002", "assistant": "\ue003", "tool": "\ue004"}
_OTHER_TURN = "\ue005"
_IMAGES = 0xF0000  # planes 15 and 16 are private: one character for each image digest or foreign token id
_PRIVATE = 0xFFFE
_WIDE = 1 << 30


class Encoded(NamedTuple):
    """A text as the engine sees it: its length in tokens, chained hashes of its full blocks, the text after them."""

    tokens: int
    blocks: list[int]
    rest: str

    def then(self, text: str) -> list[int]:
        """The blocks of this text followed by ``text``."""
        return self.blocks + encode(self.rest + text, self.blocks[-1] if self.blocks else 0).blocks


def encode(text: str, digest: int = 0) -> Encoded:
    """Tokenise ``text``; about 0.1 µs per token.

    Hashes are equal exactly for equal beginnings (up to 64-bit collisions) within one process. ``digest`` is the hash
    of the block before.
    """
    blocks: list[int] = []
    end = 0
    for match in _BLOCK.finditer(text):
        digest = hash((digest, match[0]))
        blocks.append(digest)
        end = match.end()
    return Encoded(len(blocks) * BLOCK_TOKENS + len(pieces(text[end:])), blocks, text[end:])


def pieces(text: str) -> list[str]:
    """The text of each token."""
    return _TOKEN.findall(text)


def token_ids(text: str) -> list[int]:
    """Ids that ``from_ids`` turns back into ``text``."""
    return [_token_id(piece) for piece in pieces(text)]


def from_ids(ids: Iterable[int]) -> str:
    """The text of token ids; an id that is none of ours becomes one private character, so that it stays one token."""
    return "".join(map(_token_text, ids))


def foreign(ids: Iterable[int]) -> str:
    """A prompt given as token ids: one token each, whatever they mean."""
    return "".join(chr(_IMAGES + token % _PRIVATE) for token in ids)


def image(url: str) -> str:
    """An image's tokens: always as many, and the same for the same image. ``url`` may be megabytes of base64."""
    return chr(_IMAGES + crc32(url.encode(errors="replace")) % _PRIVATE) * IMAGE_TOKENS


def turn(role: str, content: str) -> str:
    """One message, as a chat template would wrap it."""
    return f"{_TURNS.get(role, _OTHER_TURN)}{content}{_TURN_END}"


def answer_turn() -> str:
    """The beginning of the assistant's turn, after which the model generates."""
    return _TURNS["assistant"]


def _token_id(piece: str) -> int:
    if not piece.isascii():
        return _WIDE | ord(piece)
    value = 1
    for character in piece:
        value = value << 7 | ord(character)
    return value


def _token_text(token: int) -> str:
    wide = token ^ _WIDE
    if 0x80 <= wide <= 0x10FFFF and not 0xD800 <= wide <= 0xDFFF:  # a surrogate is no character
        return chr(wide)
    length, odd = divmod(token.bit_length() - 1, 7)
    if token < 1 or odd or not 1 <= length <= 4:
        return foreign((token,))
    return "".join(chr(token >> 7 * shift & 0x7F) for shift in reversed(range(length)))

"""Lone surrogate escapes (half an emoji, cut off by a client), which JSON allows and the codec refuses.

They are for the engine to judge: to read a body they are replaced by a stand-in of the same length, and put back
before it is forwarded.
"""

from __future__ import annotations

import re
from typing import Final

_STAND_IN: Final = rb"\uf8ff"  # a private-use character: no one's text
# an escaped backslash, a whole pair, or (group 1) half a pair
_SURROGATE: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def replaced(body: bytes) -> bytes:
    """Return ``body`` with a stand-in for every lone surrogate escape."""
    return _SURROGATE.sub(lambda match: _STAND_IN if match[1] else match[0], body)


def restored(body: bytes, original: bytes) -> bytes:
    """Return ``body`` with the lone surrogates of ``original`` in place of their stand-ins, in order."""
    if _STAND_IN not in body or _STAND_IN in original:
        return body
    lone = [match[1] for match in _SURROGATE.finditer(original) if match[1]]
    first, *rest = body.split(_STAND_IN)
    return first + b"".join(half + piece for half, piece in zip(lone, rest, strict=False))

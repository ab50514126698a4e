"""The paths that are model calls: exact bytes, so that no odd spelling of a path reaches another route."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.domain import Endpoint


class Route(NamedTuple):
    """What a path means. ``takes_permit`` is False where no GPU works; ``multipart`` where bodies are form uploads.

    ``response_id`` is set where the path names a response that some replica stored.
    """

    endpoint: Endpoint
    takes_permit: bool = True
    multipart: bool = False
    response_id: str | None = None


ROUTES: Final[Mapping[bytes, Route]] = MappingProxyType(
    {
        b"/v1/chat/completions": Route(Endpoint.CHAT),
        b"/v1/completions": Route(Endpoint.COMPLETIONS),
        b"/v1/responses": Route(Endpoint.RESPONSES),
        b"/v1/messages": Route(Endpoint.MESSAGES),
        b"/v1/messages/count_tokens": Route(Endpoint.COUNT_TOKENS, takes_permit=False),
        b"/v1/embeddings": Route(Endpoint.EMBEDDINGS),
        b"/v1/score": Route(Endpoint.SCORE),
        b"/score": Route(Endpoint.SCORE),
        b"/v1/rerank": Route(Endpoint.RERANK),
        b"/rerank": Route(Endpoint.RERANK),
        b"/v2/rerank": Route(Endpoint.RERANK),
        b"/pooling": Route(Endpoint.POOLING),
        b"/classify": Route(Endpoint.CLASSIFY),
        b"/v1/audio/transcriptions": Route(Endpoint.TRANSCRIPTIONS, multipart=True),
        b"/v1/audio/translations": Route(Endpoint.TRANSLATIONS, multipart=True),
        b"/tokenize": Route(Endpoint.TOKENIZE, takes_permit=False),
        b"/detokenize": Route(Endpoint.DETOKENIZE, takes_permit=False),
    }
)
"""POST routes by exact raw path (no query)."""

_STORED = re.compile(rb"/v1/responses/([A-Za-z0-9_.-]{1,256})(/cancel)?")


def route_of(method: bytes, raw_path: bytes) -> Route | None:
    """The model call that ``method`` on ``raw_path`` is, ``None`` if it is none."""
    route = ROUTES.get(raw_path) if method == b"POST" else None
    if route is not None or not raw_path.startswith(b"/v1/responses/"):
        return route
    stored = _STORED.fullmatch(raw_path)
    if stored is None or method != (b"POST" if stored[2] else b"GET"):
        return None
    return Route(Endpoint.RESPONSES, takes_permit=False, response_id=stored[1].decode("ascii"))


_SUSPECT = re.compile(rb"//|(?:^|/)\.{1,2}(?:/|$)|[^\x21-\x7e]|[%\\]")


def is_clean_path(raw_path: bytes) -> bool:
    """Whether ``raw_path`` (no query) has only one reading.

    False for empty segments, ``.`` and ``..``, any percent-encoded byte, backslashes, spaces, control and non-ASCII
    bytes: two programs in a row may read those differently, and that is how a check is walked around.
    """
    return _SUSPECT.search(raw_path) is None

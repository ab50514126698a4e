"""Request heads for replicas, response headers for clients, and the key a client shows.

Hop-by-hop headers (RFC 9110 §7.6.1) end here; so does whatever would let a client speak for the gateway: its own key,
a data-parallel rank, a cookie. Names are lower-case bytes throughout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED: Final = _HOP_BY_HOP | {
    b"accept-encoding",  # the bytes are watched: no compressed streams
    b"api-key",
    b"authorization",
    b"content-length",
    b"cookie",
    b"host",
    b"x-api-key",
    b"x-data-parallel-rank",
    b"x-request-id",
}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id"}
_NONE_NAMED: Final[frozenset[bytes]] = frozenset()

_REQUEST_ID: Final = re.compile(rb"[!#-&(-~]{1,128}")  # printable ASCII but space and quotes
_UNSAFE: Final = re.compile(rb"[\r\n\0]")


def request_id(client: bytes | None, fallback: str) -> str:
    """Return the client's own id if it is 1-128 printable ASCII characters without quotes, else ``fallback``."""
    if client is not None and _REQUEST_ID.fullmatch(client):
        return client.decode("ascii")
    return fallback


def forward_request_head(
    method: bytes,
    target: bytes,
    host: bytes,
    headers: Headers,
    *,
    content_length: int,
    request_id: str,
    authorization: str | None,
    extra: Iterable[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return the HTTP/1.1 head of the upstream request, blank line included.

    ``authorization`` is the whole header value. Raises ``ValueError`` if the request line would break in two; a header
    that would is left out.
    """
    if _UNSAFE.search(method + target + host) or b" " in target:
        raise ValueError("unsafe request line")
    dropped = _dropped(headers, _NOT_FORWARDED)
    pieces = [method, b" ", target, b" HTTP/1.1\r\nhost: ", host]
    own = [(b"x-request-id", request_id.encode("latin-1", "replace"))]
    if authorization is not None:
        own.append((b"authorization", authorization.encode("latin-1", "replace")))
    for name, value in (*(pair for pair in headers if pair[0] not in dropped), *own, *extra):
        if not _UNSAFE.search(value) and not _UNSAFE.search(name):
            pieces += (b"\r\n", name, b": ", value)
    pieces.append(b"\r\ncontent-length: %d\r\n\r\n" % content_length)
    return b"".join(pieces)


def response_headers(headers: Headers) -> Headers:
    """Return the upstream's response headers that go to the client; framing, date and request id are the gateway's."""
    dropped = _dropped(headers, _NOT_RETURNED)
    return [pair for pair in headers if pair[0] not in dropped]


def credentials(headers: Headers) -> str | None:
    """Return the key from ``Authorization: Bearer``, ``x-api-key`` or ``api-key`` (in this order), or ``None``."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                found[name] = token.strip()
        elif name in (b"x-api-key", b"api-key"):
            found[name] = value.strip()
    for name in (b"authorization", b"x-api-key", b"api-key"):
        if found.get(name):
            return found[name].decode("latin-1")
    return None


def _dropped(headers: Headers, always: frozenset[bytes]) -> frozenset[bytes]:
    """Return ``always`` and the headers that ``Connection`` names."""
    named = _NONE_NAMED
    for name, value in headers:
        if name == b"connection":
            named |= {token.strip() for token in value.lower().split(b",")}
    return always | named if named else always

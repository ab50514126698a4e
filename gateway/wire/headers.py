"""Request heads for replicas, response headers for clients, and the key a client shows.

Hop-by-hop headers (RFC 9110 §7.6.1) end here; so does whatever would let a client speak for the gateway: its own key,
a data-parallel rank, a cookie. Names are lower-case bytes throughout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from gateway.errors import InvalidRequest

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
_NOT_RETURNED: Final = _HOP_BY_HOP | {
    b"access-control-allow-credentials",  # vLLM lets every origin in; who may come here is the gateway's to say
    b"access-control-allow-origin",
    b"access-control-expose-headers",
    b"content-length",
    b"date",
    b"server",
    b"x-request-id",
}
_NOTHING_NAMED: Final = ([b"keep-alive"], [b"close"])  # what nearly all clients send

_REQUEST_ID: Final = re.compile(rb"[!#-&(-~]{1,128}")  # printable ASCII but space and quotes


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

    ``authorization`` is the whole header value. Raises ``InvalidRequest`` if any piece holds a line break or NUL: the
    head would say something else than it was given.
    """
    dropped = _dropped(headers, _NOT_FORWARDED)
    lines = [method + b" " + target + b" HTTP/1.1", b"host: " + host]
    lines += [name + b": " + value for name, value in headers if name not in dropped]
    lines.append(b"x-request-id: " + request_id.encode("latin-1", "replace"))
    if authorization is not None:
        lines.append(b"authorization: " + authorization.encode("latin-1", "replace"))
    lines += [b"%b: %b" % pair for pair in extra]
    lines.append(b"content-length: %d\r\n\r\n" % content_length)
    head = b"\r\n".join(lines)
    breaks = len(lines) + 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head or b" " in target:
        raise InvalidRequest("A header or the path holds a line break, NUL or space where none may be.")
    return head


def response_headers(headers: Headers) -> Headers:
    """Return the response headers that go to the client; framing, date, origins and request id are the gateway's."""
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
    named = [value for name, value in headers if name == b"connection"]
    if not named or named in _NOTHING_NAMED:
        return always
    return always | {token.strip() for value in named for token in value.lower().split(b",")}

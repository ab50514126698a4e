"""A request's head, as the front received it, and whether all who read it would read the same."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from gateway.errors import GatewayError, InvalidRequest
from gateway.wire.endpoints import is_clean_path
from gateway.wire.headers import Headers

VERSIONS = frozenset({"1.0", "1.1"})
MODELS_PREFIX = b"/v1/models/"
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")  # scheme and authority


class Request:
    """Head of one client request. ``target`` is path and query as sent, ``path`` the raw path, both undecoded."""

    __slots__ = ("_first", "client", "headers", "method", "path", "received_s", "target")

    def __init__(
        self, method: bytes, target: bytes, path: bytes, headers: Headers, client: str, received_s: float
    ) -> None:
        self.method = method
        self.target = target
        self.path = path
        self.headers = headers
        self.client = client
        self.received_s = received_s  # monotonic, when the head was complete
        self._first = dict(reversed(headers))

    def header(self, name: bytes) -> bytes | None:
        """The first header called ``name`` (lower case)."""
        return self._first.get(name)

    @property
    def body_bytes(self) -> int | None:
        """How long the body will be, ``None`` if only its end will tell."""
        length = self.header(b"content-length")
        if length is not None:
            return int(length)
        return 0 if self.header(b"transfer-encoding") is None else None


def origin_form(target: bytes) -> bytes:
    """Path and query of ``target``, which may come with scheme and authority (RFC 9112 3.2.2)."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def objection(request: Request, version: str) -> GatewayError | None:
    """Why two readers could disagree about this head, if they could."""
    if version not in VERSIONS or request.method == b"CONNECT":
        return InvalidRequest("Requests must be HTTP/1.1 or HTTP/1.0, and no CONNECT.")
    hosts = 0
    for name, value in request.headers:
        if name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or version == "1.0"):
            return InvalidRequest("The only transfer coding understood is HTTP/1.1's 'chunked'.")
        if name == b"host":
            hosts += 1
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return InvalidRequest("A request needs exactly one Host header.")
    return None


def is_clean(request: Request) -> bool:
    """Whether the path has one reading. Model names may hold an encoded slash, so their path is judged decoded."""
    path = request.path
    if path.startswith(MODELS_PREFIX):
        path = unquote_to_bytes(path)
    return (path.startswith(b"/") and is_clean_path(path)) or (path == b"*" and request.method == b"OPTIONS")

"""A request's head, as the front received it."""

from __future__ import annotations

from gateway.wire.headers import Headers


class Request:
    """Head of one client request. ``target`` is path and query as sent, ``path`` the raw path, both undecoded."""

    __slots__ = ("client", "headers", "method", "path", "received_s", "target")

    def __init__(
        self, method: bytes, target: bytes, path: bytes, headers: Headers, client: str, received_s: float
    ) -> None:
        self.method = method
        self.target = target
        self.path = path
        self.headers = headers
        self.client = client
        self.received_s = received_s  # monotonic, when the head was complete

    def header(self, name: bytes) -> bytes | None:
        """The first header called ``name`` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

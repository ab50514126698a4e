"""Watching an answer that is no stream: a JSON body, read once it is whole, or any other bytes, only passed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from gateway.wire.facts import Facts
from gateway.wire.usage import last_usage

BODY_BYTES_MAX: Final = 1 << 20
TAIL_BYTES: Final = 1 << 16


class JsonWatcher(Facts):
    """A ``Watcher`` of a JSON body. Up to 1 MiB is kept and read whole; of more, the usage at its end."""

    __slots__ = ("_body", "_cut", "_read")

    def __init__(self, read: Callable[[Facts, bytes], None]) -> None:
        super().__init__()
        self._read = read
        self._body = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> bytes:
        """Take the upstream's next bytes; return them."""
        body = self._body
        body += data
        if len(body) > BODY_BYTES_MAX or (self._cut and len(body) > 2 * TAIL_BYTES):
            del body[:-TAIL_BYTES]
            self._cut = True
        return data

    def finish(self) -> bytes:
        """Read the body; nothing was held."""
        body = bytes(self._body)
        self._body.clear()
        if self._cut:
            self.saw_usage(last_usage(body))
            self.has_content = True
            self.completed = body.rstrip().endswith(b"}")
        else:
            try:
                self._read(self, body)
                self.completed = True
            except msgspec.ValidationError:  # JSON of another shape: nothing to learn from it
                self.completed = True
            except (msgspec.DecodeError, RecursionError):
                self.completed = False
        if self.usage is not None:
            self.tokens = self.usage.completion or self.tokens
        self.first_token = self.tokens > 0
        return b""


class PlainWatcher(Facts):
    """A ``Watcher`` of bytes nobody can read here (audio, CSV …): complete when they end."""

    __slots__ = ()

    def feed(self, data: bytes) -> bytes:
        """Return ``data``."""
        return data

    def finish(self) -> bytes:
        """Take note of the end."""
        self.completed = True
        return b""

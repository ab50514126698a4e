"""The way back to an HTTP/1.x client, written straight to its transport.

Framing is chosen once: a known length as ``content-length``, else ``chunked``, else (HTTP/1.0) the end of the
connection. A body that is cut never gets the terminator that its framing promised.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from http import HTTPStatus
from types import MappingProxyType

from gateway.wire.headers import Headers

STATUS_LINES = MappingProxyType(
    {status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode("ascii")) for status in HTTPStatus}
)
LINGER_RESET = struct.pack("ii", 1, 0)


class HttpDownlink:
    """One response on a connection. ``on_done(keep)`` is called once, when it is over.

    ``common`` are headers that every response carries (the date). ``writable`` is asked after each write: ``False``
    means that the transport's buffer is over its high-water mark.
    """

    __slots__ = ("_chunked", "_common", "_done", "_head", "_http10", "_keep", "_on_done", "_transport", "paused")

    def __init__(
        self,
        transport: asyncio.Transport,
        common: Iterable[tuple[bytes, bytes]],
        *,
        http10: bool,
        keep: bool,
        on_done: Callable[[bool], None],
    ) -> None:
        self._transport = transport
        self._common = common
        self._http10 = http10
        self._keep = keep and not http10
        self._on_done = on_done
        self._chunked = False
        self._done = False
        self._head = b""
        self.paused = False

    @property
    def done(self) -> bool:
        """Whether the response is over, cleanly or not."""
        return self._done

    def last(self) -> None:
        """This is the connection's last response."""
        self._keep = False

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Send the head."""
        if self._done:
            return
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in (*self._common, *headers):
            lines += (name, b": ", value, b"\r\n")
        bodyless = status in (204, 304)
        if length is not None and not bodyless:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._http10:
            self._keep = False
        elif not bodyless:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self._keep else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)  # goes out with the first of the body

    def write(self, data: bytes) -> bool:
        """Send body bytes."""
        if self._done or not data:
            return True
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)
        return not self.paused

    def finish(self) -> None:
        """End the body."""
        if self._done:
            return
        rest = self._head + b"0\r\n\r\n" if self._chunked else self._head
        if rest:
            self._transport.write(rest)
        self._done = True
        self._on_done(self._keep)

    def abort(self) -> None:
        """Cut the connection: what was written still goes out (unless the end of the connection would look clean)."""
        if self._done:
            return
        self._done = True
        if self._head:
            self._transport.write(self._head)
        if self._chunked:
            self._transport.close()
        else:
            sock: socket.socket | None = self._transport.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            self._transport.abort()
        self._on_done(False)

    def lost(self) -> None:
        """The connection is gone."""
        self._done = True

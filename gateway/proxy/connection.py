"""One HTTP/1.1 connection to a replica: bytes of a request in, a watched response out.

Rules kept here
    One response at a time. A connection goes back to its pool only after a complete message, with keep-alive and no
    surplus bytes; surplus on an idle connection is a protocol violation and aborts it.
    ``perform`` returns when the first body byte (or the end of an empty body) is there: until then nothing was
    promised to the client and the call may still be tried elsewhere.
    A connection that was used before and dies without a single response byte lost the keep-alive race (the replica
    closed it while the request was on its way): ``Stale``, which a fresh connection may repeat once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, cast

import httptools

from gateway.wire.headers import Headers

HEAD_BYTES_MAX = 131_072
HEAD_COUNT_MAX = 256
CHUNKED = b"chunked"


class UpstreamFault(Exception):
    """The replica broke the exchange. ``retryable`` says that nothing was started there, as far as one can know."""

    retryable: ClassVar[bool] = True


class ConnectFailed(UpstreamFault):
    """No connection could be made."""


class ClosedEarly(UpstreamFault):
    """The connection closed before the first body byte."""


class Stale(ClosedEarly):
    """A kept connection closed before any response byte."""


class ProtocolBroken(UpstreamFault):
    """What came is no HTTP/1.1 response."""

    retryable: ClassVar[bool] = False


class Cut(UpstreamFault):
    """The connection closed in the middle of a body."""

    retryable: ClassVar[bool] = False


class BodyReceiver(Protocol):
    """Takes a response's body as it comes."""

    def on_data(self, data: bytes) -> None:
        """Body bytes, unframed."""
        ...

    def on_end(self) -> None:
        """The body is complete."""
        ...

    def on_lost(self, fault: UpstreamFault) -> None:
        """The body will not be completed."""
        ...


class Response:
    """Status and headers of a response whose body is about to flow: ``attach`` a receiver, or ``abort``.

    Once the body is complete the connection may serve another: from then on nothing said here reaches it.
    """

    __slots__ = ("_connection", "headers", "length", "status")

    def __init__(self, connection: UpstreamConnection, status: int, headers: Headers, length: int | None) -> None:
        self._connection: UpstreamConnection | None = connection
        self.status = status
        self.headers = headers
        self.length = length

    def header(self, name: bytes) -> bytes:
        """The first header called ``name`` (lower case), or empty."""
        return next((value for key, value in self.headers if key == name), b"")

    def attach(self, receiver: BodyReceiver) -> None:
        """Deliver the body, beginning with what has come already."""
        if self._connection is not None:
            self._connection.attach(receiver)

    def pause(self) -> None:
        """Stop reading: the client is behind."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Close the connection at once unless the body is complete; the engine stops generating."""
        if self._connection is not None:
            self._connection.abandon()

    def let_go(self) -> None:
        """The body is complete."""
        self._connection = None


class UpstreamConnection(asyncio.Protocol):
    """See the module's rules. ``on_idle`` is called when the connection may serve another request."""

    def __init__(self, on_idle: Callable[[UpstreamConnection], None], loop: asyncio.AbstractEventLoop) -> None:
        self._on_idle = on_idle
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self.closed = False
        self.idle_since_s = 0.0
        self.served = 0
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._busy = False
        self._begun: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._receiver: BodyReceiver | None = None
        self._early: list[bytes] = []
        self._bytes_seen = False
        self._headers: Headers = []
        self._head_done = False
        self._head_bytes = 0
        self._status = 0
        self._until_close = False
        self._keep = False
        self._complete = False
        self._surplus = False
        self._fault: UpstreamFault | None = None

    # -- one request -----------------------------------------------------------------------------------------------

    def perform(self, pieces: Sequence[bytes]) -> asyncio.Future[Response]:
        """Send a request; its response comes once the first body byte is there, or an ``UpstreamFault``.

        Whoever stops waiting for it must ``abort``.
        """
        if self._transport is None or self.closed:
            raise Stale("connection already closed")
        self._reset()
        self._busy = True
        begun = self._begun = self._loop.create_future()
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        return begun

    def attach(self, receiver: BodyReceiver) -> None:
        """Deliver the body to ``receiver``."""
        self._receiver = receiver
        early, self._early = self._early, []
        for data in early:
            receiver.on_data(data)
        if self._complete:
            self._end()
        elif self._fault is not None:
            receiver.on_lost(self._fault)

    def pause(self) -> None:
        """Stop reading."""
        if self._transport is not None and not self.closed:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self.closed:
            self._paused = False
            self._transport.resume_reading()

    def abandon(self) -> None:
        """Give the response up: a complete one frees the connection, an incomplete one closes it."""
        self._receiver = None
        self._early = []
        if not self._busy:
            return
        if self._complete:
            self._release()
        else:
            self.abort()

    def abort(self) -> None:
        """Close now, dropping what is unsent."""
        self.closed = True
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        """The whole message has come: tell the receiver, if there is one yet."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None and self._busy:
            self._release()
            receiver.on_end()

    def _release(self) -> None:
        """The message is over: keep the connection if it may be kept."""
        self._busy = False
        if self._response is not None:
            self._response.let_go()
        if not self._keep or self._until_close or self._surplus or self.closed:
            self.abort()
            return
        if self._paused:  # its last bytes came in one read with those that made the client fall behind
            self.resume()
        self.served += 1
        self._on_idle(self)

    def _fail(self, fault: UpstreamFault) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        if self._complete or not self._busy:
            return
        self._fault = fault
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(fault)
        elif self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            receiver.on_lost(fault)

    def _begin(self) -> None:
        begun = self._begun
        if begun is None or begun.done():
            return
        length = next((int(v) for k, v in self._headers if k == b"content-length" and v.isdigit()), None)
        self._response = Response(self, self._status, self._headers, length)
        begun.set_result(self._response)

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (TCP_NODELAY is on by default in asyncio and uvloop)."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Parse; anything while idle is surplus."""
        if not self._busy:
            self.abort()
            return
        self._bytes_seen = True
        if not self._head_done:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX + 262_144:  # one read may hold body bytes, too
                self._fail(ProtocolBroken("response head too large"))
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._fail(ProtocolBroken(f"not an HTTP/1.1 response: {type(error).__name__}"))
                return
            self._keep = False  # what follows a whole answer is none: the answer counts, the connection does not
        if self._complete:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was under way: a body without length ends here, anything else is cut short."""
        self.closed = True
        if not self._busy or self._complete:
            return
        if self._head_done and self._until_close and exc is None:
            self._complete = True
            self._begin()
            self._end()
            return
        began = self._begun is not None and self._begun.done()
        if began:
            self._fail(Cut("connection closed in the middle of the answer"))
        elif self.served and not self._bytes_seen:
            self._fail(Stale("kept connection was closed"))
        else:
            self._fail(ClosedEarly("connection closed before the answer"))

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second message without a second request is surplus: it is dropped, and the connection not kept."""
        self._surplus = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect headers; trailers (after the head) are dropped, as every hop may."""
        if self._head_done or self._surplus:
            return
        self._headers.append((name.lower(), value))
        if len(self._headers) > HEAD_COUNT_MAX:
            raise httptools.HttpParserError("too many headers")

    def on_headers_complete(self) -> None:
        """The head of a final response, or of a 1xx to be skipped."""
        if self._surplus:
            return
        self._status = self._parser.get_status_code()
        if self._status < 200:
            return
        self._head_done = True
        names = {name for name, _ in self._headers}
        for name, value in self._headers:
            if name == b"transfer-encoding" and value.strip().lower() != CHUNKED:
                raise httptools.HttpParserError("unknown transfer coding")
        self._until_close = (
            b"content-length" not in names and b"transfer-encoding" not in names and self._status not in (204, 304)
        )

    def on_body(self, body: bytes) -> None:
        """Body bytes, one chunk at a time."""
        if self._surplus:
            return
        if self._receiver is not None:
            self._receiver.on_data(body)
            return
        self._early.append(body)
        self._begin()

    def on_message_complete(self) -> None:
        """The end of a message; a 1xx is none."""
        if self._surplus:
            return
        if not self._head_done:
            self._headers = []
            return
        self._complete = True
        self._keep = self._parser.should_keep_alive()  # only true to its word within this callback
        self._begin()

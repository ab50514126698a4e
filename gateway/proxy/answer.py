"""The answer of one call on its way to the client: upstream bytes are watched and written on in the same callback.

No byte passes through a coroutine (an ``await`` per chunk costs more than the chunk). Before the first byte an error
is a status and a body; after it, one SSE ``error`` event and a cut connection, never an invented ``[DONE]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.clock import Clock
from gateway.domain import Endpoint
from gateway.errors import GatewayError, UpstreamCut
from gateway.ports import Downlink
from gateway.proxy.connection import Response, UpstreamFault
from gateway.wire.errors_out import render_error, render_sse_error
from gateway.wire.headers import Headers, response_headers
from gateway.wire.watch import Watcher, watch

KEEPALIVE = b": keep-alive\n\n"
EVENT_ENDS = (b"\n\n", b"\n\r\n")
EVENT_STREAM = b"text/event-stream"
SSE_HEADERS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
LATE_ERROR_BYTES_MAX = 65_536


class Answer:
    """Relays one response, or tells the client why there is none. Times are monotonic seconds."""

    def __init__(self, downlink: Downlink, endpoint: Endpoint, clock: Clock, now_s: float) -> None:
        self.downlink = downlink
        self.watcher: Watcher | None = None
        self.response: Response | None = None
        self.status = 0
        self.begun = False  # the head went to the client
        self.over = False  # everything the client will get was written
        self.first_token_s: float | None = None
        self.last_byte_s = 0.0
        self.paused_s: float | None = None  # since when the client is behind
        self.resumed_s = 0.0  # when it last caught up
        self.written_s = now_s
        self._endpoint = endpoint
        self._now = clock.monotonic
        self._streaming = False
        self._boundary = True  # what went out ends with a whole event
        self._tail = b""
        self._late_error: list[bytes] | None = None
        self._relayed: asyncio.Future[None] | None = None

    async def relay(self, response: Response, own_headers: Headers, *, strip_usage: bool) -> None:
        """Pass ``response`` on to its end, with ``own_headers`` added to its head.

        Raises:
            UpstreamCut: the replica died in the middle of it.
        """
        self.response = response
        self.last_byte_s = self._now()
        content_type = response.header(b"content-type")
        self.watcher = watch(self._endpoint, content_type, strip_usage)
        is_stream = content_type.startswith(EVENT_STREAM)
        if not self.begun:
            headers = response_headers(response.headers) + own_headers
            self._start(response.status, headers, None if is_stream else response.length, streaming=is_stream)
        elif not is_stream:
            self.status, self._late_error = response.status, []
        self._relayed = asyncio.get_running_loop().create_future()
        response.attach(self)
        if self.paused_s is not None:  # the client fell behind before there was anything to pause
            response.pause()
        try:
            await self._relayed
        finally:
            response.abort()

    # -- BodyReceiver ----------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        """Body bytes from the replica."""
        watcher = self.watcher
        assert watcher is not None
        now = self.last_byte_s = self._now()
        out = watcher.feed(data)
        if self.first_token_s is None and watcher.first_token:
            self.first_token_s = now
        if not out:
            return
        if self._late_error is None:
            self._write(out, now)
        elif sum(map(len, self._late_error)) < LATE_ERROR_BYTES_MAX:
            self._late_error.append(out)

    def on_end(self) -> None:
        """The replica's answer is complete."""
        watcher = self.watcher
        assert watcher is not None
        held = watcher.finish()
        now = self._now()
        if self.first_token_s is None and watcher.first_token:
            self.first_token_s = now
        if self._late_error is not None:
            # The client was promised a stream while it waited: the engine's refusal becomes an event of it.
            lead = b"event: error\n" if self._endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES) else b""
            body = b"".join((*self._late_error, held)).replace(b"\r", b"").replace(b"\n", b" ")
            self._write(lead + b"data: " + body + b"\n\n", now)
            self.downlink.abort()
        else:
            if held:
                self._write(held, now)
            self.downlink.finish()
        self._finish(None)

    def on_lost(self, fault: UpstreamFault) -> None:
        """The replica died in the middle of its answer."""
        self._finish(UpstreamCut(f"The replica failed in the middle of its answer: {fault}."))

    def _finish(self, error: GatewayError | None) -> None:
        self.over = error is None
        if self._relayed is None or self._relayed.done():
            return
        if error is None:
            self._relayed.set_result(None)
        else:
            self._relayed.set_exception(error)

    # -- towards the client ----------------------------------------------------------------------------------------

    def writable(self) -> None:
        """The client caught up: read on."""
        self.paused_s, self.resumed_s = None, self._now()
        if self.response is not None:
            self.response.resume()

    def keep_alive(self, now: float, silence_s: float, own_headers: Callable[[], Headers]) -> None:
        """Send a comment after ``silence_s`` without a token, between two events of a stream (or before the first)."""
        if now - self.written_s < silence_s or self.over or self.first_token_s is not None or not self._boundary:
            return
        if self.begun and not self._streaming:
            return
        if not self.begun:
            self._start(200, SSE_HEADERS + own_headers(), None, streaming=True)
        self._write(KEEPALIVE, now)

    def refuse(self, error: GatewayError, headers: Headers) -> None:
        """Tell the client of ``error``: as a response, or as the last event of a stream under way."""
        self.over = True
        if not self.begun:
            body = render_error(error, self._endpoint)
            self._start(error.status, headers, len(body), streaming=False)
            self.downlink.write(body)
            self.downlink.finish()
            return
        if self._streaming:
            lead = b"" if self._boundary else b"\n\n"
            self.downlink.write(lead + render_sse_error(error, self._endpoint))
        self.downlink.abort()

    def _start(self, status: int, headers: Headers, length: int | None, *, streaming: bool) -> None:
        self.begun = True
        self.status = status
        self._streaming = streaming
        self.downlink.start(status, headers, length)

    def _write(self, data: bytes, now: float) -> None:
        self.written_s = now
        end = data if len(data) > 2 else self._tail + data  # the blank line may come in pieces
        self._boundary = end.endswith(EVENT_ENDS)
        self._tail = end[-2:]
        if not self.downlink.write(data) and self.paused_s is None:
            self.paused_s = now
            if self.response is not None:
                self.response.pause()

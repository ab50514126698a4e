"""The front door: an HTTP/1.x server protocol for uvicorn that is strict about what it lets in.

A request for a model goes to the data path and its answer straight to the transport; everything else runs as ASGI
through uvicorn's own request cycle. Rules kept here
    Heads are bounded in bytes, count and time, bodies in bytes and silence. Nothing of a call exists before its body
    is complete, so a slow upload holds no permit, no place and no task.
    A request is refused, and its connection closed, when two readers could disagree about it: conflicting lengths,
    other codings than ``chunked``, a missing or second ``Host``, a path with more than one reading.
    An ``Upgrade`` is ignored and the request served as what it also is, plain HTTP/1.1 (RFC 9110 7.8).
    Answers go out in the order of the requests; a pipelined one starts when those before it are over and the client
    has read them, so that a client that never reads cannot pile up answers.
    Reading is never paused while a call runs: that would hide the client's leaving. A client that closes its sending
    side is taken to have left, for a closed connection looks the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest, NotFound, RequestTimeout
from gateway.proxy.datapath import DataPath
from gateway.proxy.downlink import HttpDownlink
from gateway.proxy.request import Request, is_clean, objection, origin_form
from gateway.proxy.turn import ControlTurn, ModelTurn, RefusedTurn, Turn
from gateway.wire.headers import Headers

PIPELINE_MAX = 8
WRITE_HIGH_WATER = 131_072
EARLY_BYTES_MAX = 65_536  # a refused body up to this size is read, so that the connection can be kept
LINGER_S = 2.0
CLOSE_S = 10.0  # a closing connection may take this long without a byte of its last answer being read


class Phase(Enum):
    """What the connection is waiting for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    FLUSH = auto()  # a request is complete, but the client has not read the answers before it
    LINGER = auto()  # refused: what still comes is dropped until the client has read the answer
    CLOSING = auto()  # the last bytes of the last answer are on their way


class Front(asyncio.Protocol):
    """One client connection."""

    def __init__(
        self,
        path: DataPath,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        self.path = path
        self.config = config
        self.state = server_state
        self.app_state = app_state
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self.flow: FlowControl | None = None
        self.phase = Phase.IDLE
        self.since_s = path.clock.monotonic()
        self.served = 0
        self.client = ""
        self._turns: deque[Turn] = deque()
        self._receiving: Turn | None = None
        self._fault: GatewayError | None = None
        self._last = False  # nothing is read after the request under way
        self._unread = False  # a request was refused while its body was still coming
        self._in_head = False
        self._url = b""
        self._headers: Headers = []
        self._head_bytes = 0  # of the parsed lines
        self._head_bytes_max = 0
        self._quiet_bytes = 0  # read since anything was complete: of a head, chunk extensions, trailers
        self._progress = False  # whether the read being parsed completed anything
        self._unsent_bytes = 0  # of a closing connection, when last looked at

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with uvicorn (for shutdown) and with the sweep (for timeouts)."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self.flow = FlowControl(self.transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self.state.connections.add(self)  # type: ignore[arg-type]
        self.path.fronts.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The client is gone: so are its calls."""
        self.state.connections.discard(self)
        self.path.fronts.discard(self)
        turns, self._turns = self._turns, deque()
        self._receiving = None
        for turn in turns:
            turn.lost()
        if self.flow is not None:
            self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse; refuse what is malformed."""
        if self.phase is Phase.LINGER or self._last:
            return
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        elif self.phase is Phase.BODY:
            self.since_s = self.path.clock.monotonic()
        self._progress = False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._fault or InvalidRequest("This is no valid HTTP/1.1 request."))
            return
        self._quiet_bytes = 0 if self._progress else self._quiet_bytes + len(data)
        if self._quiet_bytes > self.path.serving.header_bytes_max:
            self._refuse(self._too_large())

    def _parse(self, data: bytes) -> None:
        """Feed the parser. It stops after a head with an upgrade: one without goes in, and what followed."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                kept = [b"%b: %b\r\n" % pair for pair in self._headers if pair[0] != b"upgrade"]
                start = b"%b %b HTTP/%b\r\n" % (
                    self.parser.get_method(),
                    self._url,
                    self.parser.get_http_version().encode(),
                )
                data = b"".join((start, *kept, b"\r\n", data[upgrade.args[0] :]))
                self.parser = httptools.HttpRequestParser(self)

    def pause_writing(self) -> None:
        """The client is behind."""
        assert self.flow is not None
        self.flow.pause_writing()
        if self._turns:
            self._turns[0].pause()

    def resume_writing(self) -> None:
        """The client caught up."""
        assert self.flow is not None
        self.flow.resume_writing()
        if self._turns:
            self._turns[0].resume()
        if self.phase is Phase.FLUSH:
            self._answer(self._turns[0])

    def shutdown(self) -> None:
        """uvicorn is closing: end after the answers under way."""
        if self._turns:
            self._turns[-1].last()
        else:
            self._close()

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new request, perhaps a pipelined one."""
        if len(self._turns) >= PIPELINE_MAX:
            self._fault = InvalidRequest("Too many requests were sent before their answers.")
            raise self._fault
        self._in_head = True
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._head_bytes_max = self.path.serving.header_bytes_max
        if not self._turns and self.phase is not Phase.HEAD:
            self._enter(Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._head_bytes_max:
            self._fault = self._too_large()
            raise self._fault

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is dropped."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._head_bytes_max:
            self._fault = self._too_large()
            raise self._fault
        if self._receiving is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Decide what the request is, before its body."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return  # it comes again without
        self._in_head = False
        self._progress = True
        version = self.parser.get_http_version()
        keep = self.parser.should_keep_alive() and not self._last
        target = origin_form(self._url)
        request = Request(
            self.parser.get_method(),
            target,
            target.partition(b"?")[0],
            self._headers,
            self.client,
            self.path.clock.monotonic(),
        )
        too_many = len(self._headers) > self.path.serving.header_count_max
        self._fault = self._too_large() if too_many else objection(request, version)
        if self._fault is not None:
            raise self._fault
        assert self.transport is not None
        downlink = HttpDownlink(
            self.transport, self.state.default_headers, http10=version == "1.0", keep=keep, on_done=self.turn_over
        )
        turn = self._turn_for(request, downlink, version)
        self._turns.append(turn)
        self._receiving = turn
        if len(self._turns) == 1:
            self._enter(Phase.BODY)
        expects = version == "1.1" and (request.header(b"expect") or b"").lower() == b"100-continue"
        if turn.refused and (expects or (request.body_bytes is None or request.body_bytes > EARLY_BYTES_MAX)):
            self._refuse_early(turn)
        elif expects:
            turn.expects = True
            self._welcome(turn)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._progress = True
        turn = self._receiving
        if turn is not None and not turn.body(body):
            self._refuse_early(turn)

    def on_message_complete(self) -> None:
        """The request is complete."""
        turn, self._receiving = self._receiving, None
        if turn is None:
            return
        self._progress = True
        self._complete(turn)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _turn_for(self, request: Request, downlink: HttpDownlink, version: str) -> Turn:
        if not is_clean(request):
            return RefusedTurn(NotFound("No such path."), downlink, bodyless=request.method == b"HEAD")
        exchange = self.path.open(request, downlink)
        if exchange is not None:
            return ModelTurn(exchange, downlink, self.path.serving.body_bytes_max, self.transport)
        return ControlTurn(self, request, version, unquote(request.path.decode("latin-1")), downlink)

    # -- ends ------------------------------------------------------------------------------------------------------

    def turn_over(self, keep: bool) -> None:
        """The first turn's answer is complete: the next one, or wait for another request."""
        if not self._turns:
            return
        self._turns.popleft()
        self.served += 1
        self.state.total_requests += 1
        if not keep or self.transport is None or self.transport.is_closing() or (self._last and not self._turns):
            if self._unread:
                self._linger()
            else:
                self._close()
        elif not self._turns:
            self._enter(Phase.HEAD if self._in_head else Phase.IDLE)
        elif self._turns[0].waits:
            self._answer(self._turns[0])
        else:
            self._enter(Phase.BODY)
            self._welcome(self._turns[0])

    def _welcome(self, turn: Turn) -> None:
        """Send the word a client waits for before it sends the body, once it cannot meet an earlier answer."""
        if turn.expects and self._turns[0] is turn:
            turn.expects = False
            turn.expect_continue()

    def _complete(self, turn: Turn) -> None:
        """Nothing more will be read of this request: it is answered when its turn comes."""
        turn.waits = True
        if self._turns and self._turns[0] is turn:
            self._answer(turn)

    def _answer(self, turn: Turn) -> None:
        """It is its turn, as soon as the client has read what came before."""
        assert self.flow is not None
        if self.flow.write_paused:
            self._enter(Phase.FLUSH)
        else:
            self._enter(Phase.ANSWER)
            turn.begin()

    def _refuse_early(self, turn: Turn) -> None:
        """Answer before the body has come, and read no more."""
        self._receiving = None
        self._last = self._unread = True
        turn.last()
        self._complete(turn)

    def _refuse(self, error: GatewayError) -> None:
        """Answer what is no request, and close."""
        if self._last or self.transport is None or self.transport.is_closing():
            return
        self.path.events.rejected(error.code)
        if self._receiving is not None:
            self._receiving.refuse(error)
            self._refuse_early(self._receiving)
            return
        self._last = True
        if self._turns:  # an answer is under way: nothing can be said in between
            self._turns[-1].last()
            return
        downlink = HttpDownlink(
            self.transport, self.state.default_headers, http10=False, keep=False, on_done=lambda _: self._linger()
        )
        RefusedTurn(error, downlink).begin()

    def _too_large(self) -> GatewayError:
        serving = self.path.serving
        return HeadersTooLarge(
            f"The header section is over {serving.header_bytes_max:,} bytes or {serving.header_count_max} headers."
        )

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since_s = self.path.clock.monotonic()

    def _linger(self) -> None:
        """Drop what still comes for a moment: closing now would reset the answer away (RFC 9112 9.6)."""
        if self.transport is not None and not self.transport.is_closing():
            self._enter(Phase.LINGER)
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def _close(self) -> None:
        """Close once everything is sent, which a client that does not read must not delay for ever."""
        if self.transport is not None:
            self._enter(Phase.CLOSING)
            self._unsent_bytes = self.transport.get_write_buffer_size()
            self.transport.close()

    def _abort_if_stuck(self, now: float) -> None:
        assert self.transport is not None
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._unsent_bytes, self.since_s = unsent_bytes, now
        elif now - self.since_s > CLOSE_S:
            self.transport.abort()

    def tick(self, now: float) -> None:
        """Close what is overdue; called by the data path's sweep."""
        serving, age = self.path.serving, now - self.since_s
        match self.phase:
            case Phase.IDLE if age > (serving.idle_s if self.served else serving.header_read_s):
                self._close()
            case Phase.HEAD if age > serving.header_read_s:
                self._refuse(RequestTimeout(f"The request's head did not come within {serving.header_read_s:g} s."))
            case Phase.BODY if age > serving.body_read_s:
                self._refuse_slow_body()
            case Phase.LINGER if age > LINGER_S:
                self._close()
            case Phase.FLUSH if age > serving.idle_s:
                self._close()
            case Phase.CLOSING:
                self._abort_if_stuck(now)
            case _:
                pass

    def _refuse_slow_body(self) -> None:
        turn = self._receiving
        if turn is not None:
            seconds = self.path.serving.body_read_s
            turn.refuse(RequestTimeout(f"Nothing more of the request's body came for {seconds:g} s."))
            self._refuse_early(turn)

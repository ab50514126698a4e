"""The front door: an HTTP/1.x server protocol for uvicorn that is strict about what it lets in.

A request for a model goes to the data path and its answer straight to the transport; everything else runs as ASGI
through uvicorn's own request cycle. Rules kept here
    Heads are bounded in bytes, count and time, bodies in bytes and silence. Nothing of a call exists before its body
    is complete, so a slow upload holds no permit, no place and no task.
    A request is refused, and its connection closed, when two readers could disagree about it: conflicting lengths,
    other codings than ``chunked``, a missing or second ``Host``, a path with more than one reading.
    Answers go out in the order of the requests; a pipelined one starts when those before it are over.
    Reading is never paused while a call runs: that would hide the client's leaving.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from typing import Any, cast
from urllib.parse import unquote, unquote_to_bytes

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest, NotFound, RequestTimeout
from gateway.proxy.datapath import DataPath
from gateway.proxy.downlink import HttpDownlink
from gateway.proxy.request import Request
from gateway.proxy.turn import ControlTurn, ModelTurn, RefusedTurn, Turn
from gateway.wire.endpoints import is_clean_path
from gateway.wire.headers import Headers

PIPELINE_MAX = 8
WRITE_HIGH_WATER = 131_072
EARLY_BYTES_MAX = 65_536  # a refused body up to this size is read, so that the connection can be kept
LINGER_S = 2.0
MODELS_PREFIX = b"/v1/models/"


class Phase(Enum):
    """What the connection is waiting for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    LINGER = auto()  # refused: what still comes is dropped until the client has read the answer


class Front(asyncio.Protocol):
    """One client connection."""

    def __init__(
        self,
        path: DataPath,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.state = server_state
        self.app_state = app_state
        self.loop = loop or asyncio.get_running_loop()
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
        self._head_raw_bytes = 0  # of the reads that did not complete it

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
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._last = True  # upgrades are not offered: the request was answered as plain HTTP, nothing follows
        except httptools.HttpParserError:
            self._refuse(self._fault or InvalidRequest("This is no valid HTTP/1.1 request."))
            return
        if self._in_head:
            self._head_raw_bytes += len(data)
            if self._head_raw_bytes > self.path.serving.header_bytes_max:
                self._refuse(self._too_large())

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

    def shutdown(self) -> None:
        """uvicorn is closing: end after the answers under way."""
        if not self._turns:
            self._close()
        for turn in self._turns:
            turn.last()

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new request, perhaps a pipelined one."""
        if self._last or len(self._turns) >= PIPELINE_MAX:
            self._fault = InvalidRequest("Too many requests were sent before their answers.")
            raise self._fault
        self._in_head = True
        self._url = b""
        self._headers = []
        self._head_bytes = self._head_raw_bytes = 0
        if not self._turns:
            self._enter(Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is dropped."""
        self._count(len(name) + len(value) + 4)
        if self._receiving is not None:
            return
        self._headers.append((name.lower(), value))
        if len(self._headers) > self.path.serving.header_count_max:
            self._fault = self._too_large()
            raise self._fault

    def on_headers_complete(self) -> None:
        """Decide what the request is, before its body."""
        self._in_head = False
        version = self.parser.get_http_version()
        keep = self.parser.should_keep_alive() and not self._last
        request = self._request()
        self._fault = self._objection(request, version)
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
        if turn.refused and self._body_is_large(request):
            self._refuse_early(turn)
        elif request.header(b"expect") is not None and version == "1.1":
            turn.expect_continue()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        turn = self._receiving
        if turn is not None and not turn.body(body):
            self._refuse_early(turn)

    def on_message_complete(self) -> None:
        """The request is complete."""
        turn, self._receiving = self._receiving, None
        if turn is None:
            return
        if self._turns and self._turns[0] is turn:
            self.phase = Phase.ANSWER
            turn.begin()
        else:
            turn.waits = True

    # -- decisions -------------------------------------------------------------------------------------------------

    def _request(self) -> Request:
        target = self._url
        if not target.startswith(b"/") and b"://" in target:  # absolute form (RFC 9112 3.2.2)
            target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
        return Request(
            self.parser.get_method(),
            target,
            target.partition(b"?")[0],
            self._headers,
            self.client,
            self.path.clock.monotonic(),
        )

    def _objection(self, request: Request, version: str) -> GatewayError | None:
        """Why two readers could disagree about this head, if they could."""
        hosts = 0
        for name, value in request.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                return InvalidRequest("The only transfer coding understood is 'chunked'.")
            if name == b"host":
                hosts += 1
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            return InvalidRequest("A request needs exactly one Host header.")
        return None

    def _turn_for(self, request: Request, downlink: HttpDownlink, version: str) -> Turn:
        if not _is_clean(request):
            return RefusedTurn(NotFound("No such path."), downlink)
        exchange = self.path.open(request, downlink)
        if exchange is not None:
            return ModelTurn(exchange, downlink, self.path.serving.body_bytes_max, self.transport)
        return ControlTurn(self, request, version, unquote(request.path.decode("latin-1")), downlink)

    @staticmethod
    def _body_is_large(request: Request) -> bool:
        length = request.header(b"content-length")
        if length is not None:
            return int(length) > EARLY_BYTES_MAX
        return request.header(b"transfer-encoding") is not None

    # -- ends ------------------------------------------------------------------------------------------------------

    def turn_over(self, keep: bool) -> None:
        """The first turn's answer is complete: the next one, or wait for another request."""
        if not self._turns:
            return
        self._turns.popleft()
        self.served += 1
        self.state.total_requests += 1
        if not keep or self._last or self.transport is None or self.transport.is_closing():
            if self._unread:
                self._linger()
            else:
                self._close()
            return
        if self._turns:
            following = self._turns[0]
            self._enter(Phase.ANSWER if following.waits else Phase.BODY)
            if following.waits:
                following.begin()
        else:
            self._enter(Phase.HEAD if self._in_head else Phase.IDLE)

    def _refuse_early(self, turn: Turn) -> None:
        """Answer before the body has come, and read no more."""
        self._receiving = None
        self._last = self._unread = True
        turn.last()
        if self._turns and self._turns[0] is turn:
            turn.begin()
        else:
            turn.waits = True

    def _refuse(self, error: GatewayError) -> None:
        """Answer what is no request, and close."""
        self.path.events.rejected(error.code)
        if self.transport is None or self.transport.is_closing():
            return
        if self._turns:  # an answer is under way: nothing can be said in between
            self._last = True
            for turn in self._turns:
                turn.last()
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

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.path.serving.header_bytes_max:
            self._fault = self._too_large()
            raise self._fault

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
        if self.transport is not None:
            self.transport.close()

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
            case _:
                pass

    def _refuse_slow_body(self) -> None:
        turn = self._receiving
        if turn is not None:
            seconds = self.path.serving.body_read_s
            turn.refuse(RequestTimeout(f"Nothing more of the request's body came for {seconds:g} s."))
            self._refuse_early(turn)


def _is_clean(request: Request) -> bool:
    """Whether the path has one reading. Model names may hold an encoded slash, so their path is judged decoded."""
    path = request.path
    if path.startswith(MODELS_PREFIX):
        path = unquote_to_bytes(path)
    return is_clean_path(path) or (path == b"*" and request.method == b"OPTIONS")

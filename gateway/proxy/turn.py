"""What one request on a connection turns into: a model call, a request to control, or a refusal."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from gateway.errors import GatewayError, RequestTooLarge
from gateway.proxy.downlink import HttpDownlink
from gateway.proxy.exchange import Exchange
from gateway.proxy.request import Request
from gateway.wire.errors_out import render_error

if TYPE_CHECKING:
    from gateway.proxy.front import Front

logger = logging.getLogger(__name__)

CONTROL_BODY_BYTES_MAX = 1_048_576
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Turn(Protocol):
    """A request in its place on the connection.

    ``waits``: complete, but perhaps not yet its turn. ``expects``: the client waits for a word before it sends its
    body.
    """

    waits: bool
    expects: bool

    @property
    def refused(self) -> bool:
        """Whether it will be refused whatever its body says."""
        ...

    def expect_continue(self) -> None:
        """Say that the body is welcome."""
        ...

    def body(self, data: bytes) -> bool:
        """Take a piece of the body; ``False`` if it is too large."""
        ...

    def begin(self) -> None:
        """The body is complete (or will not be read), and it is its turn."""
        ...

    def refuse(self, error: GatewayError) -> None:
        """It will be refused with ``error``."""
        ...

    def last(self) -> None:
        """The connection closes after it."""
        ...

    def pause(self) -> None:
        """The client is behind."""
        ...

    def resume(self) -> None:
        """The client caught up."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...


class ModelTurn:
    """A model call: collects the body, then starts the exchange."""

    def __init__(
        self, exchange: Exchange, downlink: HttpDownlink, body_bytes_max: int, transport: asyncio.Transport | None
    ) -> None:
        self.waits = self.expects = False
        self._exchange = exchange
        self._downlink = downlink
        self._transport = transport
        self._left = body_bytes_max
        self._parts: list[bytes] = []
        self._incomplete = False  # refused before the body was there

    @property
    def refused(self) -> bool:
        """Whether the head alone decided against it."""
        return self._exchange.refusal is not None

    def expect_continue(self) -> None:
        """Say that the body is welcome."""
        if self._transport is not None:
            self._transport.write(CONTINUE)

    def body(self, data: bytes) -> bool:
        """Keep a piece of the body, unless nobody will read it."""
        self._left -= len(data)
        if self._left < 0:
            self.refuse(self._exchange.path.too_large())
            return False
        if not self.refused:
            self._parts.append(data)
        return True

    def begin(self) -> None:
        """Start the exchange, or refuse at once."""
        if self._incomplete and self._exchange.refusal is not None:
            self._exchange.refuse_early(self._exchange.refusal)
            return
        parts, self._parts = self._parts, []
        self._exchange.start(parts[0] if len(parts) == 1 else b"".join(parts))

    def refuse(self, error: GatewayError) -> None:
        """Refuse with ``error`` when its turn comes."""
        self._exchange.refusal = error
        self._incomplete = True
        self._parts.clear()

    def last(self) -> None:
        """Close afterwards."""
        self._downlink.last()

    def pause(self) -> None:
        """Make writes say so."""
        self._downlink.paused = True

    def resume(self) -> None:
        """Read upstream again."""
        self._downlink.paused = False
        self._exchange.writable()

    def lost(self) -> None:
        """Stop the engine."""
        self._downlink.lost()
        self._exchange.client_gone()


class RefusedTurn:
    """A request that is none of the gateway's."""

    def __init__(self, error: GatewayError, downlink: HttpDownlink, *, bodyless: bool = False) -> None:
        self.waits = self.expects = False
        self.refused = True
        self._error = error
        self._downlink = downlink
        self._bodyless = bodyless  # an answer to HEAD

    def expect_continue(self) -> None:
        """Nothing is expected."""

    def body(self, data: bytes) -> bool:
        """Drop it."""
        del data
        return True

    def begin(self) -> None:
        """Answer."""
        body = render_error(self._error, None)
        headers = [(b"content-type", b"application/json"), (b"x-gateway-reason", self._error.code.encode())]
        self._downlink.start(self._error.status, headers, len(body))
        if not self._bodyless:
            self._downlink.write(body)
        self._downlink.finish()

    def refuse(self, error: GatewayError) -> None:
        """For another reason."""
        self._error = error

    def last(self) -> None:
        """Close afterwards."""
        self._downlink.last()

    def pause(self) -> None:
        """A few bytes: nothing to pause."""

    def resume(self) -> None:
        """A few bytes: nothing to resume."""

    def lost(self) -> None:
        """Nobody to answer."""
        self._downlink.lost()


class ControlTurn:
    """A request to the FastAPI application, run by uvicorn's own cycle."""

    def __init__(self, front: Front, request: Request, version: str, path: str, downlink: HttpDownlink) -> None:
        assert front.transport is not None
        assert front.flow is not None
        self.waits = self.expects = False
        self._front = front
        self._left = CONTROL_BODY_BYTES_MAX
        self._refusal: RefusedTurn | None = None
        self._downlink = downlink
        self._http10 = version == "1.0"
        self._cycle = RequestResponseCycle(
            scope=_scope(front, request, version, path),  # type: ignore[arg-type]
            transport=front.transport,
            flow=front.flow,
            logger=logger,
            access_logger=logger,
            access_log=False,
            default_headers=front.state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=front.parser.should_keep_alive() and not self._http10,
            on_response=self._over,
        )

    @property
    def refused(self) -> bool:
        """Whether the body was too large or too slow."""
        return self._refusal is not None

    def expect_continue(self) -> None:
        """Say that the body is welcome."""
        if self._front.transport is not None:
            self._front.transport.write(CONTINUE)

    def body(self, data: bytes) -> bool:
        """Keep a piece of the body, up to a bound that no request to control needs."""
        self._left -= len(data)
        if self._left < 0:
            self.refuse(RequestTooLarge(f"The body is larger than {CONTROL_BODY_BYTES_MAX:,} bytes, and no model's."))
            return False
        self._cycle.body += data
        return True

    def begin(self) -> None:
        """Run the application."""
        if self._refusal is not None:
            self._refusal.begin()
            return
        self._cycle.more_body = False
        self._cycle.message_event.set()
        self._front.path.tasks.spawn(self._run())

    async def _run(self) -> None:
        await self._cycle.run_asgi(self._front.config.loaded_app)

    def _over(self) -> None:
        self._front.turn_over(self._cycle.keep_alive)

    def refuse(self, error: GatewayError) -> None:
        """Refuse with ``error`` instead."""
        self._refusal = RefusedTurn(error, self._downlink)

    def last(self) -> None:
        """Close afterwards."""
        self._cycle.keep_alive = False
        self._downlink.last()

    def pause(self) -> None:
        """uvicorn's flow control does."""

    def resume(self) -> None:
        """uvicorn's flow control does."""

    def lost(self) -> None:
        """Tell the application."""
        self._cycle.disconnected = True
        self._cycle.message_event.set()


def _scope(front: Front, request: Request, version: str, path: str) -> dict[str, object]:
    transport = front.transport
    assert transport is not None
    return {
        "type": "http",
        "asgi": {"version": front.config.asgi_version, "spec_version": "2.3"},
        "http_version": version,
        "server": get_local_addr(transport),  # of IPv6, too, host and port only
        "client": get_remote_addr(transport),
        "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        "root_path": front.config.root_path,
        "headers": request.headers,
        "state": front.app_state.copy(),
        "method": request.method.decode("ascii"),
        "path": path,
        "raw_path": request.path,
        "query_string": request.target.partition(b"?")[2],
    }

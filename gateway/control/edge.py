"""The application's outermost layer, in pure ASGI: OPTIONS, HEAD and the last boundary for exceptions."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastapi import Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD", "POST", "OPTIONS")
# What a page's script may read of the gateway's answers, beyond the few headers that are always readable.
EXPOSED = (
    "x-request-id",
    "x-gateway-replica",
    "x-gateway-route",
    "x-gateway-queue-ms",
    "x-gateway-reason",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
)

_log = logging.getLogger(__name__)


class Edge:
    """Answers OPTIONS of any path, sends no body to HEAD, and logs what no handler caught."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._options = Response(status_code=204, headers={"allow": ", ".join(METHODS)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await self._options(scope, receive, send)
        else:
            await self._guarded(scope, receive, _headless(send) if scope["method"] == "HEAD" else send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:  # noqa: BLE001 - the outer boundary: starlette has answered 500 and raises again to have it logged
            _log.exception(
                "unhandled exception in control", extra={"method": scope["method"], "path": scope["path"][:200]}
            )


def with_cors(app: ASGIApp, origins: Iterable[str]) -> ASGIApp:
    """``app``, answering browsers from ``origins`` (``*``: any). Preflights are answered without a key.

    Keys travel in headers a script sets itself, never in cookies, so credentials stay off.
    """
    return CORSMiddleware(
        app, allow_origins=tuple(origins), allow_methods=METHODS, allow_headers=("*",), expose_headers=EXPOSED
    )


def _headless(send: Send) -> Send:
    async def send_no_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_no_body

"""Answers of the control application: JSON bodies, and refusals in the client's error shape."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from gateway.domain import Endpoint
from gateway.errors import GatewayError, InvalidKey, MethodNotAllowed, NotFound
from gateway.wire.endpoints import ROUTES
from gateway.wire.errors_out import render_error

PATH_SHOWN_MAX = 200


class KeyGuessing(InvalidKey):
    """So many bad keys come from one address that its connection is closed."""


class Json(Response):
    """A JSON answer of anything msgspec encodes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return msgspec.json.encode(content)


def refusal(error: GatewayError, endpoint: Endpoint | None = None, allow: str | None = None) -> Response:
    """``error`` as an answer; ``allow`` names the methods a 405 leaves."""
    headers = {"x-gateway-reason": error.code}
    if allow is not None:
        headers["allow"] = allow
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, KeyGuessing):
        headers["connection"] = "close"
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return Response(render_error(error, endpoint), error.status, headers, "application/json")


def answer_errors(app: FastAPI) -> None:
    """Make ``app`` answer its own errors, the router's and unexpected ones with a ``refusal``."""

    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)  # registered for nothing else
        return refusal(error)

    async def unknown(_: Request, error: Exception) -> Response:  # noqa: ARG001 - logged at the edge, never shown
        return refusal(GatewayError("The gateway failed on this request; its log says why."))

    async def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _unrouted(request, error)

    app.add_exception_handler(GatewayError, known)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, unknown)


def _unrouted(request: Request, error: HTTPException) -> Response:
    """No such path, or not with this method; the data path's own paths take POST."""
    path = request.scope["path"]
    shown = f"{request.method[:20]} {path[:PATH_SHOWN_MAX]}"
    route = ROUTES.get(path.encode("utf-8", "replace"))
    if route is not None:
        wrong = MethodNotAllowed(f"There is no {shown}: this path takes POST.")
        return refusal(wrong, route.endpoint, "POST, OPTIONS")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "GET, HEAD")
        return refusal(MethodNotAllowed(f"There is no {shown}: this path takes {allow}."), None, allow)
    message = (
        f"There is no {shown}. Model calls go to /v1/chat/completions and the like, GET /v1/models lists the models."
    )
    return refusal(NotFound(message))

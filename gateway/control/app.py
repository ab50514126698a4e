"""Builds the control application from ports."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from gateway.clock import Clock
from gateway.control.access import Access, Pacer
from gateway.control.admin import Page, admin_routes
from gateway.control.edge import Edge, with_cors
from gateway.control.health import health_routes
from gateway.control.models import model_routes
from gateway.control.responses import answer_errors
from gateway.ports import Directory, Fleet


def create_control(
    *,
    fleet: Fleet,
    directory: Directory,
    metrics_page: Page,
    clock: Clock,
    pacer: Pacer,
    version: str,
    admin_key: str | None = None,
    metrics_open: bool = False,
    cors_origins: tuple[str, ...] = (),
) -> ASGIApp:
    """The ASGI application for every path that is no model call.

    ``metrics_page`` gives the text of ``/metrics`` in pieces (``telemetry.metrics.Metrics.page``). Without an
    ``admin_key`` nobody is administrator; without ``cors_origins`` CORS is off.
    """
    # No schema and no docs pages: they would show a stranger the administrator's paths.
    app = FastAPI(title="gateway", version=version, openapi_url=None, redirect_slashes=False)
    access = Access(directory, clock, pacer, admin_key)
    app.include_router(health_routes(fleet, version))
    app.include_router(model_routes(fleet, access, int(clock.wall())))
    app.include_router(admin_routes(fleet, access, clock, metrics_page, metrics_open=metrics_open))
    answer_errors(app)
    return with_cors(Edge(app), cors_origins) if cors_origins else Edge(app)

"""What the administrator sees: the metrics page, replicas and queues as they are now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter, Depends, Response

from gateway.clock import Clock
from gateway.control.access import Access
from gateway.control.responses import Json
from gateway.domain import EngineStats
from gateway.ports import Fleet, ReplicaStatus
from gateway.telemetry.metrics import CONTENT_TYPE

Page = Callable[[], Iterator[bytes]]


def admin_routes(fleet: Fleet, access: Access, clock: Clock, metrics_page: Page, *, metrics_open: bool) -> APIRouter:
    """``/metrics`` (without a key too if ``metrics_open``), ``/admin/replicas`` and ``/admin/queues``."""
    router = APIRouter()
    guarded = [Depends(access.admin)]

    @router.api_route("/metrics", methods=["GET", "HEAD"], dependencies=[] if metrics_open else guarded)
    async def metrics() -> Response:
        pieces = []
        for piece in metrics_page():
            pieces.append(piece)
            await clock.sleep(0)  # a scrape keeps no stream waiting for longer than one piece takes
        return Response(b"".join(pieces), headers={"content-type": CONTENT_TYPE})

    @router.api_route("/admin/replicas", methods=["GET", "HEAD"], dependencies=guarded)
    async def replicas() -> Json:
        return Json({"replicas": [_replica(status) for status in fleet.replicas()]})

    @router.api_route("/admin/queues", methods=["GET", "HEAD"], dependencies=guarded)
    async def queues() -> Json:
        return Json({"queues": list(fleet.queues())})

    return router


def _replica(status: ReplicaStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "model": status.model,
        "url": status.url,
        "serves": status.serves,
        "up": status.up,
        "why_down": status.why_down or None,
        "breaker": status.breaker,
        "inflight": status.inflight,
        "cap": status.cap,
        "context_tokens": status.context_tokens,
        "idle_connections": status.idle_connections,
        "engine": None if status.stats is None else _engine(status.stats),
    }


def _engine(stats: EngineStats) -> dict[str, Any]:
    """What the replica says of itself, with units in the names."""
    return {
        "engines": stats.engines,
        "running_requests": stats.running,
        "waiting_requests": stats.waiting,
        "kv_usage_ratio": stats.kv_usage,
        "kv_capacity_tokens": stats.kv_capacity_tokens,
        "prefix_queries_tokens": stats.prefix_queries,
        "prefix_hits_tokens": stats.prefix_hits,
        "prompt_tokens": stats.prompt_tokens,
        "generation_tokens": stats.generation_tokens,
        "preempted_requests": stats.preemptions,
    }

"""Is it alive, is it ready, what is it: for load balancers, orchestrators and the curious. No key needed."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from gateway.control.responses import Json
from gateway.ports import Fleet

_READ = ["GET", "HEAD"]
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>gateway</title>
<h1>gateway {version}</h1>
<p>One OpenAI-compatible endpoint in front of several vLLM servers. Clients use this address with <code>/v1</code> and
their own key; calls go to <code>POST /v1/chat/completions</code>, <code>/v1/responses</code>, <code>/v1/messages</code>
and vLLM's other paths.</p>
<ul>
<li><a href="/healthz">/healthz</a>: the process is alive</li>
<li><a href="/readyz">/readyz</a>: calls are taken, or why not</li>
<li><a href="/version">/version</a></li>
<li>/v1/models, /me: what a key may use (with that key)</li>
<li>/metrics, /admin/replicas, /admin/queues: for the administrator's key</li>
</ul>
</html>
"""


def health_routes(fleet: Fleet, version: str) -> APIRouter:
    """``/``, ``/healthz`` (also ``/health`` and ``/ping``, as vLLM's clients ask), ``/readyz`` and ``/version``."""
    router = APIRouter()
    page = _PAGE.format(version=version)

    @router.api_route("/", methods=_READ)
    async def landing() -> HTMLResponse:
        return HTMLResponse(page)

    @router.api_route("/healthz", methods=_READ)
    @router.api_route("/health", methods=_READ)
    @router.api_route("/ping", methods=_READ)
    async def alive() -> Json:
        return Json({"status": "ok"})

    @router.api_route("/readyz", methods=_READ)
    async def ready() -> Json:
        reasons = unready_reasons(fleet)
        if fleet.ready:
            return Json({"status": "ready", "reasons": reasons})
        return Json({"status": "unready", "reasons": reasons or ["replicas are still being probed"]}, 503)

    @router.api_route("/version", methods=_READ)
    async def about() -> Json:
        return Json({"name": "gateway", "version": version})

    return router


def unready_reasons(fleet: Fleet) -> list[str]:
    """What keeps calls out, of the gateway or of single models; a ready gateway may still miss a model."""
    up = {replica.model: False for replica in fleet.replicas()}
    for replica in fleet.replicas():
        up[replica.model] |= replica.up
    draining = ["draining"] if fleet.draining else []
    return draining + [f"no replica up for model {model}" for model, any_up in up.items() if not any_up]

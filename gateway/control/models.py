"""What a key may use: its models in OpenAI's list shape, and its own limits."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.control.access import Access
from gateway.control.responses import Json
from gateway.errors import ModelNotFound
from gateway.ports import Fleet

MODEL_SHOWN_MAX = 200


def model_routes(fleet: Fleet, access: Access, created_s: int) -> APIRouter:
    """``/v1/models``, ``/v1/models/{name}`` and ``/me``. ``created_s`` (Unix time) fills OpenAI's ``created``."""
    router = APIRouter()

    @router.head("/v1/models")
    async def known() -> Response:
        """Answer health checkers, which send no key, and tell them nothing."""
        return Response()

    @router.get("/v1/models")
    async def listed(request: Request) -> Json:
        key = await access.client(request)
        entries = [_entry(name, context, created_s) for name, context in fleet.models_for(key)]
        return Json({"object": "list", "data": entries})

    @router.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def one(request: Request, name: str) -> Json:
        key = await access.client(request)
        for model, context_tokens in fleet.models_for(key):
            if model == name:
                return Json(_entry(model, context_tokens, created_s))
        raise ModelNotFound(
            f"The model '{name[:MODEL_SHOWN_MAX]}' does not exist or is not available to you.", param="model"
        )

    @router.api_route("/me", methods=["GET", "HEAD"])
    async def me(request: Request) -> Json:
        key = await access.client(request)
        return Json(
            {
                "team": key.team.name,
                "key": key.id,
                "expires_at_s": key.expires_at_s,
                "priority": key.team.priority,
                "models": [name for name, _ in fleet.models_for(key)],
                "limits": key.team.limits,
                "suspended": key.team.limits.suspended,
            }
        )

    return router


def _entry(name: str, context_tokens: int | None, created_s: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "gateway",
        "max_model_len": context_tokens,
    }

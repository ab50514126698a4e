"""Records of calls that never happened."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from gateway.domain import CallClass, Endpoint, Outcome, RouteReason, Usage
from gateway.ports import CallRecord

_ORDINARY = CallRecord(
    at=1_700_000_000.25,
    request_id="req-1",
    team="chat",
    key="alice",
    model="qwen",
    endpoint=Endpoint.CHAT,
    call_class=CallClass.SHORT,
    replica="dp0",
    route=RouteReason.LEAST_INFLIGHT,
    attempts=1,
    outcome=Outcome.OK,
    status=200,
    reason="",
    finish_reason="stop",
    stream=True,
    usage=Usage(prompt=1_000, completion=50, cached=400),
    estimated_prompt=900,
    estimated=False,
    completed=True,
    has_content=True,
    queue_s=0.02,
    ttft_s=0.3,
    tpot_s=0.012,
    e2e_s=0.9,
    overhead_s=0.000_3,
    request_bytes=4_000,
)


def call_record(**changes: Any) -> CallRecord:
    """A streamed chat call that went well, but for ``changes``. Raises ``TypeError`` for an unknown field."""
    return structs.replace(_ORDINARY, **changes)


def refused_record(**changes: Any) -> CallRecord:
    """A call turned away before it was classified (an unknown model), but for ``changes``."""
    nothing: dict[str, Any] = {
        "call_class": None,
        "replica": "",
        "route": None,
        "attempts": 0,
        "outcome": Outcome.REFUSED,
        "status": 404,
        "reason": "model_not_found",
        "finish_reason": "",
        "usage": Usage(),
        "estimated_prompt": 0,
        "completed": False,
        "has_content": False,
        "queue_s": 0.0,
        "ttft_s": None,
        "tpot_s": None,
    }
    return structs.replace(_ORDINARY, **(nothing | changes))

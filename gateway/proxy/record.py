"""What is written down of an exchange when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.clock import Clock
from gateway.domain import Outcome, Usage
from gateway.ports import CallRecord

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange


def record_of(exchange: Exchange, clock: Clock) -> CallRecord:
    """The record of ``exchange``. Without the engine's own usage, tokens are what was estimated and delivered."""
    answer, key, facts, grant = exchange.answer, exchange.key, exchange.facts, exchange.grant
    watcher = answer.watcher
    prompt = exchange.estimate.prompt if exchange.estimate is not None else 0
    counted = watcher.tokens if watcher is not None else 0
    usage = watcher.usage if watcher is not None else None
    return CallRecord(
        at=clock.wall(),
        request_id=exchange.request_id,
        team=key.team.name if key is not None else "",
        key=key.id if key is not None else "",
        model=exchange.model.spec.name if exchange.model is not None else "",
        endpoint=exchange.route.endpoint,
        call_class=exchange.call_class,
        replica=grant.choice.replica if grant is not None else "",
        route=grant.choice.reason if grant is not None else None,
        attempts=exchange.attempts,
        outcome=exchange.outcome,
        status=answer.status,
        reason=exchange.reason,
        finish_reason=(watcher.finish_reason or "") if watcher is not None else "",
        stream=facts.stream if facts is not None else False,
        usage=usage or (Usage(prompt=prompt, completion=counted) if counted else Usage()),
        estimated_prompt=prompt,
        estimated=usage is None,
        completed=exchange.outcome is Outcome.OK and watcher is not None and watcher.completed,
        has_content=watcher is not None and watcher.has_content,
        queue_s=exchange.queued_s,
        ttft_s=None if answer.first_token_s is None else answer.first_token_s - exchange.started_s,
        tpot_s=_tpot_s(exchange, max(counted, usage.completion if usage is not None else 0)),
        e2e_s=clock.monotonic() - exchange.started_s,
        overhead_s=exchange.overhead_s,
        request_bytes=exchange.body_bytes,
    )


def _tpot_s(exchange: Exchange, tokens: int) -> float | None:
    """Mean seconds a token after the first; ``None`` where there were fewer than two in a stream."""
    first_s, last_s = exchange.answer.first_token_s, exchange.answer.last_byte_s
    if first_s is None or tokens < 2 or last_s <= first_s:
        return None
    return (last_s - first_s) / (tokens - 1)

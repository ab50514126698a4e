"""What the replicas of a settings file say of themselves, asked once and all at the same time."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx

from gateway.domain import CallClass, EngineStats, ModelSpec, ReplicaSpec
from gateway.wire.vllm import parse_metrics, parse_models

PROBE_TIMEOUT_S = 2.0
TYPICAL_CALL_TOKENS = 2_000  # prompt and answer of a short chat
PROBES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Found:
    """One replica's answers. ``down`` says why it cannot serve; ``None`` elsewhere means it did not say."""

    down: str | None = None
    models: Mapping[str, int | None] | None = None  # served name -> max_model_len, tokens
    engine: EngineStats | None = None
    notes: tuple[str, ...] = ()

    def context_tokens(self, model: ModelSpec) -> int | None:
        """``max_model_len`` of ``model`` here; of the only model where it has another name."""
        if not self.models:
            return None
        if model.upstream_name in self.models:
            return self.models[model.upstream_name]
        return next(iter(self.models.values())) if len(self.models) == 1 else None


async def survey(models: Sequence[ModelSpec], timeout_s: float = PROBE_TIMEOUT_S) -> dict[str, Found]:
    """What each replica answered, by replica name. Takes about ``timeout_s`` at most, however many are silent."""
    replicas = [replica for model in models for replica in model.replicas]
    at_once = asyncio.Semaphore(PROBES_AT_ONCE)
    async with asyncio.TaskGroup() as group:
        tasks = {replica.name: group.create_task(_probe(replica, timeout_s, at_once)) for replica in replicas}
    return {name: task.result() for name, task in tasks.items()}


async def _probe(replica: ReplicaSpec, timeout_s: float, at_once: asyncio.Semaphore) -> Found:
    headers = {"authorization": f"Bearer {replica.api_key}"} if replica.api_key else {}
    async with (
        at_once,
        httpx.AsyncClient(
            base_url=replica.url, headers=headers, verify=replica.verify_tls, timeout=timeout_s, trust_env=False
        ) as client,
    ):
        health = await _get(client, "/health", timeout_s)
        if isinstance(health, str):
            return Found(down=health)
        async with asyncio.TaskGroup() as group:
            models = group.create_task(_get(client, "/v1/models", timeout_s))
            metrics = group.create_task(_get(client, "/metrics", timeout_s))
    return _found(models.result(), metrics.result())


def _found(models: bytes | str, metrics: bytes | str) -> Found:
    answers = {"/v1/models": models, "/metrics": metrics}
    notes = [f"{path}: {answer}" for path, answer in answers.items() if isinstance(answer, str)]
    served = None if isinstance(models, str) else parse_models(models)
    engine = None if isinstance(metrics, str) else parse_metrics(metrics.decode(errors="replace"))
    return Found(models=served, engine=engine, notes=tuple(notes))


async def _get(client: httpx.AsyncClient, path: str, timeout_s: float) -> bytes | str:
    """The body of a 200 answer, or in words why there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await client.get(path)
    except (TimeoutError, httpx.TimeoutException):
        return f"no answer within {timeout_s:g} s"
    except httpx.HTTPError as error:
        return _reason(error)
    if answer.status_code in {401, 403}:
        return f"HTTP {answer.status_code} (is api_key right?)"
    return answer.content if answer.status_code == 200 else f"HTTP {answer.status_code}"


def _reason(error: BaseException) -> str:
    """The system's own word for it, from the bottom of the chain of causes."""
    chain = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None and below not in chain:
        chain.append(below)
    for cause in reversed(chain):
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {(cause.reason or 'unknown reason').lower().replace('_', ' ')}"
        if isinstance(cause, socket.gaierror):
            return "host name not found"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return str(error) or type(error).__name__


def useless(models: Sequence[ModelSpec], found: Mapping[str, Found]) -> Iterator[str]:
    """One line for each replica that cannot serve: it does not answer, or every call would get its 404."""
    for model in models:
        for replica in model.replicas:
            said = found[replica.name]
            where = f"replica {replica.name} of model {model.name} ({replica.url})"
            if said.down:
                yield f"{where} is unreachable: {said.down}"
            elif said.models and model.upstream_name not in said.models:
                yield f"{where} serves {', '.join(sorted(said.models))}, not {model.upstream_name} (set upstream_name)"


def findings(models: Sequence[ModelSpec], found: Mapping[str, Found]) -> Iterator[str]:
    """One line for each thing that works but not as the settings have it."""
    for model in models:
        for replica in model.replicas:
            if found[replica.name].down is None:
                for line in _replica_findings(model, replica, found[replica.name]):
                    yield f"replica {replica.name}: {line}"


def _replica_findings(model: ModelSpec, replica: ReplicaSpec, found: Found) -> Iterator[str]:
    yield from found.notes
    if found.models is not None and not found.models:
        yield "/v1/models lists no model (is this a vLLM server?)"
    declared, context = found.context_tokens(model), replica.context_tokens
    if declared is not None and context is not None and context > declared:
        yield f"context_tokens {context:,} is more than its max_model_len {declared:,}"
    context = context or declared
    if context is not None and CallClass.SHORT in replica.serves and context < model.routing.long_tokens:
        yield f"serves short, but its context {context:,} is below long_tokens {model.routing.long_tokens:,}"
    if found.engine is not None and found.engine.kv_capacity_tokens is not None:
        yield from _kv_findings(replica, context, found.engine.engines, found.engine.kv_capacity_tokens)


def _kv_findings(replica: ReplicaSpec, context: int | None, engines: int, capacity: int) -> Iterator[str]:
    """``capacity`` is the sum over ``engines``; a call lives on one of them."""
    largest = capacity // max(engines, 1)
    if context is not None and largest < context:
        yield f"KV capacity {largest:,} tokens is smaller than its context {context:,}: a full-length call cannot run"
    if capacity < replica.cap_max * TYPICAL_CALL_TOKENS:
        yield (
            f"concurrency.max {replica.cap_max} is more than its KV capacity of {capacity:,} tokens holds "
            f"(about {capacity // TYPICAL_CALL_TOKENS} calls of {TYPICAL_CALL_TOKENS:,} tokens)"
        )

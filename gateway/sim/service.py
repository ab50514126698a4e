"""The model endpoints: from an HTTP request to a generation in the engine, and to its end."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import pack
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

from gateway.clock import Clock
from gateway.sim import ask as asks
from gateway.sim import prepare
from gateway.sim.answer import ToolCall
from gateway.sim.ask import Ask, Body, Refusal
from gateway.sim.driver import Driver
from gateway.sim.engine import EngineRequest, Progress
from gateway.sim.faults import Fault, FaultKind, Faults
from gateway.sim.generation import Generation
from gateway.sim.http import HttpRequest, Reply
from gateway.sim.metrics import ServerCounters
from gateway.sim.offload import offload
from gateway.sim.prepare import Embedded, Prepared
from gateway.sim.profiles import Profile
from gateway.sim.shape_messages import MessagesShape
from gateway.sim.shape_openai import ChatShape, CompletionShape
from gateway.sim.shape_responses import ResponsesShape
from gateway.sim.shapes import Heading, Shape, encode
from gateway.sim.visits import Ending, Visit, Visits

_EMBEDDING_FLOATS = 8

ShapeOf = Callable[[Heading, ToolCall | None, bool], Shape]


class _Talk(NamedTuple):
    """How one generating endpoint reads and writes."""

    parse: Callable[[Body], Ask]
    shape: ShapeOf


TALKS: Mapping[str, _Talk] = MappingProxyType(
    {
        "/v1/chat/completions": _Talk(asks.chat, ChatShape),
        "/v1/completions": _Talk(asks.completions, lambda heading, _, usage: CompletionShape(heading, usage)),
        "/v1/responses": _Talk(asks.responses, lambda heading, tool, _: ResponsesShape(heading, tool)),
        "/v1/messages": _Talk(asks.messages, lambda heading, tool, _: MessagesShape(heading, tool)),
    }
)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What a simulated server is called and what it accepts. ``api_key`` and the queue limit are vLLM's own flags."""

    profile: Profile
    model: str = "qwen"
    api_key: str | None = None
    max_num_queued_reqs: int | None = None


@dataclass(slots=True, eq=False)
class _Call:
    """One request on its way. ``engine_id`` is unique even if clients repeat theirs."""

    request: HttpRequest
    reply: Reply
    visit: Visit
    engine_id: str
    fault: Fault | None
    sent_s: float
    rank: int = 0  # of the engine that works on it, once one does


class Service:
    """Serves the model endpoints of one simulated vLLM."""

    def __init__(self, spec: ServiceSpec, driver: Driver, clock: Clock) -> None:
        self.spec = spec
        self.driver = driver
        self.visits = Visits()
        self.faults = Faults()
        self.counters = tuple(ServerCounters() for _ in driver.machine.engines)
        self._clock = clock

    def serve(self, request: HttpRequest, reply: Reply) -> None:
        """Answer a POST to one of ``TALKS`` or to ``/v1/embeddings``."""
        number = self.visits.opened
        client_id = request.headers.get("x-request-id") or f"sim{number:08x}"
        visit = self.visits.open(client_id, request)
        call = _Call(request, reply, visit, f"{number}-{client_id}", self.faults.take(), self.driver.now_s)
        reply.on_over = lambda broken: self._over(call, broken)
        if self._misbehaves(call):
            return
        rank, ranks = _pinned(request), len(self.counters)
        limit = self.spec.max_num_queued_reqs
        if limit is not None and self.driver.machine.queued >= limit:
            self.counters[0].rejected += 1
            self._refuse(call, busy())
        elif rank is not None and rank >= ranks:
            self._refuse(call, asks.bad(f"data_parallel_rank {rank} is out of range [0, {ranks})."))
        else:
            offload(len(request.body), lambda: self._prepare(request), lambda ready: self._begin(call, ready))

    def _prepare(self, request: HttpRequest) -> Prepared | Embedded:
        model, context = self.spec.model, self.spec.profile.max_model_len
        talk = TALKS.get(request.path)
        if talk is None:
            return prepare.embeddings(request.body, model, context)
        return prepare.generation(request.body, talk.parse, model, context)

    def _begin(self, call: _Call, prepared: Callable[[], Prepared | Embedded]) -> None:
        if call.reply.over:
            return
        try:
            ready = prepared()
            if isinstance(ready, Embedded):
                self._embed(call, ready)
            else:
                self._generate(call, ready)
        except Refusal as refusal:
            self._refuse(call, refusal)

    def _generate(self, call: _Call, ready: Prepared) -> None:
        heading = Heading(call.visit.id, self.spec.model, int(self._clock.wall()))
        shape = TALKS[call.request.path].shape(heading, ready.answer.tool, ready.ask.include_usage)

        def stop() -> None:
            call.visit.ending = Ending.BROKEN
            self.driver.abort(call.engine_id)

        writer = Generation(call.reply, ready, shape, manner=self.faults.manner, fault=call.fault, stop=stop)

        def sink(progress: Progress) -> None:
            call.visit.tokens += progress.tokens
            call.rank = progress.rank
            counters = self.counters[progress.rank]
            if progress.first:
                counters.prefill_count += 1
                counters.prefill_s += self.driver.now_s - call.sent_s
            if progress.finished:
                counters.finished["length" if ready.answer.finish == "length" else "stop"] += 1
            writer.on_progress(progress)

        call.visit.status = 200
        tokens, rank = ready.answer.tokens, _pinned(call.request)
        self.driver.submit(EngineRequest(call.engine_id, ready.prompt_tokens, tokens, ready.blocks, rank), sink)

    def _embed(self, call: _Call, ready: Embedded) -> None:
        def sink(progress: Progress) -> None:
            vectors = [_vector(prompt, base64=ready.base64) for prompt in ready.prompts]
            body = {
                "id": f"embd-{call.visit.id}",
                "object": "list",
                "created": int(self._clock.wall()),
                "model": self.spec.model,
                "data": [{"index": at, "object": "embedding", "embedding": one} for at, one in enumerate(vectors)],
                "usage": {
                    "prompt_tokens": ready.prompt_tokens,
                    "total_tokens": ready.prompt_tokens,
                    "completion_tokens": 0,
                    "prompt_tokens_details": {"cached_tokens": progress.cached_tokens},
                },
            }
            call.reply.send(200, encode(body))

        call.visit.status = 200
        rank = _pinned(call.request)
        self.driver.submit(EngineRequest(call.engine_id, ready.prompt_tokens, 0, ready.blocks, rank), sink)

    def _misbehaves(self, call: _Call) -> bool:
        """Whether a fault has already dealt with the request."""
        if call.fault is None:
            return False
        match call.fault.kind:
            case FaultKind.STATUS:
                status = call.fault.status
                self._refuse(call, Refusal(status, "InternalServerError", f"a {status} that was asked for"))
            case FaultKind.CLOSE:
                call.visit.ending = Ending.BROKEN
                call.reply.abort()
            case FaultKind.HANG:
                pass  # until the client leaves
            case _:
                return False
        return True

    def _refuse(self, call: _Call, refusal: Refusal) -> None:
        call.visit.status = refusal.status
        call.reply.send(refusal.status, error_body(refusal, call.request.path))

    def _over(self, call: _Call, broken: bool) -> None:
        asked_for = call.visit.ending is Ending.BROKEN
        if self.driver.abort(call.engine_id):
            self.counters[call.rank].finished["abort"] += 1
        ending = Ending.BROKEN if asked_for else Ending.ABORTED if broken else Ending.DONE
        self.visits.close(call.visit, ending)


def _pinned(request: HttpRequest) -> int | None:
    """The engine asked for; a word is ignored, as vLLM does."""
    rank = request.headers.get("x-data-parallel-rank", "")
    return int(rank[:9]) if rank.isdecimal() else None


def busy() -> Refusal:
    """vLLM's answer when its backlog is full: nothing was started."""
    message = "The engine is currently busy and cannot accept more requests. Please retry on a different instance."
    return Refusal(503, "Service Unavailable", message)


def error_body(refusal: Refusal, path: str) -> bytes:
    """A refusal in the shape of its endpoint."""
    if path.startswith("/v1/messages"):
        kind = {400: "invalid_request_error", 404: "not_found_error"}.get(refusal.status, "api_error")
        return encode({"type": "error", "error": {"type": kind, "message": refusal.message}})
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.status}
    return encode({"error": error})


def _vector(prompt: str, *, base64: bool) -> str | list[float]:
    """A unit vector that depends on the prompt alone; in base64 as little-endian 32-bit floats."""
    raw = [crc32(prompt.encode(), seed) / 2**32 - 0.5 for seed in range(_EMBEDDING_FLOATS)]
    norm = sum(value * value for value in raw) ** 0.5
    unit = [value / norm for value in raw]
    return b64encode(pack(f"<{len(unit)}f", *unit)).decode() if base64 else unit

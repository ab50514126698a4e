"""Everything a simulated vLLM answers beside its model endpoints, and the table of all routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address

import msgspec

from gateway.clock import Clock
from gateway.sim import ask as asks
from gateway.sim import prepare
from gateway.sim.ask import Refusal
from gateway.sim.faults import FaultOrder
from gateway.sim.http import HttpRequest, Reply
from gateway.sim.metrics import render
from gateway.sim.offload import offload
from gateway.sim.prepare import checked
from gateway.sim.service import TALKS, Service, error_body
from gateway.sim.shapes import encode
from gateway.sim.text import encode as tokenise
from gateway.sim.text import from_ids, token_ids

VERSION = "0.32.0"
Route = Callable[[HttpRequest, Reply], None]


class Pages:
    """Routes requests: to ``service`` or to a small answer of its own."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._spec = service.spec
        self._clock = clock
        self._routes = self._table()

    def serve(self, request: HttpRequest, reply: Reply) -> None:
        """Answer anything."""
        methods = self._routes.get(request.path)
        if request.path.startswith("/sim/requests/"):
            methods = {"GET": self._visit}
        if request.method == "OPTIONS" and "origin" in request.headers:
            reply.send(400, b"Disallowed CORS origin", "text/plain; charset=utf-8")
        elif methods is None:
            reply.send(404, encode({"detail": "Not Found"}))
        elif request.method not in methods:
            reply.send(405, encode({"detail": "Method Not Allowed"}), headers={"allow": ", ".join(methods)})
        elif self._locked(request):
            reply.send(401, encode({"error": "Unauthorized"}))
        else:
            self._answer(methods[request.method], request, reply)

    def _table(self) -> Mapping[str, Mapping[str, Route]]:
        posts: dict[str, Route] = dict.fromkeys((*TALKS, "/v1/embeddings"), self._service.serve)
        posts |= {
            "/v1/messages/count_tokens": self._count_tokens,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        gets: dict[str, Route] = {
            "/health": self._empty,
            "/ping": self._empty,
            "/version": self._version,
            "/load": self._load,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/sim/stats": self._stats,
        }
        table = {path: {"POST": route} for path, route in posts.items()}
        table.update({path: {"GET": route} for path, route in gets.items()})
        table["/ping"]["POST"] = self._empty
        table["/sim/faults"] = {"POST": self._order_faults, "DELETE": self._clear_faults}
        return table

    def _answer(self, route: Route, request: HttpRequest, reply: Reply) -> None:
        try:
            route(request, reply)
        except Refusal as refusal:
            reply.send(refusal.status, error_body(refusal, request.path))

    def _locked(self, request: HttpRequest) -> bool:
        """Whether a key is needed (under /v1 only, as in vLLM) and missing; /sim is for this machine alone."""
        if request.path.startswith("/sim/"):
            return not (request.peer and ip_address(request.peer).is_loopback)
        key = self._spec.api_key
        return (
            key is not None
            and request.path.startswith("/v1")
            and (request.headers.get("authorization") != f"Bearer {key}")
        )

    def _empty(self, _: HttpRequest, reply: Reply) -> None:
        reply.send(200, b"")

    def _version(self, _: HttpRequest, reply: Reply) -> None:
        reply.send(200, encode({"version": VERSION}))

    def _load(self, _: HttpRequest, reply: Reply) -> None:
        reply.send(200, encode({"server_load": self._service.visits.inflight}))

    def _metrics(self, _: HttpRequest, reply: Reply) -> None:
        body = render(self._service.driver.machine, self._service.counters, self._spec.model)
        reply.send(200, body, "text/plain; version=0.0.4; charset=utf-8")

    def _models(self, _: HttpRequest, reply: Reply) -> None:
        card = {
            "id": self._spec.model,
            "object": "model",
            "created": int(self._clock.wall()),
            "owned_by": "vllm",
            "root": self._spec.model,
            "parent": None,
            "max_model_len": self._spec.profile.max_model_len,
            "permission": [],
        }
        reply.send(200, encode({"object": "list", "data": [card]}))

    def _tokenize(self, request: HttpRequest, reply: Reply) -> None:
        def work() -> bytes:
            prompts = prepare.shaped(asks.prompts, checked(request.body, self._spec.model))
            if len(prompts) != 1:
                raise asks.bad("one prompt, please", "prompt")
            tokens, context = token_ids(prompts[0]), self._spec.profile.max_model_len
            return encode({"count": len(tokens), "max_model_len": context, "tokens": tokens, "token_strs": None})

        self._offload(request, reply, work)

    def _count_tokens(self, request: HttpRequest, reply: Reply) -> None:
        def work() -> bytes:
            ask = prepare.shaped(asks.messages, checked(request.body, self._spec.model))
            return encode({"input_tokens": tokenise(ask.prompt).tokens})

        self._offload(request, reply, work)

    def _offload(self, request: HttpRequest, reply: Reply, work: Callable[[], bytes]) -> None:
        def then(result: Callable[[], bytes]) -> None:
            try:
                reply.send(200, result())
            except Refusal as refusal:
                reply.send(refusal.status, error_body(refusal, request.path))

        offload(len(request.body), work, then)

    def _detokenize(self, request: HttpRequest, reply: Reply) -> None:
        tokens = checked(request.body, self._spec.model).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise asks.bad("tokens: a list of integers is needed", "tokens")
        reply.send(200, encode({"prompt": from_ids(tokens)}))

    def _stats(self, _: HttpRequest, reply: Reply) -> None:
        visits, machine = self._service.visits, self._service.driver.machine
        body = {
            "inflight": visits.inflight,
            "inflight_max": visits.inflight_max,
            "opened": visits.opened,
            "running": machine.running,
            "waiting": machine.queued,
            "faults_left": self._service.faults.left,
            **{str(ending): count for ending, count in visits.endings.items()},
            "requests": {visit.id: visit.ending for visit in visits.latest()},
        }
        reply.send(200, encode(body))

    def _visit(self, request: HttpRequest, reply: Reply) -> None:
        visit = self._service.visits.find(request.path.removeprefix("/sim/requests/"))
        if visit is None:
            raise Refusal(404, "NotFoundError", "no such request is remembered")
        body = {
            "id": visit.id,
            "path": visit.path,
            "headers": visit.headers,
            "ending": visit.ending,
            "status": visit.status,
            "tokens": visit.tokens,
            "body": visit.body.decode("utf-8", "replace"),
        }
        reply.send(200, encode(body))

    def _order_faults(self, request: HttpRequest, reply: Reply) -> None:
        try:
            self._service.faults.order(msgspec.json.decode(request.body, type=FaultOrder))
        except msgspec.DecodeError as error:
            raise asks.bad(str(error)) from None
        reply.send(200, encode({"faults_left": self._service.faults.left, "manner": self._service.faults.manner}))

    def _clear_faults(self, _: HttpRequest, reply: Reply) -> None:
        self._service.faults.clear()
        reply.send(200, encode({"faults_left": 0}))

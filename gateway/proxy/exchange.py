"""One call's trip: parse, estimate, enter, send, relay, record. Owns what is mutable about it.

One coroutine walks the trip. Whatever ends it early, a timeout, a client that left, a shutdown, does so through
``kill``: it cancels the coroutine, every ``with`` on the way unwinds once, and the reason decides what is said.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.domain import CallClass, Endpoint, Estimate, Key, Need, Outcome
from gateway.errors import (
    GatewayError,
    InvalidKey,
    InvalidRequest,
    NotFound,
    UpstreamCut,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.policy import health, retry
from gateway.policy.routing import classify
from gateway.ports import Downlink
from gateway.proxy.answer import Answer
from gateway.proxy.connection import UpstreamFault
from gateway.proxy.gate import Grant
from gateway.proxy.pool import Permit, Replica
from gateway.proxy.record import record_of
from gateway.proxy.request import Request
from gateway.proxy.stored import Stored
from gateway.wire.body import BodyFacts, parse, rewrite, rewrite_multipart
from gateway.wire.endpoints import Route
from gateway.wire.headers import Headers, forward_request_head

if TYPE_CHECKING:
    from gateway.proxy.datapath import DataPath
    from gateway.proxy.model import Model

logger = logging.getLogger(__name__)

JOINED_BYTES_MAX = 65_536  # up to here one write of both is cheaper than two
USAGE_ON_REQUEST = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})  # others always send it


class Ending(Exception):
    """An end that is no answer to the client: it left, or stopped reading."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Exchange:
    """Made when a request's head is complete, started when its body is. ``refusal`` is what it will be told then."""

    def __init__(
        self,
        path: DataPath,
        request: Request,
        route: Route,
        downlink: Downlink,
        request_id: str,
        nonce: int,
        admitted: Key | GatewayError,
    ) -> None:
        self.path = path
        self.request = request
        self.route = route
        self.request_id = request_id
        self.nonce = nonce
        self.key = admitted if isinstance(admitted, Key) else None
        self.refusal = admitted if isinstance(admitted, GatewayError) else None
        self.started_s = request.received_s
        self.answer = Answer(downlink, route.endpoint, path.clock, self.started_s)
        self.task: asyncio.Task[None] | None = None
        self.model: Model | None = None
        self.facts: BodyFacts | None = None
        self.estimate: Estimate | None = None
        self.call_class: CallClass | None = None
        self.grant: Grant | None = None
        self.outcome = Outcome.INTERNAL
        self.reason = ""
        self.attempts = 0
        self.body_bytes = 0
        self.queued_s = 0.0
        self.overhead_s = 0.0
        self._killed: GatewayError | Ending | None = None
        self._walking = False
        self._sent_s: float | None = None  # when the attempt under way was sent
        self._first_byte_s = 0.0  # how long its first byte may take: the prompts ahead of it are prefilled, too

    # -- the trip --------------------------------------------------------------------------------------------------

    def start(self, body: bytes) -> None:
        """The body is complete: walk the trip in a task of its own."""
        self.started_s = self.answer.written_s = self.path.clock.monotonic()
        self.body_bytes = len(body)
        self.path.exchanges.add(self)
        self.task = self.path.tasks.start(self._run(body))

    def refuse_early(self, error: GatewayError) -> None:
        """Refuse before the body was read: answer and record, never start."""
        self._refuse(error)
        self._settle()

    async def _run(self, body: bytes) -> None:
        self._walking = True
        try:
            if self._killed is not None:
                raise asyncio.CancelledError
            await self._serve(body)
        except GatewayError as error:
            self._refuse(error)
        except asyncio.CancelledError:
            if self._killed is None:
                if not self.answer.over:
                    self.answer.downlink.abort()
                raise
            self._end(self._killed)
        except Exception:  # the outer boundary of a call: whatever happens, it is answered and recorded
            logger.exception("request %s failed in the gateway", self.request_id)
            self._refuse(GatewayError("The gateway failed; the fault is its own."))
        finally:
            self.path.exchanges.discard(self)
            self._settle()
            self.refusal = self._killed = None  # their tracebacks lead back here: a circle that would keep the body

    async def _serve(self, body: bytes) -> None:
        if self.refusal is not None:
            if isinstance(self.refusal, InvalidKey) and not await self.path.pacer.hold(self.request.client):
                self._end(Ending(Outcome.REFUSED))  # too many wait already: not even an answer
                return
            raise self.refusal
        assert self.key is not None
        if self.route.response_id is not None:
            await self._serve_stored(self.route.response_id, body)
            return
        content_type = self.request.header(b"content-type") or b""
        facts = self.facts = parse(self.route, body, content_type)
        if facts.background:  # it would run on uncounted after its slot was given back
            raise InvalidRequest(
                "Responses with 'background' are not served: they would run beyond the caps.", param="background"
            )
        model = self.model = self.path.resolve(facts.model, self.key)
        prompt = self.estimate = model.tokens.estimate(facts.size, self.key.id)
        self.call_class = classify(prompt, model.spec.routing)
        previous = facts.previous_response_id
        if previous is not None and self.path.stored.is_foreign(previous, self.key.team.name):
            raise _no_response(previous, "previous_response_id")
        elsewhere = self._elsewhere(model, previous)
        need = Need(self.call_class, prompt, facts.max_tokens or 0, self.nonce, elsewhere)
        strip = facts.stream and not facts.wants_usage and self.route.endpoint in USAGE_ON_REQUEST
        body = self._upstream_body(body, content_type, model.spec.upstream_name, include_usage=strip)
        model.deposit_retry()
        seq = model.gate.next_seq()
        self.overhead_s = self.path.clock.monotonic() - self.started_s
        while True:
            found = model.gate.try_enter(need) if self.route.takes_permit else model.gate.borrow(need)
            grant = self.grant = found if isinstance(found, Grant) else await self._wait(model, need, seq)
            with grant.permit:
                if not await self._attempt(grant.permit, model, need, body, strip=strip):
                    return
            need = need.without(grant.permit.replica.spec.name)

    async def _serve_stored(self, response_id: str, body: bytes) -> None:
        """Pass a question about a stored response to the replica that has it."""
        assert self.key is not None
        stored = self.path.stored.find(response_id, self.key.team.name)
        model = self.model = self.path.models.get(stored.model) if stored is not None else None
        if model is None or not self.key.team.may_use(model.spec.name):
            raise _no_response(response_id, "response_id")
        need = Need(CallClass.SHORT, Estimate(0, 0, 0), 0, self.nonce, self._elsewhere(model, response_id))
        grant = self.grant = model.gate.borrow(need)
        nowhere = need._replace(excluded=frozenset(model.pool.replicas))
        with grant.permit:
            await self._attempt(grant.permit, model, nowhere, body, strip=False)

    def _elsewhere(self, model: Model, response_id: str | None) -> frozenset[str]:
        """Replicas that cannot take a call which goes on from a stored response: all but the one that has it."""
        assert self.key is not None
        stored = self.path.stored.find(response_id, self.key.team.name)
        if stored is None or stored.model != model.spec.name or stored.replica not in model.pool.replicas:
            return frozenset()
        return frozenset(model.pool.replicas) - {stored.replica}

    def _upstream_body(self, body: bytes, content_type: bytes, upstream_name: str, *, include_usage: bool) -> bytes:
        """The client's own bytes, patched only for the model's name and ``stream_options``."""
        assert self.facts is not None
        name = None if self.facts.model in (None, upstream_name) else upstream_name
        if self.route.multipart:
            return body if name is None else rewrite_multipart(body, content_type, name)
        return rewrite(body, model=name, include_usage=include_usage) if name or include_usage else body

    async def _wait(self, model: Model, need: Need, seq: int) -> Grant:
        assert self.key is not None
        waited_from_s = self.path.clock.monotonic()
        try:
            return await model.gate.enter(need, self.key.team.name, seq)
        finally:
            self.queued_s += self.path.clock.monotonic() - waited_from_s

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def _attempt(self, permit: Permit, model: Model, need: Need, body: bytes, *, strip: bool) -> bool:
        """Send to the permit's replica and relay its answer; ``True`` if ``need`` is to be tried elsewhere instead."""
        replica = permit.replica
        prompt = self.estimate.prompt if self.estimate is not None else 0
        self.attempts += 1
        pieces = self._pieces(replica, body)
        limits = replica.model.timeouts
        self._first_byte_s = limits.first_byte_s + (replica.prefilling_tokens + prompt) / limits.prefill_tokens_per_s
        self._sent_s = self.path.clock.monotonic()
        told = failed = False  # whether the attempt told anything of the replica, and whether that it was at fault
        try:
            replica.prefilling_tokens += prompt
            try:
                response = await replica.upstream.send(pieces)
            finally:
                replica.prefilling_tokens -= prompt
            told, failed = True, health.counts_as_failure(response.status)
            if not failed:
                permit.answered()
            if retry.retryable(response.status) and self._may_retry(model, need, replica, str(response.status)):
                response.abort()
                return True
            await self.answer.relay(response, self._own_headers(), strip_usage=strip)
            self._conclude()
        except UpstreamFault as fault:
            told = failed = True
            if fault.retryable and self._may_retry(model, need, replica, "connection"):
                return True
            raise UpstreamError(f"Replica '{replica.spec.name}' failed: {fault}.", retry_after_s=1.0) from fault
        except BaseException as error:
            if isinstance(error, UpstreamCut) or isinstance(self._killed, UpstreamTimeout):
                told = failed = True
            raise
        finally:
            self._sent_s = None
            if told:
                permit.told(failed=failed)
        return False

    def _pieces(self, replica: Replica, body: bytes) -> tuple[bytes, ...]:
        """The request as it is sent to ``replica``."""
        key = replica.spec.api_key
        head = forward_request_head(
            self.request.method,
            self.request.target,
            replica.upstream.origin.host_header,
            self.request.headers,
            content_length=len(body),
            request_id=f"{self.request_id}-{self.nonce & 0xFFFFFF:06x}{self.attempts}",
            authorization=None if key is None else f"Bearer {key}",
        )
        return (head, body) if len(body) > JOINED_BYTES_MAX else (head + body,)

    def _may_retry(self, model: Model, need: Need, tried: Replica, why: str) -> bool:
        """Whether another replica could take the call, and attempts and budget allow it; takes from the budget."""
        rest = need.without(tried.spec.name)
        if not model.gate.could_take(rest, light=not self.route.takes_permit) or not model.take_retry(self.attempts):
            return False
        self.path.events.retried(why)
        return True

    def _conclude(self) -> None:
        """The replica's own answer reached its end: what was it?"""
        status, watcher = self.answer.status, self.answer.watcher
        if status >= 500 or (watcher is not None and watcher.failed and status < 400):
            self.outcome = Outcome.UPSTREAM_ERROR
        else:
            self.outcome = Outcome.UPSTREAM_REJECTED if status >= 400 else Outcome.OK

    # -- ends ------------------------------------------------------------------------------------------------------

    def writable(self) -> None:
        """The client caught up."""
        self.answer.writable()

    def client_gone(self) -> None:
        """Nobody reads any more: stop the engine at once."""
        if self.answer.response is not None and not self.answer.over:
            self.answer.response.abort()
        self.kill(Ending(Outcome.CLIENT_GONE))

    def kill(self, why: GatewayError | Ending) -> None:
        """End the trip early; the first reason counts, and an answer already complete stays complete."""
        if self.answer.over or self._killed is not None or self.task is None:
            return
        self._killed = why
        if self._walking:  # a task cancelled before its first step would never take one, not even to the end
            self.task.cancel()

    def tick(self, now: float) -> None:
        """Look at the deadlines; called a few times a second by the data path's sweep."""
        if self.answer.over or self._killed is not None:
            return
        why = self._overdue(now)
        if why is not None:
            self.kill(why)
        elif self.facts is not None and self.facts.stream:
            self.answer.keep_alive(now, self.path.serving.keepalive_s, self._own_headers)

    def _overdue(self, now: float) -> GatewayError | Ending | None:
        """What has taken too long, if anything has."""
        answer = self.answer
        if self.model is None or self._sent_s is None:
            return None
        spec = self.model.spec.timeouts
        if answer.paused_s is not None and now - answer.paused_s > spec.write_stall_s:
            return Ending(Outcome.CLIENT_STALLED)
        if now - self._sent_s > spec.total_s:
            return UpstreamTimeout(f"The answer took longer than {spec.total_s:g} s.")
        if answer.response is None:
            if now - self._sent_s > self._first_byte_s:
                return UpstreamTimeout(f"The replica sent nothing for {self._first_byte_s:.0f} s.")
        elif answer.paused_s is None and now - max(answer.last_byte_s, answer.resumed_s) > spec.idle_s:
            return UpstreamTimeout(f"The replica fell silent for {spec.idle_s:g} s.")
        return None

    def _end(self, why: GatewayError | Ending) -> None:
        if isinstance(why, GatewayError):
            self._refuse(why)
            return
        self.outcome = why.outcome
        self.reason = why.outcome.value
        self.answer.over = True
        self.answer.downlink.abort()

    def _refuse(self, error: GatewayError) -> None:
        self.outcome, self.reason = error.outcome, error.code
        self.answer.refuse(error, _refusal_headers(error) + self._own_headers())

    def _own_headers(self) -> Headers:
        """What the gateway says of itself on every answer."""
        own: Headers = [(b"x-request-id", self.request_id.encode("latin-1"))]
        if self.grant is not None:
            own += (
                (b"x-gateway-replica", self.grant.choice.replica.encode("latin-1")),
                (b"x-gateway-route", self.grant.choice.reason.encode("latin-1")),
                (b"x-gateway-queue-ms", b"%d" % round(self.queued_s * 1000)),
            )
        return own + self.path.cors_headers(self.request)

    def _settle(self) -> None:
        """Write the one record, teach the estimator what the engine counted, remember where a response is stored."""
        record = record_of(self, self.path.clock)
        if self.model is not None and self.facts is not None and record.usage.prompt and not record.estimated:
            self.model.tokens.learn(self.facts.size, record.usage.prompt, record.key)
        if self.route.endpoint is Endpoint.RESPONSES and self.answer.watcher is not None:
            response_id = self.answer.watcher.response_id
            if response_id is not None and record.replica:
                self.path.stored.put(response_id, Stored(record.team, record.model, record.replica))
        self.path.records.write(record)


def _no_response(response_id: str, param: str) -> NotFound:
    return NotFound(f"No response '{response_id[:100]}' of yours is known here.", param=param)


def _refusal_headers(error: GatewayError) -> Headers:
    headers: Headers = [(b"content-type", b"application/json"), (b"x-gateway-reason", error.code.encode())]
    if error.retry_after_s is not None:
        headers += (
            (b"retry-after", b"%d" % max(1, -(-error.retry_after_s // 1))),
            (b"retry-after-ms", b"%d" % round(error.retry_after_s * 1000)),
        )
    if error.should_retry is False:
        headers.append((b"x-should-retry", b"false"))
    return headers

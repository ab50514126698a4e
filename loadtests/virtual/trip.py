"""One ask's way through the gateway: what decides in ``proxy.exchange``, in its order, with the gateway's own code.

Left out is what carries bytes: parsing, connections, relaying. It takes no time here.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from gateway.clock import LoopClock
from gateway.domain import Estimate, ModelSpec, Need, TextSize
from gateway.errors import UpstreamTimeout
from gateway.policy import health, retry
from gateway.policy.health import ProbeState
from gateway.policy.routing import classify
from gateway.proxy.datapath import GOLDEN
from gateway.proxy.model import Model
from gateway.proxy.pool import Permit, Replica
from gateway.sim.engine import EngineRequest, Progress
from loadtests.virtual.server import Refused, Server
from loadtests.workloads.ask import Ask
from loadtests.workloads.prompt import Prompt, messages

_CHARACTERS_A_TOKEN = 4  # of the filler: three letters and a blank


class Answer:
    """What the client of one ask has seen. ``ended`` is set with the last token; ``on_first`` with the first."""

    __slots__ = ("cached_tokens", "chunks", "ended", "first_s", "gaps", "last_s", "on_first", "replica", "tokens")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self.on_first: list[Callable[[], None]] = []
        self.gaps: array[float] = array("d")
        self.first_s: float | None = None
        self.last_s = 0.0
        self.chunks = self.tokens = self.cached_tokens = 0
        self.replica: str | None = None

    def take(self, at_s: float, progress: Progress) -> None:
        """The tokens of one step: one chunk."""
        if self.first_s is None:
            self.first_s, self.cached_tokens = at_s, progress.cached_tokens
            for told in self.on_first:
                told()
        else:
            self.gaps.append(at_s - self.last_s)
        self.last_s = at_s
        self.chunks += 1
        self.tokens += progress.tokens
        if progress.finished:
            self.ended.set_result(None)


class Gateway:
    """One model and the servers behind it, by the names of its replicas."""

    def __init__(
        self, spec: ModelSpec, servers: Mapping[str, Server], loop: asyncio.AbstractEventLoop, *, seed: int
    ) -> None:
        self.model = Model(spec, LoopClock(loop))
        self.servers = servers
        self._loop = loop
        self._serial = count(seed)
        for replica in self.model.pool:
            replica.found_context_tokens = servers[replica.spec.name].profile.max_model_len
        self.probe()

    def probe(self) -> None:
        """See of every server what the prober would."""
        for replica in self.model.pool:
            replica.probe = ProbeState().passed()
            replica.stats = self.servers[replica.spec.name].stats()

    async def serve(self, ask: Ask, answer: Answer) -> None:
        """Bring ``ask`` to its last token. Leaving is cancelling.

        Raises ``GatewayError`` for the gateway's own refusals, ``Refused`` for an engine's.
        """
        model, key = self.model, f"load-{ask.team}"
        size = text_size(ask.prompt)
        prompt = model.tokens.estimate(size, key)
        nonce = (next(self._serial) * GOLDEN) & 0xFFFFFFFFFFFFFFFF
        need = Need(classify(prompt, model.spec.routing), prompt, ask.output_tokens, nonce)
        model.deposit_retry()
        seq = model.gate.next_seq()
        attempts, again = 0, True
        while again:
            grant = await model.gate.enter(need, ask.team, seq)
            with grant.permit as permit:
                answer.replica = permit.replica.spec.name
                need, attempts = need.without(answer.replica), attempts + 1
                again = await self._attempt(permit, need, attempts, ask, answer)
        model.tokens.learn(size, ask.prompt_tokens, key)

    async def _attempt(self, permit: Permit, need: Need, attempts: int, ask: Ask, answer: Answer) -> bool:
        """Run on the permit's replica; ``True`` if ``need`` is to be tried elsewhere instead."""
        failed: bool | None = None
        answer.on_first.append(permit.answered)
        try:
            await self._generate(permit, need.prompt, attempts, ask, answer)
            failed = False
        except Refused as refusal:
            failed = health.counts_as_failure(refusal.status)
            if not failed:
                permit.answered()
            elsewhere = retry.retryable(refusal.status) and self.model.gate.could_take(need)
            if elsewhere and self.model.take_retry(attempts):
                return True
            raise
        except UpstreamTimeout:
            failed = True
            raise
        finally:
            answer.on_first.remove(permit.answered)
            if failed is not None:
                permit.told(failed=failed)
        return False

    async def _generate(self, permit: Permit, prompt: Estimate, attempts: int, ask: Ask, answer: Answer) -> None:
        replica, loop = permit.replica, self._loop
        server, limits = self.servers[replica.spec.name], replica.model.timeouts
        request = EngineRequest(f"{attempts}-{ask.id}", ask.prompt_tokens, ask.output_tokens, ask.blocks())
        ahead = replica.prefilling_tokens + prompt.prompt
        first_byte_s = limits.first_byte_s + ahead / limits.prefill_tokens_per_s
        sent_s = loop.time()
        server.submit(request, answer.take)
        with _prefilling(replica, prompt.prompt) as begun:
            answer.on_first.append(begun)
            try:
                while not answer.ended.done():
                    silent_s = sent_s + first_byte_s if answer.first_s is None else answer.last_s + limits.idle_s
                    left_s = min(silent_s, sent_s + limits.total_s) - loop.time()
                    if left_s <= 0:
                        raise UpstreamTimeout(f"Replica '{replica.spec.name}' took too long.")
                    await asyncio.wait((answer.ended,), timeout=left_s)
            finally:
                server.abort(request.id)
                answer.on_first.remove(begun)


@contextmanager
def _prefilling(replica: Replica, tokens: int) -> Iterator[Callable[[], None]]:
    """The replica has so many more prompt tokens to prefill, until the end or until what is given is called."""
    left = [tokens]
    replica.prefilling_tokens += tokens

    def begun() -> None:
        replica.prefilling_tokens -= left[0]
        left[0] = 0

    try:
        yield begun
    finally:
        begun()


def text_size(prompt: Prompt) -> TextSize:
    """What ``wire.body`` counts of the same prompt's JSON."""
    characters = _CHARACTERS_A_TOKEN * sum(segment.tokens for segment in prompt)
    return TextSize(narrow=characters, messages=sum(1 for _ in messages(prompt)))

"""Prompts in order of arrival through the gateway's own parse, estimate and learn, beside what a tokenizer counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from gateway.domain import CallClass, Estimate, Need, ReplicaView
from gateway.policy.routing import fitting
from gateway.proxy.tokens import TokenEstimator
from gateway.wire.body import parse
from gateway.wire.endpoints import ROUTES
from loadtests.estimate.environment import Environment
from loadtests.estimate.prompts import Prompt, Writer

CONTEXT_TOKENS = 131_072
NEAR = 0.05  # of the context, to either side
COLD, WARM = 5, 50  # a key's first prompts, and those after this many
_TOKENS = (50, 50_000)
_ROUTE = ROUTES[b"/v1/chat/completions"]
_SMALL, _LARGE = "small", "large"


class Seen(NamedTuple):
    """One prompt: the key's how-manieth it is, what was expected and what the tokenizer counted."""

    key: str
    kind: str
    nth: int
    estimate: Estimate
    actual: int

    @property
    def off(self) -> float:
        """The estimate's relative error; negative if it was too low."""
        return self.estimate.prompt / self.actual - 1.0


class Tokenizer:
    """Replays prompts as one model with this tokenizer would be asked them."""

    def __init__(self, name: str, environment: Environment) -> None:
        self.name = name
        self.estimator = TokenEstimator()
        self._environment = environment
        self._sent: Counter[str] = Counter()
        self._chars: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def replay(self, prompts: Sequence[Prompt], *, learning: bool = True) -> list[Seen]:
        """Estimate each prompt, then learn from what the tokenizer counts in it."""
        counts = self._environment.count(self.name, [prompt.body for prompt in prompts])
        seen = []
        for prompt, actual in zip(prompts, counts, strict=True):
            size = parse(_ROUTE, prompt.body, b"application/json").size
            self._sent[prompt.key] += 1
            expected = self.estimator.estimate(size, prompt.key)
            seen.append(Seen(prompt.key, prompt.kind, self._sent[prompt.key], expected, actual))
            if learning:
                self.estimator.learn(size, actual, prompt.key)
            self._chars[prompt.kind] += size.narrow + size.wide
            self._tokens[prompt.kind] += actual
        return seen

    def near_limit(self, writer: Writer, each: int, rng: Random) -> list[Seen]:
        """Prompts of each key whose tokens are within ``NEAR`` of the context; call it after ``replay``."""
        prompts = []
        for key in writer.keys:
            for _ in range(each):
                kind = writer.kind_for(key)
                tokens = CONTEXT_TOKENS * rng.uniform(1 - NEAR, 1 + NEAR)
                prompts.append(writer.write(key, kind, round(tokens * self._chars[kind] / self._tokens[kind])))
        seen = self.replay(prompts, learning=False)
        return [one for one in seen if abs(one.actual / CONTEXT_TOKENS - 1.0) <= NEAR]


class Fate(NamedTuple):
    """What becomes of prompts near the limit of a replica, in shares of them."""

    prompts: int
    misplaced: float  # beside a larger replica: sent to the small one, which cannot hold them
    detoured: float  # beside a larger replica: kept off the small one, which could have held them
    refused: float  # with the small one alone: refused, though it could have held them
    judged: float  # with the small one alone: sent although too long, for the engine to refuse


def fate(seen: Sequence[Seen]) -> Fate:
    """How routing places prompts that were ``seen``; each is to be answered in one token."""

    def share(matches: Callable[[Seen], bool]) -> float:
        return sum(map(matches, seen)) / len(seen) if seen else 0.0

    both = (_replica(_SMALL, CONTEXT_TOKENS), _replica(_LARGE, 2 * CONTEXT_TOKENS))
    return Fate(
        len(seen),
        misplaced=share(lambda one: _SMALL in _sent_to(one, both) and not _held(one)),
        detoured=share(lambda one: _SMALL not in _sent_to(one, both) and _held(one)),
        refused=share(lambda one: not _sent_to(one, both[:1]) and _held(one)),
        judged=share(lambda one: bool(_sent_to(one, both[:1])) and not _held(one)),
    )


def arrivals(writer: Writer, each: int, rng: Random) -> list[Prompt]:
    """``each`` prompts of every key, in random order; short and long ones alike (log-uniform)."""
    keys = [key for key in writer.keys for _ in range(each)]
    rng.shuffle(keys)
    low, high = _TOKENS
    prompts = []
    for key in keys:
        kind = writer.kind_for(key)
        chars_per_token = 4 if kind not in {"chinese", "tables"} else 1.4
        prompts.append(writer.write(key, kind, round(chars_per_token * low * (high / low) ** rng.random())))
    return prompts


def _held(one: Seen) -> bool:
    return one.actual + 1 <= CONTEXT_TOKENS


def _sent_to(one: Seen, replicas: Sequence[ReplicaView]) -> set[str]:
    need = Need(CallClass.LONG, one.estimate, completion_tokens=1, nonce=0)
    return {view.name for view in fitting(need, replicas)}


def _replica(name: str, context_tokens: int) -> ReplicaView:
    return ReplicaView(name, frozenset(CallClass), available=True, inflight=0, cap=1, context_tokens=context_tokens)

"""Users in a closed loop: they wait for the answer, think, and ask again with everything said so far."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import msgspec

from loadtests.workloads.ask import Ask, Due, Kind, Reply
from loadtests.workloads.prompt import Prompt, Segment, derive, prompt_tokens

Range = tuple[int, int]  # from, to; drawn evenly on a logarithmic scale: many small ones, few large ones
_THINK_MAX = 4.0  # times the mean


class Habit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one sort of user behaves. Sizes are in tokens, times in seconds; ``think_s`` is a mean (exponential).

    A conversation starts with the team's system prompt (the same for the whole team) and an opening message; each
    further message comes after the answer, until it has had its ``turns`` or would pass ``context_tokens``.
    A failed ask is sent again up to ``retries`` times, ``retry_s`` later (or when the server says).
    """

    think_s: float
    opening_tokens: Range
    output_tokens: Range
    message_tokens: Range = (1, 1)
    turns: Range = (1, 1)
    system_tokens: int = 0
    context_tokens: int = 120_000
    patience_s: float = 900.0
    retries: int = 1
    retry_s: float = 2.0
    asks_max: int = 10_000

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for habits nobody can have."""
        for low, high in (self.opening_tokens, self.output_tokens, self.message_tokens, self.turns):
            if not 1 <= low <= high:
                raise ValueError(f"a range goes from 1 or more upwards, not from {low} to {high}")
        if min(self.think_s, self.system_tokens, self.retries, self.retry_s) < 0:
            raise ValueError("times and numbers are 0 or more")
        if self.asks_max < 1 or self.patience_s <= 0:
            raise ValueError("asks_max and patience_s are above 0")


def draw(rng: random.Random, bounds: Range) -> int:
    """A whole number in ``bounds`` (both included), evenly on a logarithmic scale."""
    low, high = bounds
    return min(high, int(low * math.exp(rng.random() * math.log((high + 1) / low))))


class Conversant:
    """One user with a habit."""

    def __init__(self, name: str, team: str, kind: Kind, habit: Habit, *, seed: int, seconds: float) -> None:
        self.name = name
        self._team = team
        self._kind = kind
        self._habit = habit
        self._seconds = seconds
        self._rng = random.Random(derive(seed, name))
        tokens = habit.system_tokens
        self._system = (Segment("system", derive(seed, "system", kind, team), tokens),) if tokens else ()
        self._asked = self._failed = self._turns_left = 0
        self._ask: Ask | None = None

    def first(self) -> Due | None:
        """See ``User``: somewhere in the first think time, so that nobody marches in step."""
        return self._due(self._rng.random() * self._habit.think_s, self._opening())

    def then(self, now_s: float, reply: Reply) -> Due | None:
        """See ``User``."""
        if self._ask is None:
            return None
        if reply.ok:
            self._failed = 0
            return self._due(now_s + self._think_s(), self._next(self._ask, reply))
        self._failed += 1
        if self._failed > self._habit.retries:
            self._failed = 0
            return self._due(now_s + max(self._think_s(), self._habit.retry_s), self._opening())
        wait_s = self._habit.retry_s if reply.retry_after_s is None else reply.retry_after_s
        return self._due(now_s + wait_s, self._ask.prompt, same=self._ask)

    def _think_s(self) -> float:
        if self._habit.think_s == 0:
            return 0.0
        return min(_THINK_MAX * self._habit.think_s, self._rng.expovariate(1 / self._habit.think_s))

    def _opening(self) -> Prompt:
        self._turns_left = draw(self._rng, self._habit.turns) - 1
        return (*self._system, self._said(self._habit.opening_tokens))

    def _next(self, last: Ask, reply: Reply) -> Prompt:
        """The conversation so far and a new message, or a new conversation."""
        if self._turns_left < 1:
            return self._opening()
        self._turns_left -= 1
        longer = (*last.prompt, last.answer(reply.tokens, reply.text), self._said(self._habit.message_tokens))
        if prompt_tokens(longer) + self._habit.output_tokens[1] > self._habit.context_tokens:
            return self._opening()
        return longer

    def _said(self, bounds: Range) -> Segment:
        return Segment("user", self._rng.getrandbits(62) | 1 << 32, draw(self._rng, bounds))

    def _due(self, at_s: float, prompt: Prompt, same: Ask | None = None) -> Due | None:
        if at_s >= self._seconds or self._asked >= self._habit.asks_max:
            self._ask = None
            return None
        self._asked += 1
        ask_id = f"{self.name}-{self._asked}"
        self._ask = replace(same, id=ask_id) if same else self._new(ask_id, prompt)
        return Due(at_s, self._ask)

    def _new(self, ask_id: str, prompt: Prompt) -> Ask:
        return Ask(
            id=ask_id,
            user=self.name,
            team=self._team,
            kind=self._kind,
            prompt=prompt,
            output_tokens=draw(self._rng, self._habit.output_tokens),
            answer_seed=self._rng.getrandbits(62) | 1 << 32,
            patience_s=self._habit.patience_s,
        )

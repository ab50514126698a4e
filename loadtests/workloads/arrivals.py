"""Documents in an open loop: they arrive whether or not anything before them was answered."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from loadtests.workloads.ask import Ask, Due, Kind
from loadtests.workloads.prompt import Segment, derive
from loadtests.workloads.users import Range, draw

_COUNT_MAX = 10_000


class Documents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unique long documents with a question each: at random (Poisson) ``per_minute``, and giants at fixed times.

    ``giants`` are (share of the run, tokens). Sizes are drawn evenly on a logarithmic scale.
    """

    per_minute: float = 0.0
    tokens: Range = (30_000, 240_000)
    question_tokens: int = 40
    output_tokens: Range = (150, 500)
    giants: tuple[tuple[float, int], ...] = ()
    patience_s: float = 900.0
    count_max: int = _COUNT_MAX

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what cannot be."""
        if not 0 <= self.per_minute <= 6_000 or not 1 <= self.count_max <= _COUNT_MAX:
            raise ValueError(f"per_minute is 0 to 6000, count_max 1 to {_COUNT_MAX}")
        if not 1 <= self.tokens[0] <= self.tokens[1] or not 1 <= self.output_tokens[0] <= self.output_tokens[1]:
            raise ValueError("a range goes from 1 or more upwards")
        if any(not 0 <= share < 1 or tokens < 1 for share, tokens in self.giants):
            raise ValueError("giants are (share of the run from 0 to below 1, tokens)")


def documents(plan: Documents, team: str, *, seed: int, seconds: float) -> Iterator[Due]:
    """The documents' arrivals, in order."""
    rng = random.Random(derive(seed, "documents", team))
    times: list[tuple[float, int | None]] = [(share * seconds, tokens) for share, tokens in plan.giants]
    at_s = 0.0
    while plan.per_minute and len(times) < plan.count_max:
        at_s += rng.expovariate(plan.per_minute / 60)
        if at_s >= seconds:
            break
        times.append((at_s, None))
    for number, (due_s, tokens) in enumerate(sorted(times, key=lambda one: one[0])[: plan.count_max]):
        size = draw(rng, plan.tokens) if tokens is None else tokens
        text = Segment("user", derive(seed, "document", team, number), size)
        question = Segment("user", derive(seed, "question", team, number), plan.question_tokens)
        ask = Ask(
            id=f"document-{number + 1}",
            user=f"document-{number + 1}",
            team=team,
            kind=Kind.DOCUMENT,
            prompt=(text, question) if plan.question_tokens else (text,),
            output_tokens=draw(rng, plan.output_tokens),
            answer_seed=derive(seed, "answer", team, number),
            patience_s=plan.patience_s,
        )
        yield Due(due_s, ask)

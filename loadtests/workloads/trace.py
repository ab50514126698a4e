"""Recorded arrivals: one JSON object a line, replayed as unique text with the shared prefixes the trace tells of.

    {"arrival_s": 0.0, "prompt_tokens": 1200, "shared_prefix_tokens": 512, "output_tokens": 200}

``prompt_tokens`` include the chat template's few. The shared prefix is the beginning of one text common to all lines,
unless a line says which texts it consists of: ``"prefix": [[17, 512], [23, 1024]]`` (number of the text, tokens);
lines share a prefix as far as these agree. ``team`` and ``kind`` may be given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from loadtests.workloads.ask import Ask, Due, Kind, Workload
from loadtests.workloads.prompt import Segment, derive, overhead_tokens

LINES_MAX = 1_000_000
_FRAME = overhead_tokens(1)


class Line(msgspec.Struct, omit_defaults=True):
    """One request of a trace."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    prefix: tuple[tuple[int, int], ...] = ()
    team: str = "trace"
    kind: Kind = Kind.TRACE

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where a line cannot be a request."""
        if self.arrival_s < 0 or self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("arrival_s is 0 or more, prompt_tokens and output_tokens 1 or more")
        if not 0 <= self.shared_prefix_tokens <= self.prompt_tokens or any(tokens < 1 for _, tokens in self.prefix):
            raise ValueError("shared_prefix_tokens are part of prompt_tokens")
        if self.prefix and sum(tokens for _, tokens in self.prefix) > self.prompt_tokens:
            raise ValueError("a prefix is part of prompt_tokens")


def read(path: Path) -> list[Line]:
    """The lines of a trace, in order of arrival. Raises ``ValueError`` naming the first bad line, ``OSError``."""
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            if len(lines) >= LINES_MAX:
                raise ValueError(f"{path}: more than {LINES_MAX} lines")
            try:
                lines.append(decoder.decode(raw))
            except (msgspec.DecodeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    return sorted(lines, key=lambda line: line.arrival_s)


def replay(
    lines: Iterable[Line], *, seed: int, seconds: float, rate: float = 1.0, patience_s: float = 900.0
) -> Workload:
    """The trace from its first arrival on, ``rate`` times as fast, cut off after ``seconds``.

    Raises ``ValueError`` for an empty trace or a rate that is none.
    """
    if not 0 < rate <= 10_000 or not 0 < seconds <= 86_400:
        raise ValueError("rate is above 0 and at most 10000, seconds above 0 and at most 86400")
    ordered = sorted(lines, key=lambda line: line.arrival_s)
    if not ordered:
        raise ValueError("the trace has no lines")
    start_s = ordered[0].arrival_s
    kept = [line for line in ordered if (line.arrival_s - start_s) / rate < seconds]
    teams = tuple(dict.fromkeys(line.team for line in kept))
    dues = _dues(kept, start_s, seed, rate, patience_s)
    return Workload("trace", seed, seconds, teams, (), (dues,), len(kept))


def _dues(lines: Iterable[Line], start_s: float, seed: int, rate: float, patience_s: float) -> Iterator[Due]:
    for number, line in enumerate(lines, 1):
        ask = Ask(
            id=f"trace-{number}",
            user=f"trace-{number}",
            team=line.team,
            kind=line.kind,
            prompt=_prompt(line, seed, number),
            output_tokens=line.output_tokens,
            answer_seed=derive(seed, "answer", number),
            patience_s=patience_s,
        )
        yield Due((line.arrival_s - start_s) / rate, ask)


def _prompt(line: Line, seed: int, number: int) -> tuple[Segment, ...]:
    """One user message: the shared texts, then what is this request's own."""
    left = max(1, line.prompt_tokens - _FRAME)
    segments: list[Segment] = []
    for text, tokens in line.prefix or (((0, line.shared_prefix_tokens),) if line.shared_prefix_tokens else ()):
        if taken := min(tokens, left):
            segments.append(Segment("user", derive(seed, "shared", text), taken))
            left -= taken
    if left:
        segments.append(Segment("user", derive(seed, "own", number), left))
    return tuple(segments)

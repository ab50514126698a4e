"""The schema of a result. Seconds are the workload's own (a run at speed 10 takes a tenth of them); absent values were
not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from loadtests.report.statistics import Distribution
from loadtests.workloads.ask import Due

SCHEMA = 1
OK, UNFINISHED = "ok", "unfinished"  # outcomes of calls; all others are failures, in words


class Call(msgspec.Struct, omit_defaults=True):
    """One request, as its client saw it. Token counts are those of the answer's usage, ``None`` where it had none.

    ``due_s`` is when it should have been sent, ``sent_s`` when it was. ``first_s`` is the first token's arrival (the
    role chunk is none), ``chunks`` the chunks with tokens. ``asked_*`` is what it should cost by the workload.
    """

    id: str
    user: str
    team: str
    kind: str
    due_s: float
    sent_s: float
    asked_prompt: int
    asked_output: int
    outcome: str = ""
    ended_s: float | None = None
    first_s: float | None = None
    gap_mean_s: float | None = None
    gap_p99_s: float | None = None
    gap_max_s: float | None = None
    chunks: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    replica: str | None = None

    @classmethod
    def begun(cls, due: Due, now_s: float) -> Call:
        """The call that sends ``due`` at ``now_s``: nothing of its answer is known yet."""
        ask = due.ask
        return cls(
            id=ask.id,
            user=ask.user,
            team=ask.team,
            kind=str(ask.kind),
            due_s=due.at_s,
            sent_s=now_s,
            asked_prompt=ask.prompt_tokens,
            asked_output=ask.output_tokens,
        )

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        """Time to the end of the answer."""
        return None if self.ended_s is None else self.ended_s - self.sent_s


class Sample(msgspec.Struct):
    """One look at the fleet. ``inflight`` is what a replica's server holds, the rest its engine's own words.

    ``queued`` are the calls waiting in the gateway, where it was asked.
    """

    at_s: float
    inflight: dict[str, float] = {}
    running: dict[str, float] = {}
    waiting: dict[str, float] = {}
    queued: float | None = None


class Group(msgspec.Struct):
    """Calls of one kind or class. Distributions are of answers that came whole; ``gap_s`` of all their token gaps.

    ``good`` are the calls with TTFT and mean gap within the targets, ``strict`` those whose own p99 gap is too; both
    as a share of all that ended, failures included.
    """

    asked: int
    ok: int
    failures: dict[str, int]
    ttft_s: Distribution | None = None
    gap_s: Distribution | None = None
    e2e_s: Distribution | None = None
    stream_tokens_per_s: Distribution | None = None
    good: float | None = None
    strict: float | None = None
    good_per_s: float | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class TeamShare(msgspec.Struct):
    """What one team got: tokens of prompts and answers, and its share of all."""

    calls: int
    ok: int
    tokens: int
    share: float | None = None
    ttft_p95_s: float | None = None
    good: float | None = None


class Fairness(msgspec.Struct):
    """Between teams: their shares, and Jain's index of the tokens they got and of their good share of calls."""

    teams: dict[str, TeamShare]
    jain_tokens: float | None = None
    jain_good: float | None = None


class ReplicaShare(msgspec.Struct):
    """What one replica did during the run, by its own counters.

    ``calls`` are the answers that named it. ``over_cap_s`` is the time it held more than its cap (samples),
    ``inflight_max`` the most at any moment, counted by the server itself where it does.
    """

    url: str
    cap: int | None = None
    reached: bool = True
    why_not: str = ""
    calls: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    share: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    inflight_max: float | None = None
    over_cap_s: float | None = None


class Check(msgspec.Struct):
    """A comparison of two counts of the same thing. ``passed`` ``None``: it could not be made, see ``said``."""

    name: str
    passed: bool | None
    said: str


class Effort(msgspec.Struct):
    """How busy everybody was: cores used on average, and how late the client's own loop was (workload seconds)."""

    cores: dict[str, float]
    machine_cores: float
    cores_there: int
    resolution_s: float = 0.0  # of single times, at best: an event loop's timers tick in real milliseconds
    loop_lag_p99_s: float | None = None
    send_lag_p99_s: float | None = None
    limits: tuple[str, ...] = ()  # who was the limit, if anybody but the simulated GPUs


class Result(msgspec.Struct):
    """A run. ``groups`` by "all", kinds, and classes (``short``, ``long``). ``speed`` is 0 in virtual time."""

    scenario: str
    target: str
    seed: int
    seconds: float
    speed: float
    started_at: str
    complete: bool
    elapsed_s: float
    parameters: dict[str, Any]
    machine: dict[str, str]
    groups: dict[str, Group]
    fairness: Fairness
    replicas: dict[str, ReplicaShare]
    prefix_hit_rate: float | None
    checks: list[Check]
    effort: Effort | None
    notes: list[str]
    calls: list[Call]
    samples: list[Sample]
    schema: int = SCHEMA

    @property
    def failed(self) -> list[str]:
        """Why the run does not count; empty if it does."""
        return [f"{check.name}: {check.said}" for check in self.checks if check.passed is False]


def save(result: Result, path: Path) -> None:
    """Write ``result`` as JSON. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(result))


def load(path: Path) -> Result:
    """Read a result. Raises ``ValueError`` if it is none, or of another schema; ``OSError``."""
    raw = path.read_bytes()
    try:
        schema = msgspec.json.decode(raw, type=_Versioned).schema
        if schema != SCHEMA:
            raise ValueError(f"{path}: schema {schema}; this program reads {SCHEMA}")
        return msgspec.json.decode(raw, type=Result)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: no result of a run: {error}") from None


class _Versioned(msgspec.Struct):
    schema: int

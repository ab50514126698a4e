"""A grid of settings, each run with the same seeds in virtual time."""

from __future__ import annotations

import multiprocessing
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from loadtests.report.result import Group, Result
from loadtests.report.summary import ALL
from loadtests.report.table import failed
from loadtests.runner.fleet import profiles
from loadtests.virtual.run import Plan, run
from loadtests.virtual.settings import CONFIGURED, Change, model_of, tree_of
from loadtests.workloads.mix import scenario

POINTS_MAX = 5_000


class Point(msgspec.Struct, frozen=True):
    """One run of the grid: ``change`` to the settings of ``fleet`` under one seed's load."""

    fleet: str
    change: Change
    seed: int


class Load(msgspec.Struct, frozen=True):
    """What all points of a sweep have in common."""

    scenario: str
    seconds: float
    settings: Mapping[str, Any] = {}
    config: str | None = None


class Figures(msgspec.Struct, frozen=True):
    """What one run says. Seconds and calls a second; by kind, and ``all``. ``queued_max`` is of samples.

    ``goodput_per_s`` is over the workload's length, not until the last answer: a late document makes no setting worse.

    ``inflight_max`` and ``caps`` are by replica.
    """

    goodput_per_s: float
    good: float | None
    strict: float | None
    asked: int
    failed: int
    ttft_p95_s: Mapping[str, float]
    gap_p99_s: Mapping[str, float]
    stream_tokens_per_s: Mapping[str, float]
    inflight_max: Mapping[str, int]
    caps: Mapping[str, int]
    queued_max: int
    preemptions: int
    faults: tuple[str, ...] = ()  # checks that failed: the run does not count


class Row(msgspec.Struct, frozen=True):
    """A setting and its runs, in the order of the seeds."""

    fleet: str
    change: Change
    runs: tuple[Figures, ...]

    @property
    def goodput_per_s(self) -> float:
        """The mean over the seeds."""
        return sum(run.goodput_per_s for run in self.runs) / len(self.runs)

    def mean(self, name: str, kind: str) -> float | None:
        """The mean over the seeds that have it, of one of the figures by kind."""
        found = [by_kind[kind] for run in self.runs if kind in (by_kind := getattr(run, name))]
        return sum(found) / len(found) if found else None


def grid(
    fleets: Sequence[str], caps: Sequence[int], long_tokens: Sequence[int], policies: Sequence[str], seeds: int
) -> list[Point]:
    """Every combination, and each fleet as it is configured. An empty list leaves that setting as configured.

    Raises ``ValueError`` for more than ``POINTS_MAX``.
    """
    changes = [Change(*values) for values in product(caps or (None,), long_tokens or (None,), policies or (None,))]
    every = dict.fromkeys((CONFIGURED, *changes))
    points = [Point(*one) for one in product(fleets, every, range(1, seeds + 1))]
    if not 1 <= len(points) <= POINTS_MAX:
        raise ValueError(f"{len(points)} runs: 1 to {POINTS_MAX} are possible")
    return points


def plan_of(point: Point, load: Load) -> Plan:
    """The run of ``point``. Raises ``ValueError``, ``OSError``."""
    names = profiles(point.fleet)
    tree = tree_of(point.fleet, names, Path(load.config) if load.config else None)
    workload = scenario(load.scenario, seed=point.seed, seconds=load.seconds, settings=load.settings)
    return Plan(workload, model_of(tree, names, point.change), names)


def measure(point: Point, load: Load) -> Figures:
    """Run ``point``. Raises ``KeyboardInterrupt`` if it was broken off."""
    result = run(plan_of(point, load))
    if not result.complete:
        raise KeyboardInterrupt
    return figures(result)


def figures(result: Result) -> Figures:
    """The part of a result that a sweep compares."""
    whole = result.groups.get(ALL) or Group(asked=0, ok=0, failures={})
    return Figures(
        goodput_per_s=(whole.good_per_s or 0.0) * result.elapsed_s / result.seconds,
        good=whole.good,
        strict=whole.strict,
        asked=whole.asked,
        failed=failed(whole),
        ttft_p95_s={name: one.ttft_s.p95 for name, one in result.groups.items() if one.ttft_s},
        gap_p99_s={name: one.gap_s.p99 for name, one in result.groups.items() if one.gap_s},
        stream_tokens_per_s={
            name: one.stream_tokens_per_s.p50 for name, one in result.groups.items() if one.stream_tokens_per_s
        },
        inflight_max={name: int(one.inflight_max or 0) for name, one in result.replicas.items()},
        caps={name: one.cap or 0 for name, one in result.replicas.items()},
        queued_max=int(max((sample.queued or 0 for sample in result.samples), default=0)),
        preemptions=int(sum(one.preemptions or 0 for one in result.replicas.values())),
        faults=tuple(result.failed),
    )


def measured(points: Sequence[Point], load: Load, processes: int) -> Iterator[tuple[Point, Figures]]:
    """Every point with its figures, in order. Raises ``ValueError`` before the first run if one cannot be."""
    for fleet, change in {(point.fleet, point.change) for point in points}:
        plan_of(Point(fleet, change, 1), load)
    if processes == 1:
        yield from ((point, measure(point, load)) for point in points)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_leave_ctrl_c_to_the_parent)
    try:
        yield from zip(points, pool.map(measure, points, [load] * len(points)), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def rows(found: Iterable[tuple[Point, Figures]]) -> list[Row]:
    """The settings with their runs, fleets in order, the best goodput first.

    Settings that lack a seed others of the fleet have (the sweep was broken off) are left out.
    """
    runs: defaultdict[tuple[str, Change], list[Figures]] = defaultdict(list)
    for point, one in found:
        runs[point.fleet, point.change].append(one)
    most = {fleet: max(len(have) for (name, _), have in runs.items() if name == fleet) for fleet, _ in runs}
    whole = [Row(*setting, tuple(have)) for setting, have in runs.items() if len(have) == most[setting[0]]]
    fleets = list(most)
    return sorted(whole, key=lambda row: (fleets.index(row.fleet), -row.goodput_per_s))


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

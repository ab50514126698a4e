"""What is said of a run in the peers' table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from loadtests.report.result import Group, Result
from loadtests.report.table import failed

KINDS = ("chat", "agent", "document", "batch", "trace")
ALL = "all"


class Figure(NamedTuple):
    """One row for one kind of call."""

    title: str
    value: float | None


def of_group(group: Group) -> Iterator[Figure]:
    """The rows of one kind."""
    first, gap, rate, whole = group.ttft_s, group.gap_s, group.stream_tokens_per_s, group.e2e_s
    yield Figure("asked", group.asked)
    yield Figure("failed", failed(group))
    yield Figure("TTFT p50, s", first.p50 if first else None)
    yield Figure("TTFT p95, s", first.p95 if first else None)
    yield Figure("token gap p99, ms", gap.p99 * 1e3 if gap else None)
    yield Figure("tok/s a stream, p50", rate.p50 if rate else None)
    yield Figure("end to end p95, s", whole.p95 if whole else None)
    yield Figure("within target, %", group.good * 100 if group.good is not None else None)


def of_run(result: Result, router: str) -> Iterator[Figure]:
    """The rows of the whole run. The router's cores are of the machine this ran on, at the pace of real traffic."""
    yield Figure("within target a second", result.groups[ALL].good_per_s if ALL in result.groups else None)
    yield Figure("prefix hit rate, %", result.prefix_hit_rate * 100 if result.prefix_hit_rate is not None else None)
    for name, replica in result.replicas.items():
        yield Figure(f"share of {name}, %", replica.share * 100 if replica.share is not None else None)
    for name, replica in result.replicas.items():
        cap = f" (cap {replica.cap})" if replica.cap is not None else ""
        yield Figure(f"most at once on {name}{cap}", replica.inflight_max)
    known = [one.over_cap_s for one in result.replicas.values() if one.over_cap_s is not None]
    yield Figure("above a cap, s", sum(known) if known else None)
    preempted = [one.preemptions for one in result.replicas.values() if one.preemptions is not None]
    yield Figure("preemptions", sum(preempted) if preempted else None)
    if result.effort is not None and router in result.effort.cores:
        yield Figure("router's CPU, cores", result.effort.cores[router] / result.speed)


def figures(result: Result, router: str) -> dict[str, dict[str, float]]:
    """Rows with a value, by kind and for ``all``; what was not measured is not there."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        if kind in result.groups:
            found[kind] = {row.title: row.value for row in of_group(result.groups[kind]) if row.value is not None}
    found[ALL] = {row.title: row.value for row in of_run(result, router) if row.value is not None}
    return found

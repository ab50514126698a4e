"""A result for the terminal. What was not measured is a dash."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtests.report.result import UNFINISHED, Group, Result
from loadtests.report.statistics import Distribution

NOTHING = "–"
_ORDER = ("all", "chat", "agent", "document", "batch", "trace", "short", "long")


def number(value: float | None, digits: int = 2, scale: float = 1.0, unit: str = "") -> str:
    """``value`` in writing, a dash for nothing."""
    return NOTHING if value is None else f"{value * scale:,.{digits}f}{unit}"


def percent(value: float | None) -> str:
    """A share of 1 as percent."""
    return number(value, 1, 100.0, " %")


def ordered(names: Iterable[str]) -> list[str]:
    """Group names as they are shown: all, kinds, classes."""
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def sections(result: Result) -> list[Table]:
    """The tables of a result: groups, and teams and replicas where there are any to tell apart."""
    parts = [_groups(result)]
    if len(result.fairness.teams) > 1:
        parts.append(_teams(result))
    if result.replicas:
        parts.append(_replicas(result))
    return parts


def show(console: Console, result: Result) -> None:
    """Print everything but the single calls."""
    for table in sections(result):
        console.print(table, highlight=False)
    for line in remarks(result):
        style = "red" if "FAILED" in line or line.startswith("SATURATED") else None
        console.print(line, style=style, highlight=False, markup=False)


def remarks(result: Result) -> list[str]:
    """Checks, effort and notes, a line each."""
    found = [f"prefix hit rate (engines): {percent(result.prefix_hit_rate)}"]
    if result.fairness.jain_tokens is not None:
        fair = result.fairness
        found.append(f"fairness between teams (Jain): tokens {number(fair.jain_tokens)}, good {number(fair.jain_good)}")
    for check in result.checks:
        word = {True: "ok", False: "FAILED", None: "not checked"}[check.passed]
        found.append(f"check, {check.name}: {word}: {check.said}")
    if result.effort is not None:
        cores = ", ".join(f"{name} {share:.2f}" for name, share in result.effort.cores.items())
        lag = number(result.effort.loop_lag_p99_s, 3)
        found.append(f"cores used: {cores}; client late by {lag} s of the workload's time (p99)")
        found.append(f"single times (gaps above all) are resolved to {result.effort.resolution_s * 1e3:.0f} ms")
        found += [f"SATURATED: {limit}: times are not the fleet's own; lower --speed" for limit in result.effort.limits]
    return found + result.notes


def failures(group: Group) -> str:
    """Failures by kind; calls that the end of the run cut are named too."""
    return ", ".join(f"{count} × {outcome}" for outcome, count in group.failures.items())


def failed(group: Group) -> int:
    """Calls that failed; those that the end of the run cut did not."""
    return sum(count for outcome, count in group.failures.items() if outcome != UNFINISHED)


def _three(found: Distribution | None, digits: int = 2) -> list[str]:
    return [number(getattr(found, name, None), digits) for name in ("p50", "p95", "p99")]


def _groups(result: Result) -> Table:
    state = "" if result.complete else " (broken off)"
    pace = f"at speed {result.speed:g}" if result.speed else "in virtual time"
    title = f"{result.scenario}, seed {result.seed}, {result.elapsed_s:.0f} s {pace}{state}"
    table = Table(title=title, title_justify="left")
    table.add_column("calls")
    for name in ("asked", "ok", "failed", "TTFT p50 s", "p95", "p99", "gap p50 ms", "p99"):
        table.add_column(name, justify="right")
    for name in ("tok/s a stream", "e2e p50 s", "p95", "good", "strict"):
        table.add_column(name, justify="right")
    for name in ordered(result.groups):
        group = result.groups[name]
        if name == "short":
            table.add_section()
        gap, rate, whole = group.gap_s, group.stream_tokens_per_s, group.e2e_s
        table.add_row(
            name,
            f"{group.asked}",
            f"{group.ok}",
            f"[red]{failed(group)}[/]" if failed(group) else "0",
            *_three(group.ttft_s),
            number(gap.p50 if gap else None, 1, 1e3),
            number(gap.p99 if gap else None, 1, 1e3),
            number(rate.p50 if rate else None, 1),
            number(whole.p50 if whole else None, 1),
            number(whole.p95 if whole else None, 1),
            percent(group.good),
            percent(group.strict),
        )
    whole_run = result.groups.get("all")
    if whole_run and whole_run.failures:
        table.caption = escape(f"not ok: {failures(whole_run)}")
    return table


def _teams(result: Result) -> Table:
    table = Table(title="teams", title_justify="left")
    table.add_column("team")
    for name in ("calls", "ok", "tokens", "share", "TTFT p95 s", "good"):
        table.add_column(name, justify="right")
    for name, team in result.fairness.teams.items():
        table.add_row(
            name,
            f"{team.calls}",
            f"{team.ok}",
            f"{team.tokens:,}",
            percent(team.share),
            number(team.ttft_p95_s),
            percent(team.good),
        )
    return table


def _replicas(result: Result) -> Table:
    table = Table(title="replicas, by their own counters", title_justify="left")
    table.add_column("replica")
    for name in ("calls", "prompt tok", "output tok", "share", "prefix hits", "preempted", "most/cap", "over cap s"):
        table.add_column(name, justify="right")
    for name, replica in result.replicas.items():
        hits = (replica.prefix_hits or 0.0) / replica.prefix_queries if replica.prefix_queries else None
        table.add_row(
            name,
            number(replica.calls, 0),
            number(replica.prompt_tokens, 0),
            number(replica.generation_tokens, 0),
            percent(replica.share),
            percent(hits),
            number(replica.preemptions, 0),
            f"{number(replica.inflight_max, 0)}/{number(replica.cap, 0)}",
            number(replica.over_cap_s, 1),
        )
    return table

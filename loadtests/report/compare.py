"""``python -m loadtests compare A.json B.json``: two results side by side, with ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtests.report.result import Group, Result, load
from loadtests.report.statistics import Distribution
from loadtests.report.table import NOTHING, failed, number, ordered


class Row(NamedTuple):
    """One figure of two runs; ``ratio`` is second over first where both are there and the first is not 0."""

    group: str
    name: str
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """Second over first."""
        if self.first is None or self.second is None or self.first == 0:
            return None
        return self.second / self.first


_Part = Callable[[Group], "Distribution | None"]
_DISTRIBUTIONS: tuple[tuple[str, _Part], ...] = (
    ("TTFT s", lambda group: group.ttft_s),
    ("token gap s", lambda group: group.gap_s),
    ("e2e s", lambda group: group.e2e_s),
    ("tok/s a stream", lambda group: group.stream_tokens_per_s),
)
_POINTS = ("p50", "p95", "p99")


def rows(first: Result, second: Result) -> Iterator[Row]:
    """Every figure that at least one of the two has."""
    for name in ordered({**first.groups, **second.groups}):
        left, right = first.groups.get(name), second.groups.get(name)
        for row in _group_rows(name, left, right):
            if row.first is not None or row.second is not None:
                yield row
    yield Row("run", "prefix hit rate", first.prefix_hit_rate, second.prefix_hit_rate)
    yield Row("run", "fairness, tokens (Jain)", first.fairness.jain_tokens, second.fairness.jain_tokens)
    yield Row("run", "fairness, good (Jain)", first.fairness.jain_good, second.fairness.jain_good)


def _group_rows(name: str, left: Group | None, right: Group | None) -> Iterator[Row]:
    def both(title: str, value: Callable[[Group], float | None]) -> Row:
        return Row(name, title, value(left) if left else None, value(right) if right else None)

    yield both("answered", lambda group: group.ok)
    yield both("failed", failed)
    yield both("good", lambda group: group.good)
    yield both("good a second", lambda group: group.good_per_s)
    for title, part in _DISTRIBUTIONS:
        for point in _POINTS:
            yield both(f"{title} {point}", lambda group, part=part, point=point: getattr(part(group), point, None))  # type: ignore[misc]


def differences(first: Result, second: Result) -> list[str]:
    """Why the two may not be comparable; empty if they were put under the same load."""
    found = [
        f"{name}: {old} and {new}"
        for name, old, new in (
            ("scenario", first.scenario, second.scenario),
            ("seed", first.seed, second.seed),
            ("seconds", first.seconds, second.seconds),
            ("speed", first.speed, second.speed),
            *_settings(first.parameters.get("workload"), second.parameters.get("workload")),
            ("CPU", first.machine.get("CPU"), second.machine.get("CPU")),
        )
        if old != new
    ]
    for name, result in (("first", first), ("second", second)):
        if not result.complete:
            found.append(f"the {name} was broken off")
        found += [f"the {name} does not count: {reason}" for reason in result.failed]
        found += [f"the {name} was saturated: {limit}" for limit in (result.effort.limits if result.effort else ())]
    return found


def _settings(first: object, second: object, name: str = "workload") -> Iterator[tuple[str, object, object]]:
    """(name, first, second) of every number of the workloads that is not the same."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted({*first, *second}):
            yield from _settings(first.get(key), second.get(key), f"{name}.{key}")
    elif first != second:
        yield name, first, second


def compare(
    first: Annotated[Path, typer.Argument(help="Result of a run (JSON).")],
    second: Annotated[Path, typer.Argument(help="Another; ratios are this one over the first.")],
) -> None:
    """Show two results side by side, with ratios."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    try:
        left, right = load(first), load(second)
    except (OSError, ValueError) as error:
        typer.echo(f"compare: {error}", err=True)
        raise typer.Exit(1) from None
    table = Table(title=escape(f"{first.name} and {second.name}"), title_justify="left")
    for name in ("calls", "figure", "first", "second", "second ÷ first"):
        table.add_column(name, justify="left" if name in ("calls", "figure") else "right")
    last = ""
    for row in rows(left, right):
        if last not in ("", row.group):
            table.add_section()
        shown = row.group if row.group != last else ""
        table.add_row(shown, row.name, _figure(row.first), _figure(row.second), number(row.ratio, 2, unit=" ×"))
        last = row.group
    console.print(table, highlight=False)
    for line in differences(left, right):
        console.print(f"careful: {line}", style="yellow", highlight=False, markup=False)


def _figure(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:,.4g}"

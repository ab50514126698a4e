"""A sweep as tables, Markdown, a page with plots, and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.table import Table

from loadtests.report import page, plots
from loadtests.report.table import number, ordered, percent
from loadtests.virtual.advice import Advice, advise, named
from loadtests.virtual.settings import CONFIGURED
from loadtests.virtual.sweep import Load, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AXES = ("cap", "long_tokens")
_CLASSES = frozenset({"all", "short", "long"})


class Sweep(msgspec.Struct):
    """All of it. ``complete`` is false if it was broken off."""

    load: Load
    seeds: int
    gateway: str
    complete: bool
    rows: list[Row]
    advice: list[Advice]

    @property
    def failed(self) -> list[str]:
        """Runs that do not count."""
        return [
            f"{row.fleet}, {named(row.change)}: {fault}"
            for row in self.rows
            for run in row.runs
            for fault in run.faults
        ]


def sweep_of(load: Load, seeds: int, version: str, rows: list[Row], *, complete: bool) -> Sweep:
    """The rows with what they say."""
    advice = [advise(list(of_fleet)) for _, of_fleet in groupby(rows, key=lambda row: row.fleet)]
    return Sweep(load, seeds, version, complete, rows, advice)


def tables(sweep: Sweep) -> Iterator[Table]:
    """A table for each fleet, best goodput first."""
    for fleet, of_fleet in groupby(sweep.rows, key=lambda row: row.fleet):
        yield _table(fleet, list(of_fleet), sweep)


def remarks(sweep: Sweep) -> list[str]:
    """The recommended settings, a line for each fleet."""
    found = [f"{one.fleet}: take {named(one.take)}: {one.reason}" for one in sweep.advice]
    return found + ([] if sweep.complete else ["broken off: settings without all seeds are left out"])


def save(sweep: Sweep, base: Path) -> list[Path]:
    """Write ``base`` with .json, .md and .html; the paths. Raises ``OSError``."""
    paths = [base.with_suffix(ending) for ending in (".json", ".md", ".html")]
    base.parent.mkdir(parents=True, exist_ok=True)
    paths[0].write_bytes(msgspec.json.format(msgspec.json.encode(sweep), indent=1) + b"\n")
    paths[1].write_text("".join(_markdown(sweep)), encoding="utf-8")
    page.write_parts(_title(sweep), _html(sweep), paths[2])
    return paths


def _title(sweep: Sweep) -> str:
    load = sweep.load
    changes = "".join(f", {name}={value}" for name, value in load.settings.items())
    return f"sweep: {load.scenario}{changes}, {load.seconds:g} s, {sweep.seeds} seeds"


def _table(fleet: str, rows: Sequence[Row], sweep: Sweep) -> Table:
    kinds = [kind for kind in ordered(rows[0].runs[0].ttft_p95_s) if kind not in _CLASSES]
    table = Table(
        title=f"{fleet}: {sweep.load.scenario}, {sweep.load.seconds:g} s, {sweep.seeds} seeds", title_justify="left"
    )
    table.add_column("setting", no_wrap=True)
    by_kind = " / ".join(kinds)
    for name in (
        "good/s",
        "least–most",
        "good",
        "strict",
        "failed",
        f"TTFT p95 s\n{by_kind}",
        f"gap p99 ms\n{by_kind}",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("most/cap", "waiting", "preempted"):
        table.add_column(name, justify="right", no_wrap=True)
    taken = {one.take for one in sweep.advice if one.fleet == fleet}
    for row in rows:
        table.add_row(*_cells(row, kinds), style="bold" if row.change in taken else None)
    return table


def _cells(row: Row, kinds: Sequence[str]) -> Iterator[str]:
    goods = [run.goodput_per_s for run in row.runs]
    yield named(row.change)
    yield number(row.goodput_per_s, 3)
    yield f"{min(goods):.2f}–{max(goods):.2f}"
    yield percent(_mean([run.good for run in row.runs]))
    yield percent(_mean([run.strict for run in row.runs]))
    yield percent(sum(run.failed for run in row.runs) / max(1, sum(run.asked for run in row.runs)))
    yield " / ".join(number(row.mean("ttft_p95_s", kind)) for kind in kinds)
    yield " / ".join(number(row.mean("gap_p99_s", kind), 0, 1e3) for kind in kinds)
    yield " ".join(f"{max(run.inflight_max[name] for run in row.runs)}/{cap}" for name, cap in row.runs[0].caps.items())
    yield f"{max(run.queued_max for run in row.runs)}"
    yield f"{sum(run.preemptions for run in row.runs)}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _markdown(sweep: Sweep) -> Iterator[str]:
    yield f"# {_title(sweep)}\n\n"
    yield "In virtual time. *good/s* is good calls a second (TTFT ≤ 2 s, mean gap ≤ 50 ms), mean over seeds; "
    yield "percentiles are means over seeds; *most/cap*, *waiting* (in the gateway), *preempted* are over all seeds.\n"
    for table in tables(sweep):
        yield f"\n## {table.title}\n\n|" + "|".join(f" {_one_line(column.header)} " for column in table.columns) + "|\n"
        yield "|---" * len(table.columns) + "|\n"
        for row in zip(*(column.cells for column in table.columns), strict=True):
            yield "|" + "|".join(f" {cell} " for cell in row) + "|\n"
    yield "\n## Recommended\n\n" + "".join(f"* {line}\n" for line in remarks(sweep))


def _one_line(header: object) -> str:
    return str(header).replace("\n", " ")


def _html(sweep: Sweep) -> Iterator[str]:
    yield from (f'<p class="bad">{escape(line)}</p>' for line in sweep.failed)
    yield "<h2>Recommended</h2><ul>" + "".join(f"<li>{escape(line)}</li>" for line in remarks(sweep)) + "</ul>"
    for table in tables(sweep):
        yield from page.table_html(table)
    if not plots.AVAILABLE:
        yield f"<p>{escape(plots.MISSING)}</p>"
        return
    for fleet, of_fleet in groupby(sweep.rows, key=lambda row: row.fleet):
        rows = list(of_fleet)
        for name, picture in _pictures(rows):
            yield f"<h2>{escape(fleet)}: {escape(name)}</h2>{picture}"


def _pictures(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Figures over the cap, or over ``long_tokens`` if that alone was varied."""
    over = next((name for name in _AXES if any(getattr(row.change, name) is not None for row in rows)), None)
    if over is None:
        return

    def drawn(label: str, value: Callable[[Row], Sequence[float]]) -> tuple[str, str]:
        return f"{label}, by {over}", plots.svg(lambda axes: _curves(axes, rows, over, label, value))

    yield drawn("good calls a second", lambda row: [run.goodput_per_s for run in row.runs])
    for kind in ordered(rows[0].runs[0].ttft_p95_s):
        if kind not in _CLASSES:
            yield drawn(f"TTFT p95 of {kind}, seconds", lambda row, kind=kind: _firsts(row, kind))  # type: ignore[misc]


def _firsts(row: Row, kind: str) -> list[float]:
    return [run.ttft_p95_s[kind] for run in row.runs if kind in run.ttft_p95_s]


def _curves(axes: Axes, rows: Sequence[Row], over: str, label: str, value: Callable[[Row], Sequence[float]]) -> None:
    """A line for each of the other settings, bars from least to most over the seeds; dashed: as configured."""
    lines: defaultdict[str, dict[int, Sequence[float]]] = defaultdict(dict)
    for row in rows:
        found, at = value(row), getattr(row.change, over)
        if row.change == CONFIGURED and found:
            axes.axhline(sum(found) / len(found), linestyle="--", color="gray", linewidth=0.8, label="as configured")
        elif at is not None and found:
            others = row.change._replace(**{over: None})
            lines[f"{over} alone" if others == CONFIGURED else named(others)][at] = found
    for name, points in sorted(lines.items()):
        _line(axes, name, points)
    axes.set(xlabel=f"{over} of every replica" if over == "cap" else over, ylabel=label, ylim=(0, None))


def _line(axes: Axes, name: str, points: Mapping[int, Sequence[float]]) -> None:
    places = sorted(points)
    means = [sum(points[at]) / len(points[at]) for at in places]
    below = [mean - min(points[at]) for at, mean in zip(places, means, strict=True)]
    above = [max(points[at]) - mean for at, mean in zip(places, means, strict=True)]
    axes.errorbar(places, means, yerr=(below, above), label=name, capsize=2, marker="o", markersize=3)

"""Measurements as a table, as Markdown and as JSON. Nothing appears here that was not measured."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.table import Table

from loadtests.bench.cases import CASES, COMPILED, DIRECT, FIGURES, GATEWAY, Case, Figure
from loadtests.bench.run import Bench, Measurement
from loadtests.bench.target import Target

_NOTHING = "–"
_FAILED = "†"
_QUIET_CORES = 0.1  # a tick here and there, and what runs in the background of any machine


@dataclass(frozen=True, slots=True)
class Cell:
    """One target's values of a figure over the rounds; empty where it was not measured."""

    values: tuple[float, ...] = ()
    failed: int = 0  # calls that failed in the rounds behind it
    doubtful: bool = False  # the target that it is compared with had failed calls

    def text(self, digits: int, *, spread: bool = True) -> str:
        """The median and, with ``spread``, the least and most over the rounds."""
        if not self.values:
            return _NOTHING + (_FAILED if self.failed else "")
        text = f"{median(self.values):,.{digits}f}"
        if spread and len(self.values) > 1:
            text += f" ({min(self.values):,.{digits}f}–{max(self.values):,.{digits}f})"
        return text + (_FAILED if self.failed or self.doubtful else "")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one case, for every target."""

    case: Case
    figure: Figure
    cells: dict[str, Cell]

    @property
    def goal(self) -> str:
        """What the gateway may show at most."""
        goal_max = self.figure.goal_in(self.case)
        return "" if goal_max is None else f"≤ {goal_max:g} {self.figure.unit}"

    @property
    def verdict(self) -> str:
        """Whether the gateway's median keeps the goal, as it is and compiled; a run with failed calls keeps none."""
        if (goal_max := self.figure.goal_in(self.case)) is None:
            return ""
        plain = self._verdict(GATEWAY, goal_max)
        other = self.cells.get(COMPILED, Cell())
        compiled = self._verdict(COMPILED, goal_max) if other.values or other.failed else plain
        return plain if plain == compiled else f"{plain}; compiled: {compiled}"

    def _verdict(self, target: str, goal_max: float) -> str:
        cell = self.cells.get(target, Cell())
        if cell.failed:
            return f"NOT MET: {cell.failed} failed"
        if not cell.values or cell.doubtful:
            return "not measured"
        return "met" if median(cell.values) <= goal_max else "NOT MET"


def rows(measured: Sequence[Measurement], targets: Sequence[str]) -> list[Row]:
    """The table's rows, in the order of the cases; those that nobody has a value for are left out."""
    found = []
    for case in CASES:
        mine = [m for m in measured if m.case == case.name]
        for figure in FIGURES:
            if mine and figure.shows_in(case):
                row = Row(case, figure, {name: _cell(figure, mine, name) for name in targets})
                if row.goal or any(cell.values or cell.failed for cell in row.cells.values()):
                    found.append(row)
    return found


def _cell(figure: Figure, measured: Sequence[Measurement], target: str) -> Cell:
    """Ratios and differences are taken round by round: both sides met the same moment of the machine."""
    other = figure.per or figure.less
    if target == other or (figure.less and target == DIRECT):
        return Cell()
    mine = [m for m in measured if m.target == target]
    theirs = {m.round: m for m in measured if m.target == other}
    values = []
    for m in mine:
        value = m.figures.get(figure.key)
        beside = theirs[m.round].figures.get(figure.key) if m.round in theirs else None
        if figure.per:
            value = value / beside if value is not None and beside else None
        elif figure.less:
            value = value - beside if value is not None and beside is not None else None
        if value is not None:
            values.append(value * figure.scale)
    failed = sum(sum(m.failures.values()) for m in mine)
    return Cell(tuple(values), failed, any(m.failures for m in theirs.values()))


def notes(bench: Bench) -> list[str]:
    """What a reader must know beside the table: failed calls and what could not be measured."""
    found = []
    for name, reason in bench.absent.items():
        found.append(f"{name}: not measured: {reason}")
    totals: dict[tuple[str, str, str], int] = {}
    for m in bench.measured:
        for reason, count in m.failures.items():
            totals[m.case, m.target, reason] = totals.get((m.case, m.target, reason), 0) + count
    found += [f"{_FAILED} {case}, {target}: {count} × {reason}" for (case, target, reason), count in totals.items()]
    others = [m.figures["others_busy"] for m in bench.measured if "others_busy" in m.figures]
    if others and (most := max(others)) > _QUIET_CORES:
        usual = f"{median(others):.2f} cores at the median, {most:.2f} at most"
        found.append(f"the machine was not quiet: other processes used {usual}; run it again on an idle one")
    return found


def _header(targets: Sequence[str]) -> list[str]:
    return ["case", "figure", "unit", *targets, "goal", "verdict"]


def _line(row: Row, targets: Sequence[str], *, spread: bool = True) -> list[str]:
    cells = [row.cells[name].text(row.figure.digits, spread=spread) for name in targets]
    return [row.case.title, row.figure.title, row.figure.unit, *cells, row.goal, row.verdict]


def table(bench: Bench, *, spread: bool = True) -> Table:
    """For the terminal; without ``spread`` it fits a narrow one."""
    targets = [target.name for target in bench.targets]
    found = Table(
        title="median (least–most over the rounds)" if spread else "median over the rounds", title_justify="left"
    )
    for name in _header(targets):
        found.add_column(name, justify="right" if name in (*targets, "unit", "goal") else "left")
    last = None
    for row in rows(bench.measured, targets):
        if last not in (None, row.case.name):
            found.add_section()
        line = _line(row, targets, spread=spread)
        line[0] = "" if row.case.name == last else line[0]
        style = {"met": "green", "": None}.get(row.verdict, "red")
        line[-1] = f"[{style}]{row.verdict}[/]" if style else ""
        found.add_row(*line)
        last = row.case.name
    return found


def markdown(bench: Bench) -> str:
    """The same for a document, with what it was measured on."""
    targets = [target.name for target in bench.targets]
    header = _header(targets)
    lines = [header, ["---"] * len(header), *(_line(row, targets) for row in rows(bench.measured, targets))]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    about = "; ".join(f"{name} {value}" for name, value in machine(bench.targets).items())
    remarks = "".join(f"\n* {note}" for note in notes(bench))
    return f"Median (least–most over the rounds). {about}.\n\n{text}\n{remarks}\n"


def machine(targets: Sequence[Target]) -> dict[str, str]:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    versions = {target.name: version for target in targets if not target.missing() and (version := target.version())}
    return {
        "CPU": f"{len(models)} × {models[0]}" if models else platform.processor() or "unknown",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **versions,
    }


def as_json(bench: Bench, started_at: str, *, complete: bool) -> bytes:
    """Everything that was measured, with the goals and verdicts."""
    targets = [target.name for target in bench.targets]
    goals = [
        {"case": row.case.name, "figure": row.figure.title, "goal": row.goal, "verdict": row.verdict}
        for row in rows(bench.measured, targets)
        if row.goal
    ]
    content: dict[str, Any] = {
        "started_at": started_at,
        "complete": complete,
        "machine": machine(bench.targets),
        "absent": bench.absent,
        "loads": {case.name: case.load for case in bench.cases},
        "goals": goals,
        "measured": bench.measured,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1)

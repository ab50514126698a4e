"""The calibration table on a screen, as Markdown and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.table import Table

from loadtests.calibrate.table import Result, Verdict

_COLUMNS = ("", "figure", "measured", "simulated", "ratio", "within 10 %", "how it is counted")
_STYLES = {Verdict.MET: "", Verdict.EXPLAINED: "yellow", Verdict.OFF: "bold red"}


def table(results: Sequence[Result]) -> Table:
    """For a terminal."""
    shown = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
    for column in shown.columns[2:5]:
        column.justify = "right"
    for result in results:
        shown.add_row(*_cells(result), style=_STYLES[result.verdict])
    return shown


def notes(results: Sequence[Result]) -> list[str]:
    """The rows that are off, with the reasons there are, and the sum."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.verdict is not Verdict.MET:
            reasons.setdefault(result.row.reason, []).append(f"{result.row.deployment} {result.row.figure}")
    lines = [f"{'; '.join(rows)}: {reason or 'off, without a reason'}" for reason, rows in reasons.items()]
    count = Counter(result.verdict for result in results)
    total = f"{len(results)} rows: {count[Verdict.MET]} within 10 %, {count[Verdict.EXPLAINED]} off with a reason"
    return [*lines, f"{total}, {count[Verdict.OFF]} off."]


def markdown(results: Sequence[Result]) -> str:
    """The same as a page."""
    lines = [
        "# Calibration",
        "",
        "What operators measured, and what the simulator's profiles give for the same load. Written by",
        "`python -m loadtests calibrate`.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|---:|---:|---:|---|---|",
        *(f"| {' | '.join(_cells(result))} |" for result in results),
        "",
        *(f"* {note}" for note in notes(results)),
    ]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Result]) -> bytes:
    """Every row, figures unrounded."""
    rows = [
        {
            "deployment": result.row.deployment,
            "figure": result.row.figure,
            "unit": result.row.unit,
            "measured": [result.row.low, result.row.high],
            "simulated": float(result.simulated),
            "ratio": result.ratio,
            "verdict": result.verdict.name.lower(),
            "counted": result.row.counted,
            "reason": result.row.reason,
        }
        for result in results
    ]
    return msgspec.json.format(msgspec.json.encode({"rows": rows}), indent=1) + b"\n"


def _cells(result: Result) -> tuple[str, ...]:
    row = result.row
    measured = _number(row.low) if row.low == row.high else f"{_number(row.low)}–{_number(row.high)}"
    return (
        row.deployment,
        row.figure,
        f"{measured} {row.unit}".strip(),
        _number(result.simulated),
        f"{result.ratio:.2f}",
        result.verdict.value,
        row.counted,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 or value == int(value) else f"{value:.3g}"

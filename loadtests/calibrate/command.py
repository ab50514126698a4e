"""``python -m loadtests calibrate``: simulate every measured figure, print them side by side, write them down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from loadtests.calibrate import report
from loadtests.calibrate.dense import capacity_rows, decode_rows, prefill_rows
from loadtests.calibrate.mixed import d1_rows, d2_rows
from loadtests.calibrate.table import Result, Row, Verdict

RESULTS = Path(__file__).parents[1] / "results"
_LOG_COLUMNS = 200


def all_rows() -> list[Row]:
    """Every figure there is a measurement of."""
    return [*d1_rows(), *d2_rows(), *decode_rows(), *prefill_rows(), *capacity_rows()]


def calibrate(
    only: Annotated[str | None, typer.Option(help="Deployments with commas between, as D2,D3.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the rows that take seconds.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where to write the results (a .md goes beside it).")] = None,
) -> None:
    """Compare the simulator's profiles with what operators measured; 1 if a row is off without a reason."""
    wanted = None if only is None else {name.strip().upper() for name in only.split(",")}
    rows = all_rows()
    unknown = (wanted or set()) - {row.deployment for row in rows}
    if unknown:
        raise typer.BadParameter(f"no rows for {', '.join(sorted(unknown))}", param_hint="--only")
    rows = [row for row in rows if (wanted is None or row.deployment in wanted) and not (quick and row.slow)]
    console = Console()
    results = [Result(row, row.simulate()) for row in track(rows, "simulating", console=console, transient=True)]
    _show(console, results)
    where = json or (RESULTS / "calibration.json" if wanted is None and not quick else None)
    if where is not None:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(report.as_json(results))
        where.with_suffix(".md").write_text(report.markdown(results))
        console.print(f"written: {where} and {where.with_suffix('.md').name}", highlight=False)
    if any(result.verdict is Verdict.OFF for result in results):
        raise typer.Exit(1)


def _show(console: Console, results: list[Result]) -> None:
    wide = console if console.is_terminal else Console(width=_LOG_COLUMNS)
    wide.print(report.table(results))
    for note in report.notes(results):
        wide.print(note, markup=False, highlight=False)

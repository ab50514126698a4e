"""``python -m loadtests bench``: measure, print the table, write it down."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from loadtests.bench import cases, report, targets
from loadtests.bench.processes import LOAD_CORE, PROXY_CORE, ROOT, cores, raise_file_limit
from loadtests.bench.run import Bench

_SPREAD_COLUMNS, _LOG_COLUMNS = 170, 220
RESULTS = ROOT / "loadtests" / "results"


def bench(
    only_targets: Annotated[str | None, typer.Option("--targets", help="Names with commas between.")] = None,
    only_cases: Annotated[str | None, typer.Option("--case", help="Names with commas between.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each target is measured in each case.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="About a minute, for a look; the spread is wide.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where to write the results (a .md goes beside it).")] = None,
) -> None:
    """Measure the data path beside nginx and a naive route."""
    console = Console()
    if not sys.platform.startswith("linux"):
        raise typer.BadParameter("the benchmark reads /proc: it runs on Linux only")
    try:
        picked = cases.chosen(only_cases)
        run = Bench(
            targets.chosen(only_targets),
            [case.quick() for case in picked] if quick else picked,
            rounds,
            say=lambda text: console.print(text, style="dim", markup=False, highlight=False),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if len(cores()) <= max(PROXY_CORE, LOAD_CORE):
        run.say("one core only: proxy and load share it, delays mean little")
    raise_file_limit()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    complete = _until_interrupted(run)
    _show(console, run)
    if run.measured:
        partial = quick or not complete or only_cases is not None or only_targets is not None
        _write(
            console, run, json or RESULTS / ("bench-partial.json" if partial else "bench.json"), started_at, complete
        )
    if not complete:
        raise typer.Exit(130)
    if not run.measured:
        raise typer.Exit(1)


def _until_interrupted(run: Bench) -> bool:
    """Whether the run came to its end; Ctrl-C and SIGTERM break it off and keep what it has."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        run.run()
    except KeyboardInterrupt:
        run.say("broken off")
        return False
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
    return True


def _show(console: Console, run: Bench) -> None:
    wide = (
        console if console.is_terminal else Console(width=_LOG_COLUMNS)
    )  # a table in a log file need not fit a screen
    wide.print(report.table(run, spread=wide.width >= _SPREAD_COLUMNS))
    for note in report.notes(run):
        wide.print(note, markup=False, highlight=False)


def _write(console: Console, run: Bench, where: Path, started_at: str, complete: bool) -> None:
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_bytes(report.as_json(run, started_at, complete=complete))
    beside = where.with_suffix(".md")
    beside.write_text(report.markdown(run))
    console.print(f"written: {where} and {beside.name}", highlight=False)

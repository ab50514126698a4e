"""``python -m loadtests virtual``, ``sweep`` and ``agree``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console

import gateway
from loadtests.bench.processes import ROOT
from loadtests.report import page, table
from loadtests.report.result import Result, save
from loadtests.runner.fleet import profiles
from loadtests.virtual import agree as agreement
from loadtests.virtual import sweep_page
from loadtests.virtual.run import Plan
from loadtests.virtual.run import run as run_plan
from loadtests.virtual.settings import Change, model_of, tree_of
from loadtests.virtual.sweep import Figures, Load, Point, grid, measured, rows
from loadtests.workloads.mix import SCENARIOS, build, changed

RESULTS = ROOT / "loadtests" / "results"
_COLUMNS = 170
_T = TypeVar("_T")


def virtual(
    scenario: Annotated[str, typer.Argument(help=", ".join(SCENARIOS))],
    fleet: Annotated[str, typer.Option(help="Simulated servers: D6, or D4,D5*2 …")] = "D6",
    seconds: Annotated[float, typer.Option(help="Length of the workload.")] = 3_600.0,
    seed: Annotated[int, typer.Option(help="The same seed is the same result.")] = 1,
    config: Annotated[Path | None, typer.Option(help="Settings file; absent: that of the fleet in config/.")] = None,
    cap: Annotated[int | None, typer.Option(help="Cap of every replica, instead of the settings'.")] = None,
    long_tokens: Annotated[int | None, typer.Option(help="routing.long_tokens, instead of the settings'.")] = None,
    policy: Annotated[str | None, typer.Option(help="routing.policy, instead of the settings'.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A number of the mix: chat_users=80.")] = None,
    engine_queue: Annotated[int | None, typer.Option(help="Servers answer 503 beyond so many waiting.")] = None,
    asks_max: Annotated[int, typer.Option(help="At most so many requests.")] = 50_000,
    drain: Annotated[float, typer.Option(help="Seconds that the last answers may take.")] = 300.0,
    out: Annotated[Path | None, typer.Option(help="Where to write the result (JSON; an .html goes beside it).")] = None,
) -> None:
    """Run a scenario in virtual time: as `run`, without sockets, and always with the same result."""
    change, began_s = Change(cap, long_tokens, policy), time.perf_counter()
    try:
        names = profiles(fleet)
        mix = changed(_mix(scenario), _settings(set_ or ()))
        parameters = {
            "workload": msgspec.to_builtins(mix),
            "fleet": fleet,
            "config": str(config) if config else None,
            "change": change._asdict(),
        }
        plan = Plan(
            build(scenario, mix, seed=seed, seconds=seconds),
            model_of(tree_of(fleet, names, config), names, change),
            names,
            drain_s=drain,
            asks_max=asks_max,
            queued_max=engine_queue,
            parameters=parameters,
        )
    except (ValueError, OSError) as error:
        raise _stop("virtual", error) from None
    result = run_plan(plan)
    took_s = time.perf_counter() - began_s
    _report(result, took_s, out)


def _report(result: Result, took_s: float, out: Path | None) -> None:
    console = _console()
    table.show(console, result)
    console.print(
        f"{took_s:.1f} s for {result.elapsed_s:.0f}: {result.elapsed_s / took_s:.0f} times real time", highlight=False
    )
    if out is not None:
        save(result, out)
        page.write(result, out.with_suffix(".html"))
        console.print(f"written: {out} and {out.with_suffix('.html').name}", highlight=False, markup=False)
    if result.failed:
        console.print("THE RUN DOES NOT COUNT: " + "; ".join(result.failed), style="bold red", markup=False)
        raise typer.Exit(1)
    if not result.complete:
        raise typer.Exit(130)


def sweep(
    scenario: Annotated[str, typer.Option(help=", ".join(SCENARIOS))] = "department_day",
    fleet: Annotated[list[str] | None, typer.Option(help="Fleets, each its own table: D6, or D4,D5*2; repeat.")] = None,
    cap: Annotated[str, typer.Option(help="Caps of every replica.")] = "32,48,64,96",
    long_tokens: Annotated[str, typer.Option(help="Values of routing.long_tokens.")] = "",
    policy: Annotated[str, typer.Option(help="Values of routing.policy.")] = "",
    seeds: Annotated[int, typer.Option(help="Loads of each setting.", min=1, max=100)] = 3,
    seconds: Annotated[float, typer.Option(help="Length of every run.")] = 1_200.0,
    config: Annotated[Path | None, typer.Option(help="Settings file; absent: that of the fleet in config/.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A number of the mix: chat_users=80.")] = None,
    processes: Annotated[int, typer.Option(help="At the same time.", min=1, max=64)] = 1,
    out: Annotated[Path | None, typer.Option(help="Where to write: .json, .md and .html.")] = None,
) -> None:
    """Run a grid of settings in virtual time; show which is best for each fleet, and why."""
    console, began_s = _console(), time.perf_counter()
    try:
        changed(_mix(scenario), settings := _settings(set_ or ()))
        load = Load(scenario, seconds, settings, str(config) if config else None)
        policies = [word.strip() for word in policy.split(",") if word.strip()]
        points = grid(fleet or ["D6"], _numbers("--cap", cap), _numbers("--long-tokens", long_tokens), policies, seeds)
        found, complete = _collected(console, points, load, processes)
    except (ValueError, OSError) as error:
        raise _stop("sweep", error) from None
    if not found:
        raise typer.Exit(130)
    swept = sweep_page.sweep_of(load, seeds, gateway.__version__, rows(found), complete=complete)
    for one in sweep_page.tables(swept):
        console.print(one, highlight=False)
    for line in sweep_page.remarks(swept):
        console.print(line, highlight=False, markup=False)
    took_s = time.perf_counter() - began_s
    console.print(
        f"{len(found)} runs in {took_s:.0f} s: {len(found) * seconds / took_s:.0f} times real time", highlight=False
    )
    base = out or RESULTS / f"sweep-{scenario}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    console.print(
        f"written: {', '.join(str(path) for path in sweep_page.save(swept, base))}", highlight=False, markup=False
    )
    if swept.failed:
        console.print("RUNS THAT DO NOT COUNT: " + "; ".join(swept.failed), style="bold red", markup=False)
        raise typer.Exit(1)
    if not complete:
        raise typer.Exit(130)


def _collected(
    console: Console, points: Sequence[Point], load: Load, processes: int
) -> tuple[list[tuple[Point, Figures]], bool]:
    """What was measured, and whether that is all of it."""
    found: list[tuple[Point, Figures]] = []
    try:
        for one in measured(points, load, processes):
            found.append(one)
            if console.is_terminal or len(found) % 10 == 0:
                console.print(f"{len(found)} of {len(points)} runs", style="dim", highlight=False)
    except KeyboardInterrupt:
        return found, False
    return found, True


def agree(
    runs: Annotated[list[Path], typer.Argument(help="Results (JSON) of `run` with --fleet.")],
    draws: Annotated[
        int, typer.Option(help="Virtual runs of each, with other delays of milliseconds.", min=1, max=20)
    ] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the tables (Markdown; a .json goes beside it).")
    ] = None,
) -> None:
    """Run the load of socket runs again in virtual time, and compare the times of both."""
    try:
        found = agreement.compared(runs, draws)
    except (ValueError, OSError) as error:
        raise _stop("agree", error) from None
    for one in found:
        _console().print(agreement.shown(one), highlight=False)
    if out is not None:
        agreement.save(found, draws, out)
    if not all(one.agrees for one in found):
        raise typer.Exit(1)


def _mix(name: str) -> Any:
    if name not in SCENARIOS:
        raise ValueError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name][1]


def _settings(texts: Sequence[str]) -> dict[str, Any]:
    return dict(_parsed(text, "--set", msgspec.json.decode) for text in texts)


def _parsed(text: str, option: str, read: Callable[[str], _T]) -> tuple[str, _T]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), read(value)
    except msgspec.DecodeError:
        raise ValueError(f"{option} {text}: NAME=VALUE is needed, with a number or [from,to]") from None


def _numbers(option: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and 0 < int(word) <= 10_000_000 for word in words):
        raise ValueError(f"{option} {text}: whole numbers above 0 with commas between are needed")
    return [int(word) for word in words]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_COLUMNS)


def _stop(command: str, error: Exception) -> typer.Exit:
    typer.echo(f"{command}: {error}", err=True)
    return typer.Exit(2)

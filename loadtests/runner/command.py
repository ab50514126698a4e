"""``python -m loadtests run`` and ``convert``."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from rich.console import Console

from loadtests.bench.processes import ROOT, free_port, raise_file_limit
from loadtests.report import page, plots, table
from loadtests.report.result import Result, save
from loadtests.runner import fleet as fleets
from loadtests.runner import settings as files
from loadtests.runner.client import Target
from loadtests.runner.engines import GatewayPage, Replica
from loadtests.runner.live import shown
from loadtests.runner.run import Plan
from loadtests.runner.run import run as run_plan
from loadtests.workloads import convert as converter
from loadtests.workloads.ask import Workload
from loadtests.workloads.mix import SCENARIOS, build, changed
from loadtests.workloads.trace import read, replay

RESULTS = ROOT / "loadtests" / "results"
_TRACE = "trace"
_SIMULATED_SPEED = 10.0
_LOG_COLUMNS = 170


def run(
    scenario: Annotated[str, typer.Argument(help=f"{', '.join(SCENARIOS)}, or {_TRACE} (with --trace).")],
    target: Annotated[str | None, typer.Option(help="URL of what to test: a gateway or one vLLM.")] = None,
    key: Annotated[str | None, typer.Option(help="Key to send (or $LOADTESTS_KEY).", envvar="LOADTESTS_KEY")] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for; absent: that of the settings, or qwen.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file: starts the gateway with it.")] = None,
    fleet: Annotated[str | None, typer.Option(help="Simulated servers to start: D6, or D4,D5*2 …")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="URL of a vLLM behind --target, for its counters.")] = None,
    speed: Annotated[float | None, typer.Option(help="Times real time; default 10 with --fleet, else 1.")] = None,
    seconds: Annotated[float, typer.Option(help="Length of the workload, in its own seconds.")] = 600.0,
    seed: Annotated[int, typer.Option(help="The same seed is the same load.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A number of the mix: chat_users=80.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace to replay (JSONL).")] = None,
    rate: Annotated[float, typer.Option(help="Replay a trace this many times as fast.")] = 1.0,
    asks_max: Annotated[int, typer.Option(help="At most so many requests.")] = 50_000,
    drain: Annotated[float, typer.Option(help="Seconds (the workload's) that the last answers may take.")] = 300.0,
    out: Annotated[Path | None, typer.Option(help="Where to write the result (JSON; an .html goes beside it).")] = None,
) -> None:
    """Put a workload on a target and report what came of it."""
    console = Console()
    speed = speed or (_SIMULATED_SPEED if fleet else 1.0)
    try:
        workload, described = _workload(scenario, set_ or (), trace, rate, seed=seed, seconds=seconds)
        with _scene(console, workload, target, key, model, config, fleet, engine or (), speed) as (where, more):
            parameters = {"workload": described, "fleet": fleet, "config": str(config) if config else None}
            base = Plan(workload, where, speed=speed, drain_s=drain, asks_max=asks_max, parameters=parameters)
            raise_file_limit()
            result = _measure(console, replace(base, **more))
    except (ValueError, OSError, fleets.NotStarted) as error:
        typer.echo(f"run: {error}", err=True)
        raise typer.Exit(2) from None
    _report(console, result, out or RESULTS / f"run-{scenario}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")


def convert(
    source: Annotated[Path, typer.Argument(help="Azure LLM trace (CSV) or Mooncake trace (JSONL).")],
    target: Annotated[Path, typer.Argument(help="Where to write the trace.")],
    lines: Annotated[int, typer.Option(help="At most so many requests.")] = 1_000_000,
) -> None:
    """Turn a public trace into one that `run trace --trace` replays."""
    try:
        count = converter.convert(source, target, lines_max=lines)
    except (ValueError, OSError) as error:
        typer.echo(f"convert: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{count} requests written to {target}")


def _workload(
    name: str, changes: Sequence[str], trace: Path | None, rate: float, *, seed: int, seconds: float
) -> tuple[Workload, Any]:
    """The workload, and what describes it in the result. Raises ``ValueError``, ``OSError``."""
    if (name == _TRACE) != (trace is not None):
        raise ValueError("the scenario `trace` needs --trace FILE, the others take none")
    if trace is not None:
        return replay(read(trace), seed=seed, seconds=seconds, rate=rate), {"trace": trace.name, "rate": rate}
    if name not in SCENARIOS:
        raise ValueError(f"no scenario {name!r}; there are {', '.join((*SCENARIOS, _TRACE))}")
    mix = changed(SCENARIOS[name][1], dict(_setting(text) for text in changes))
    return build(name, mix, seed=seed, seconds=seconds), msgspec.to_builtins(mix)


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise ValueError(f"--set {text}: NAME=VALUE is needed, with a number or [from,to]") from None


_Scene = tuple[Target, dict[str, Any]]


@contextmanager
def _scene(
    console: Console,
    workload: Workload,
    target: str | None,
    key: str | None,
    model: str | None,
    config: Path | None,
    fleet: str | None,
    engines: Sequence[str],
    speed: float,
) -> Iterator[_Scene]:
    """What is to be tested, running, and what more the plan is to know of it."""
    if (target is None) == (config is None and fleet is None):
        raise ValueError("say what to test: either --target URL, or --config FILE, --fleet NAMES or both")
    run_id = f"load-{secrets.token_hex(3)}"
    if target is not None:
        replicas = tuple(Replica(url.split("//")[-1], url.rstrip("/")) for url in engines)
        yield Target(target, model or "qwen", key, run=run_id), {"replicas": replicas}
        return
    profiles = fleets.profiles(fleet) if fleet else ()
    tree = _settings(config, fleet, profiles, model or "qwen")
    asked = model or str(tree["models"][0].get("name"))
    with tempfile.TemporaryDirectory(prefix="loadtests-") as name, ExitStack() as stack:
        folder = Path(name)
        upstream = str(tree["models"][0].get("upstream_name") or asked)
        if profiles:
            console.print(f"starting {len(profiles)} simulated servers ({', '.join(profiles)})", style="dim")
        sims = stack.enter_context(fleets.simulators(profiles, speed=speed, model=upstream, folder=folder))
        keys, admin_key, port = {team: files.new_key() for team in workload.teams}, files.new_key(), free_port()
        urls = [sim.url for sim in sims]
        adapted = files.adapted(tree, port=port, urls=urls, keys=keys, admin_key=admin_key, speed=speed)
        files.write(adapted, folder / "gateway.yaml")
        replicas = files.replicas_of(folder / "gateway.yaml", os.environ)
        console.print("starting the gateway", style="dim")
        front = stack.enter_context(fleets.gateway(folder / "gateway.yaml", port, folder))
        more = {
            "replicas": replicas,
            "page": GatewayPage(front.url, admin_key),
            "processes": {one.name: one.processes() for one in (front, *sims)},
        }
        yield Target(front.url, asked, keys=keys, run=run_id), more


def _settings(config: Path | None, fleet: str | None, profiles: Sequence[str], model: str) -> dict[str, Any]:
    """The given settings; else those that ``config/`` ships for this fleet, if they fit; else made for it."""
    if config is not None:
        return files.read(config)
    shipped = ROOT / "config" / f"{fleet}.yaml"
    if fleet and fleet.isalnum() and shipped.exists():
        tree = files.read(shipped)
        if len(tree["models"][0].get("replicas") or ()) == len(profiles):
            return tree
    return files.generic(profiles, model)


def _measure(console: Console, plan: Plan) -> Result:
    """Run ``plan``; the first Ctrl-C or SIGTERM ends it and keeps what there is."""

    async def work() -> Result:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        with shown(console) as watch:
            return await run_plan(plan, stop=stop, watch=watch)

    return uvloop.run(work())


def _report(console: Console, result: Result, out: Path) -> None:
    wide = console if console.is_terminal else Console(width=_LOG_COLUMNS)
    table.show(wide, result)
    save(result, out)
    page.write(result, out.with_suffix(".html"))
    wide.print(f"written: {out} and {out.with_suffix('.html').name}", highlight=False, markup=False)
    if not plots.AVAILABLE:
        wide.print(plots.MISSING, highlight=False, markup=False)
    if result.failed:
        wide.print("THE RUN DOES NOT COUNT: " + "; ".join(result.failed), style="bold red", markup=False)
        raise typer.Exit(1)
    if not result.complete:
        raise typer.Exit(130)
    if not any(group.ok for group in result.groups.values()):
        wide.print("no call was answered", style="bold red", markup=False)
        raise typer.Exit(1)

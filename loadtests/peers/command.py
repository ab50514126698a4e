"""``python -m loadtests peers``: other gateways beside ours, one table."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

from loadtests.bench.command import RESULTS
from loadtests.bench.processes import raise_file_limit
from loadtests.peers import report
from loadtests.peers.fleet import Server, parse
from loadtests.peers.litellm import LiteLLM
from loadtests.peers.nginx import LeastConnections
from loadtests.peers.ours import Ours
from loadtests.peers.peer import Peer
from loadtests.peers.production_stack import ProductionStack
from loadtests.peers.race import MODEL, Course, Race
from loadtests.peers.routers import SglangCacheAware, VllmCacheAware, VllmRoundRobin
from loadtests.report.result import Result
from loadtests.runner.live import shown
from loadtests.runner.run import Plan, machine
from loadtests.runner.run import run as run_plan
from loadtests.workloads.ask import Workload
from loadtests.workloads.mix import SCENARIOS, scenario

_BREAKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOG_COLUMNS = 220


def all_peers(fleet: str, config: Path | None, checkout: Path | None) -> tuple[Peer, ...]:
    """Everyone there is, in the table's order."""
    routers = (VllmRoundRobin(), VllmCacheAware(), SglangCacheAware())
    return (Ours(fleet, config), LeastConnections(), *routers, ProductionStack(checkout), LiteLLM())


def chosen(peers: Sequence[Peer], names: str | None) -> list[Peer]:
    """The peers called ``names`` (commas between), all without. Raises ``ValueError`` naming what is unknown."""
    if names is None:
        return list(peers)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [peer.name for peer in peers]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no such peer: {', '.join(unknown)}; there are {', '.join(known)}")
    return [peer for peer in peers if peer.name in wanted]


def peers(
    only: Annotated[str | None, typer.Option(help="Names with commas between.")] = None,
    scenario_: Annotated[str, typer.Option("--scenario", help=", ".join(SCENARIOS))] = "department_day",
    fleet: Annotated[str, typer.Option(help="D6, or D4,D5*2; D5@0.5 is a D5 of half the pace.")] = "D6",
    config: Annotated[Path | None, typer.Option(help="Settings of ours; absent: those that config/ ships.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="So many, from 1 on.")] = 3,
    speed: Annotated[float, typer.Option(min=0.1, max=100, help="Times real time, at most what a peer stands.")] = 10.0,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Length of the workload, its own seconds.")] = 600.0,
    drain: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds that the last answers may take.")] = 300.0,
    production_stack: Annotated[Path | None, typer.Option(help="A checkout of vLLM's production stack.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the peers and do no more.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write the results (JSON; a .md goes beside it).")] = None,
) -> None:
    """Measure other gateways beside ours over the same simulated fleet."""
    console = Console()
    if not sys.platform.startswith("linux"):
        raise typer.BadParameter("the processes' CPU time is read from /proc: it runs on Linux only")
    try:
        servers = parse(fleet)
        picked = chosen(all_peers(fleet, config, production_stack), only)
        scenario(scenario_, seed=1, seconds=seconds)  # complains now rather than after the installation
        caps = Ours(fleet, config).caps([server.profile for server in servers], MODEL)
        if len(caps) != len(servers):
            raise ValueError(f"the settings have {len(caps)} replicas, the fleet {len(servers)} servers")
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    build = _Builder(scenario_, seconds)
    course = Course(servers, caps, build, range(1, seeds + 1), speed, drain)
    measure = _Measured(console)
    race = Race(picked, course, measure, lambda text: console.print(text, style="dim", markup=False, highlight=False))
    raise_file_limit()
    about = {
        "scenario": scenario_,
        "seconds": seconds,
        "fleet": _described(servers, caps),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine(),
    }
    name = fleet.lower().replace(",", "+").replace("*", "x").replace("@", "-")
    complete = False
    try:
        complete = _until_interrupted(race, install_only=install)
    finally:  # whatever came in between: what was measured is kept
        if not install:
            about |= {peer.name: peer.version() for peer in picked if not peer.missing() and peer.version()}
            _write(console, race, about, out or RESULTS / f"peers-{name}.json", complete=complete)
    if install:
        raise typer.Exit(1 if race.absent or not complete else 0)
    if not complete:
        raise typer.Exit(130)
    if not race.trials or any(trial.broken for trial in race.trials):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Builder:
    """The workload of a seed; a workload is good for one run only."""

    name: str
    seconds: float

    def __call__(self, seed: int) -> Workload:
        return scenario(self.name, seed=seed, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class _Measured:
    """A plan's result, with progress on ``console``; a signal ends it and keeps what there is."""

    console: Console

    def __call__(self, plan: Plan) -> Result:
        before = {number: signal.getsignal(number) for number in _BREAKS}
        try:
            return uvloop.run(self._work(plan))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _work(self, plan: Plan) -> Result:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in _BREAKS:
            loop.add_signal_handler(number, stop.set)
        with shown(self.console) as watch:
            return await run_plan(plan, stop=stop, watch=watch)


def _until_interrupted(race: Race, *, install_only: bool) -> bool:
    """Whether the race came to its end; signals break it off and it keeps what it has."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _BREAKS}
    try:
        race.install()
        if not install_only:
            race.run()
    except KeyboardInterrupt:
        race.say("broken off")
        return False
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
    return True


def _described(servers: Sequence[Server], caps: Sequence[int | None]) -> str:
    words = []
    for server, cap in zip(servers, caps, strict=True):
        pace = f" at {server.pace:g} of its pace" if server.pace != 1 else ""
        words.append(f"{server.profile}{pace} (cap {cap})")
    return ", ".join(words)


def _write(console: Console, race: Race, about: dict[str, Any], where: Path, *, complete: bool) -> None:
    wide = console if console.is_terminal else Console(width=_LOG_COLUMNS)
    wide.print(report.table(race))
    for note in report.notes(race):
        wide.print(note, markup=False, highlight=False)
    if race.trials or race.absent:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(report.as_json(race, about, complete=complete))
        beside = where.with_suffix(".md")
        beside.write_text(report.markdown(race, about))
        console.print(f"written: {where} and {beside.name}", highlight=False, markup=False)

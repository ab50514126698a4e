"""Every peer under every seed, in turn, each over servers of its own that have seen nothing yet."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from loadtests.bench.measure import ProcessGroup
from loadtests.bench.processes import free_port, spawned
from loadtests.bench.target import Site
from loadtests.peers.environment import NotInstalled
from loadtests.peers.figures import figures
from loadtests.peers.fleet import Server, serving
from loadtests.peers.peer import Peer
from loadtests.report.result import UNFINISHED, Result
from loadtests.runner.client import Target
from loadtests.runner.engines import Replica
from loadtests.runner.fleet import NotStarted, Running, answers
from loadtests.runner.run import Plan
from loadtests.workloads.ask import Workload

MODEL = "qwen"
_ANY_CORE = 1 << 20
_READY_S = 90.0
_LOG_LINES = 8
_CAPS = "caps"  # the check that only a peer that keeps caps can fail


class Trial(msgspec.Struct):
    """One peer under one seed. ``broken`` says why the counts are not to be trusted, ``limits`` who was at his end."""

    peer: str
    seed: int
    speed: float
    complete: bool
    figures: dict[str, dict[str, float]]
    failures: dict[str, dict[str, int]]
    broken: list[str] = []
    limits: list[str] = []
    others_cores: float | None = None  # used by processes that are no part of the run


@dataclass(frozen=True, slots=True)
class Course:
    """What all are put through. ``caps`` are the replicas', in the fleet's order."""

    servers: tuple[Server, ...]
    caps: Sequence[int | None]
    build: Callable[[int], Workload]  # of a seed
    seeds: Sequence[int]
    speed: float
    drain_s: float
    asks_max: int = 50_000

    def names(self) -> tuple[str, ...]:
        """The replicas' names."""
        return tuple(f"{server.profile.lower()}-{number}" for number, server in enumerate(self.servers))


@dataclass(slots=True)
class Race:
    """A run of all. ``trials`` and ``absent`` fill as it goes, so that one that is broken off keeps what it has."""

    peers: Sequence[Peer]
    course: Course
    measure: Callable[[Plan], Result]
    say: Callable[[str], None] = lambda _: None
    trials: list[Trial] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # peer -> why it was not (always) measured

    def install(self) -> None:
        """Install whoever is not there yet; who cannot be is left out."""
        for peer in self.peers:
            if peer.missing():
                self.say(f"{peer.name}: installing")
            try:
                peer.install()
            except NotInstalled as error:
                self._leave_out(peer, f"not installed: {error}")

    def run(self) -> None:
        """Measure all. Every process that it starts has ended when it returns or raises."""
        for turn, seed in enumerate(self.course.seeds):
            first = turn % max(1, len(self.peers))  # nobody is always the first or the last
            for peer in (*self.peers[first:], *self.peers[:first]):
                if peer.name in self.absent:
                    continue
                self.say(f"seed {seed}: {peer.name}, speed {self._speed(peer):g}")
                try:
                    trial = self._trial(peer, seed)
                except NotStarted as error:
                    self._leave_out(peer, str(error))
                    continue
                self.trials.append(trial)
                if not trial.complete:
                    raise KeyboardInterrupt

    def _leave_out(self, peer: Peer, reason: str) -> None:
        self.absent[peer.name] = reason
        self.say(f"{peer.name}: not measured: {reason}")

    def _speed(self, peer: Peer) -> float:
        return min(self.course.speed, peer.speed_max)

    def _trial(self, peer: Peer, seed: int) -> Trial:
        course, speed, workload = self.course, self._speed(peer), self.course.build(seed)
        with tempfile.TemporaryDirectory(prefix="peers-") as name:
            folder = Path(name)
            with serving(course.servers, speed=speed, model=MODEL, folder=folder) as sims:
                site = Site(
                    free_port(),
                    tuple(sim.url for sim in sims),
                    folder,
                    model=MODEL,
                    contexts=tuple(server.context for server in course.servers),
                    profiles=tuple(server.profile for server in course.servers),
                    teams=workload.teams,
                    speed=speed,
                )
                names = course.names()
                replicas = zip(names, sims, course.caps, strict=True)
                with started(peer, site) as front:
                    plan = Plan(
                        workload,
                        Target(front.url, MODEL, keys=peer.keys(workload.teams), run=f"{peer.name}-{seed}"),
                        tuple(Replica(name, sim.url, cap) for name, sim, cap in replicas),
                        speed=speed,
                        drain_s=course.drain_s,
                        asks_max=course.asks_max,
                        page=peer.page(front.url),
                        processes=_processes(front, names, sims),
                    )
                    return trial(peer, seed, self.measure(plan))


def _processes(front: Running, names: Sequence[str], sims: Sequence[Running]) -> Mapping[str, ProcessGroup]:
    return {front.name: front.processes(), **{name: sim.processes() for name, sim in zip(names, sims, strict=True)}}


def trial(peer: Peer, seed: int, result: Result) -> Trial:
    """What is kept of a result."""
    broken = [
        f"{check.name}: {check.said}"
        for check in result.checks
        if check.passed is False and (check.name != _CAPS or peer.keeps_caps)
    ]
    effort = result.effort
    return Trial(
        peer.name,
        seed,
        result.speed,
        result.complete,
        figures(result, peer.name),
        {name: group.failures for name, group in result.groups.items() if group.failures},
        broken,
        list(effort.limits) if effort else [],
        max(0.0, effort.machine_cores - sum(effort.cores.values())) if effort else None,
    )


def failures(trial: Trial, kind: str) -> dict[str, int]:
    """The failed calls of ``kind`` by how they failed; those that the end of the run cut did not fail."""
    return {outcome: count for outcome, count in trial.failures.get(kind, {}).items() if outcome != UNFINISHED}


@contextmanager
def started(peer: Peer, site: Site) -> Iterator[Running]:
    """``peer`` in front of the site's replicas, once it answers. Raises ``NotStarted``."""
    command: Any = peer.command(site)
    log = site.folder / "peer.log"
    with log.open("wb") as output, spawned(command, core=_ANY_CORE, stdout=output, stderr=output) as process:
        url = f"http://127.0.0.1:{site.port}"
        _await_ready(peer, url, process, log)
        yield Running(peer.name, url, process.pid)


def _await_ready(peer: Peer, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not answers(url + peer.ready_path):
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline_s:
            why = f"ended with {ended}" if ended is not None else f"not ready in {_READY_S:.0f} s"
            last = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise NotStarted(f"{why}; it printed:\n{last}".rstrip())
        time.sleep(0.1)

"""One run: the workload driven against the target, everything measured around it, and the result put together."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

import gateway
from loadtests.bench.measure import ProcessGroup
from loadtests.report import summary
from loadtests.report.result import Effort, ReplicaShare, Result, Sample
from loadtests.runner.client import Client, Target
from loadtests.runner.drive import Drive
from loadtests.runner.effort import Meter, resolution_s
from loadtests.runner.engines import Engines, GatewayPage, Reading, Replica, sampled, shares
from loadtests.runner.verify import verify
from loadtests.workloads.ask import Workload

_WATCH_S = 1.0
_ENGINES_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run against what. ``drain_s`` (workload seconds) is how long the last answers may take after the end.

    ``processes`` are those whose CPU time is to be measured; ``sample_s`` is in real seconds.
    """

    workload: Workload
    target: Target
    replicas: tuple[Replica, ...] = ()
    speed: float = 1.0
    drain_s: float = 300.0
    asks_max: int = 50_000
    sample_s: float = 0.5
    page: GatewayPage | None = None
    processes: Mapping[str, ProcessGroup] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what is no bound."""
        if not 0 < self.speed <= 1_000 or not 0 <= self.drain_s <= 86_400:
            raise ValueError("speed is above 0 and at most 1000, drain_s 0 to 86400")
        if not 1 <= self.asks_max <= 1_000_000 or not 0.05 <= self.sample_s <= 60:
            raise ValueError("asks_max is 1 to 1000000, sample_s 0.05 to 60")


@dataclass(frozen=True, slots=True)
class Scene:
    """A run as it goes, for whoever shows it."""

    plan: Plan
    drive: Drive
    samples: Sequence[Sample]


Watch = Callable[[Scene], None]


async def run(plan: Plan, *, stop: asyncio.Event | None = None, watch: Watch = lambda _: None) -> Result:
    """Run ``plan``. When ``stop`` is set, calls under way are cut and what was measured is returned as incomplete."""
    stop = stop or asyncio.Event()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    timeout = httpx.Timeout(_ENGINES_TIMEOUT_S)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False) as http:
        engines = Engines(plan.replicas, plan.page, http)
        before = await engines.read()
        client = Client(plan.target)
        drive = Drive(plan.workload, client, speed=plan.speed, asks_max=plan.asks_max)
        meter, samples = Meter(plan.processes), list[Sample]()
        meter.start()
        drive.start()
        async with asyncio.TaskGroup() as around:
            side = [
                around.create_task(sampled(engines, samples, lambda: drive.now_s, plan.sample_s)),
                around.create_task(meter.watch()),
                around.create_task(_show(Scene(plan, drive, samples), watch)),
            ]
            complete = await _until_over(drive, plan.drain_s, stop)
            elapsed_s = drive.now_s
            effort = meter.read(drive.calls, plan.speed)
            for task in side:
                task.cancel()
        watch(Scene(plan, drive, samples))
        client.close()
        after = await engines.settled()
    return _result(plan, drive, samples, before, after, started_at, elapsed_s, complete=complete, effort=effort)


async def _show(scene: Scene, watch: Watch) -> None:
    while True:
        watch(scene)
        await asyncio.sleep(_WATCH_S)


async def _until_over(drive: Drive, drain_s: float, stop: asyncio.Event) -> bool:
    """Whether the run came to its end rather than to ``stop``."""
    work = asyncio.create_task(drive.finish(drain_s))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await drive.cut()
        await work
    finally:
        stopped.cancel()
        work.cancel()
    return not stop.is_set()


def _result(
    plan: Plan,
    drive: Drive,
    samples: list[Sample],
    before: Mapping[str, Reading],
    after: Mapping[str, Reading],
    started_at: str,
    elapsed_s: float,
    *,
    complete: bool,
    effort: Effort,
) -> Result:
    calls, workload = drive.calls, plan.workload
    targets = summary.Targets(resolution_s=resolution_s(plan.speed))
    replicas = shares(plan.replicas, before, after, samples, summary.replica_calls(calls))
    notes = [*plan.notes, *(f"{name}: not read: {one.why_not}" for name, one in replicas.items() if not one.reached)]
    if drive.cut_short:
        notes.append(f"stopped asking after {plan.asks_max} requests (--asks-max)")
    return Result(
        scenario=workload.name,
        target=plan.target.url,
        seed=workload.seed,
        seconds=workload.seconds,
        speed=plan.speed,
        started_at=started_at,
        complete=complete,
        elapsed_s=elapsed_s,
        parameters=dict(plan.parameters),
        machine=machine(),
        groups=summary.groups(calls, drive.gaps, elapsed_s, targets),
        fairness=summary.fairness(calls, workload.teams),
        replicas=replicas,
        prefix_hit_rate=hit_rate(replicas),
        checks=verify(calls, replicas),
        effort=effort,
        notes=notes,
        calls=calls,
        samples=samples,
    )


def hit_rate(replicas: Mapping[str, ReplicaShare]) -> float | None:
    """Prefix cache hits of all replicas together; ``None`` unless every one was read and anything was looked up."""
    if not all(share.reached for share in replicas.values()):
        return None
    queries = sum(share.prefix_queries or 0.0 for share in replicas.values())
    return sum(share.prefix_hits or 0.0 for share in replicas.values()) / queries if queries else None


def machine() -> dict[str, str]:
    """What the run was made on."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "CPU": f"{len(models)} × {models[0]}" if models else platform.processor() or "unknown",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "gateway": gateway.__version__,
    }

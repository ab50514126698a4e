"""One run in virtual time: the workload, the gateway and its servers on one loop, and the result of it."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gateway
from gateway.domain import ModelSpec, ServingSpec
from gateway.proxy.datapath import SWEEP_S
from gateway.sim.profiles import PROFILES
from gateway.testing.loop import VirtualLoop
from loadtests.report import summary
from loadtests.report.result import Result, Sample
from loadtests.runner.engines import Reading, Replica, shares
from loadtests.runner.run import hit_rate
from loadtests.runner.verify import verify
from loadtests.virtual.drive import Drive
from loadtests.virtual.server import Server
from loadtests.virtual.trip import Gateway
from loadtests.workloads.ask import Workload
from loadtests.workloads.prompt import derive

_COLLECT_EVERY = 100_000  # objects
_SWEEPS_A_PROBE = 8  # 2 s, as the gateway's default


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``profiles`` are those of the model's replicas, in their order; seconds are virtual.

    Asks are sent up to ``jitter_s`` late, at random by ``draw``: which of many equally true runs this is.
    ``keepalive_s`` is the gateway's: after that a waiting stream has its head, and hears of errors in its body.
    """

    workload: Workload
    model: ModelSpec
    profiles: tuple[str, ...]
    drain_s: float = 300.0
    asks_max: int = 50_000
    sample_s: float = 5.0
    queued_max: int | None = None
    jitter_s: float = 0.0
    draw: int = 0
    keepalive_s: float = ServingSpec().keepalive_s
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what does not fit together or is no bound."""
        if len(self.profiles) != len(self.model.replicas):
            raise ValueError(f"the settings have {len(self.model.replicas)} replicas, the fleet {len(self.profiles)}")
        if not 0 <= self.drain_s <= 86_400 or not SWEEP_S <= self.sample_s <= 3_600:
            raise ValueError(f"drain_s is 0 to 86400, sample_s {SWEEP_S} to 3600")
        if not 0 <= self.jitter_s <= 60 or self.keepalive_s < 0:
            raise ValueError("jitter_s is 0 to 60, keepalive_s 0 or more")
        if not 1 <= self.asks_max <= 1_000_000 or (self.queued_max is not None and self.queued_max < 0):
            raise ValueError("asks_max is 1 to 1000000, queued_max 0 or more")


def run(plan: Plan) -> Result:
    """Run ``plan``; equal plans give equal results. Ctrl-C (in a main thread) ends it as incomplete.

    Raises ``RuntimeError`` if something failed that nobody would have noticed.
    """
    with _seldom_collected(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(_measure(plan))
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        if loop.faults:
            raise RuntimeError(f"a callback failed: {loop.faults[0].get('message')}")
        return result


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for reference cycles seldom: hardly any are made, and looking takes a quarter of a run."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _measure(plan: Plan) -> Result:
    loop = asyncio.get_running_loop()
    servers = {
        spec.name: Server(PROFILES[name], loop, queued_max=plan.queued_max)
        for spec, name in zip(plan.model.replicas, plan.profiles, strict=True)
    }
    front = Gateway(plan.model, servers, loop, seed=plan.workload.seed + plan.draw)
    before = {name: server.reading() for name, server in servers.items()}
    drive = Drive(
        plan.workload,
        front,
        asks_max=plan.asks_max,
        keepalive_s=plan.keepalive_s,
        late_s=_lateness(plan),
    )
    samples: list[Sample] = []
    side = loop.create_task(_look(front, drive, samples, plan.sample_s))
    complete = True
    try:
        await drive.run(plan.drain_s)
    except asyncio.CancelledError:
        complete = False
    finally:
        side.cancel()
    await asyncio.wait((side,))
    if not side.cancelled():
        side.result()  # it never ends by itself: this raises
    return _result(plan, drive, samples, before, servers, complete=complete)


def _lateness(plan: Plan) -> Callable[[], float]:
    """Seconds by which the next ask is late."""
    if not plan.jitter_s:
        return lambda: 0.0
    rng = random.Random(derive(plan.workload.seed, "late", plan.draw))
    return lambda: rng.random() * plan.jitter_s


async def _look(front: Gateway, drive: Drive, samples: list[Sample], sample_s: float) -> None:
    """The gateway's own sweep and probes, and a sample every ``sample_s``."""
    sweeps, sampled_s = 0, 0.0
    while True:
        if drive.now_s >= sampled_s:
            samples.append(_sample(front, drive.now_s))
            sampled_s += sample_s
        await asyncio.sleep(SWEEP_S)
        sweeps += 1
        if sweeps % _SWEEPS_A_PROBE == 0:
            front.probe()
        front.model.sweep(asyncio.get_running_loop().time())


def _sample(front: Gateway, at_s: float) -> Sample:
    servers = front.servers.items()
    return Sample(
        at_s=at_s,
        inflight={name: server.inflight for name, server in servers},
        running={name: server.machine.running for name, server in servers},
        waiting={name: server.machine.queued for name, server in servers},
        queued=front.model.gate.depth,
    )


def _result(
    plan: Plan,
    drive: Drive,
    samples: list[Sample],
    before: Mapping[str, Reading],
    servers: Mapping[str, Server],
    *,
    complete: bool,
) -> Result:
    calls, workload, elapsed_s = drive.calls, plan.workload, drive.now_s
    known = [Replica(spec.name, "", spec.cap_max) for spec in plan.model.replicas]
    after = {name: server.reading() for name, server in servers.items()}
    replicas = shares(known, before, after, samples, summary.replica_calls(calls))
    cut = [f"stopped asking after {plan.asks_max} requests (--asks-max)"] if drive.cut_short else []
    return Result(
        scenario=workload.name,
        target="virtual time",
        seed=workload.seed,
        seconds=workload.seconds,
        speed=0.0,
        started_at="virtual time",
        complete=complete,
        elapsed_s=elapsed_s,
        parameters=dict(plan.parameters),
        machine={"gateway": gateway.__version__},
        groups=summary.groups(calls, drive.gaps, elapsed_s),
        fairness=summary.fairness(calls, workload.teams),
        replicas=replicas,
        prefix_hit_rate=hit_rate(replicas),
        checks=verify(calls, replicas),
        effort=None,
        notes=cut,
        calls=calls,
        samples=samples,
    )

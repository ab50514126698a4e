"""How busy client, simulators and target were: a run whose client was the limit measures its client."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadtests.bench.measure import ProcessGroup, machine_busy_s
from loadtests.bench.processes import cores
from loadtests.report.result import Call, Effort
from loadtests.report.statistics import distribution

CLIENT = "client"
_BUSY = 0.85  # of a core: each of these processes has one thread that matters
_MACHINE_BUSY = 0.95
_LAG_MAX_S = 0.25  # workload seconds by which a late client may shift a measured time
_TICK_S = 0.02
_TIMER_S = 0.001  # uvloop's timers, in the simulators as well


@dataclass(slots=True)
class Meter:
    """CPU time from ``start`` to ``read``, and the lateness of the client's own loop meanwhile."""

    groups: Mapping[str, ProcessGroup]
    lags_s: list[float] = field(default_factory=list)
    _began_s: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)
    _machine: float = 0.0

    def start(self) -> None:
        """Begin."""
        self._began_s, self._before, self._machine = time.monotonic(), self._cpu_s(), machine_busy_s()

    async def watch(self) -> None:
        """Note how late timers are, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.lags_s.append(max(0.0, loop.time() - due_s))

    def read(self, calls: Sequence[Call], speed: float) -> Effort:
        """What was used since ``start``."""
        span_s = max(1e-9, time.monotonic() - self._began_s)
        used = {name: (spent - self._before[name]) / span_s for name, spent in self._cpu_s().items()}
        machine = (machine_busy_s() - self._machine) / span_s
        lag, late = distribution(self.lags_s), distribution(call.sent_s - call.due_s for call in calls)
        there = len(cores()) or os.cpu_count() or 1
        effort = Effort(
            cores={name: round(share, 3) for name, share in used.items()},
            machine_cores=round(machine, 3),
            cores_there=there,
            resolution_s=resolution_s(speed),
            loop_lag_p99_s=lag.p99 * speed if lag else None,
            send_lag_p99_s=late.p99 if late else None,
        )
        effort.limits = tuple(_limits(effort))
        return effort

    def _cpu_s(self) -> dict[str, float]:
        spent = {name: group.cpu_s() for name, group in self.groups.items()}
        return {CLIENT: time.process_time(), **spent}


def resolution_s(speed: float) -> float:
    """How finely times are resolved at ``speed``, in workload seconds: a timer's tick at either end."""
    return 2 * _TIMER_S * speed


def _limits(effort: Effort) -> list[str]:
    """Who was at its limit, in words."""
    found = [f"{name} used {share:.2f} of a core" for name, share in effort.cores.items() if share > _BUSY]
    if effort.machine_cores > _MACHINE_BUSY * effort.cores_there:
        found.append(f"the machine was busy ({effort.machine_cores:.2f} of {effort.cores_there} cores)")
    lag_s = effort.loop_lag_p99_s
    if lag_s is not None and lag_s > _LAG_MAX_S:
        found.append(f"the client was late by {lag_s:.2f} s of the workload's time (p99)")
    return found

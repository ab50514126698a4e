"""CPU time and memory of a group of processes, from ``/proc`` (Linux), and the arithmetic on samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PGRP, _UTIME, _STIME = 2, 11, 12  # places after the ")" of /proc/<pid>/stat, see proc(5)


def _stat(pid: int) -> list[str] | None:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def group_pids(pgid: int) -> list[int]:
    """Processes of group ``pgid`` that are alive now (zombies are not)."""
    found = []
    for entry in _PROC.iterdir():
        stat = _stat(int(entry.name)) if entry.name.isdigit() else None
        if stat and int(stat[_PGRP]) == pgid and stat[0] not in "ZX":
            found.append(int(entry.name))
    return found


class ProcessGroup:
    """A proxy with all its workers: whatever shares the process group that it was started in."""

    def __init__(self, pgid: int) -> None:
        self.pids = group_pids(pgid)

    def cpu_s(self) -> float:
        """User and system time spent so far, in seconds; the kernel rounds to a tick (10 ms) a process."""
        stats = [stat for pid in self.pids if (stat := _stat(pid))]
        return sum(int(stat[_UTIME]) + int(stat[_STIME]) for stat in stats) / _TICKS_PER_S

    def rss_bytes(self) -> int:
        """Resident memory. Pages that processes share count once for each: only differences mean something."""
        return sum(self._rss_bytes(pid) for pid in self.pids)

    @staticmethod
    def _rss_bytes(pid: int) -> int:
        # smaps_rollup is exact; the counters in stat and statm lag by up to a batch of pages per thread.
        try:
            lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:")), 0)


def machine_busy_s() -> float:
    """CPU time that all processes, interrupts and the hypervisor took of this machine so far, in seconds."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(ticks) for ticks in (_PROC / "stat").read_text().partition("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0–1) of the samples lie; ``ordered`` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

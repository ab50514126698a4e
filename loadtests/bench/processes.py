"""Processes that end with their context, and with the benchmark itself should it be killed."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from loadtests.bench.measure import group_pids

ROOT = Path(__file__).resolve().parents[2]
PROXY_CORE, LOAD_CORE = 0, 1  # the proxy alone on one, stand-in and client on the other
_END_S = 3.0
_PR_SET_PDEATHSIG = 1
_BREAKS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_LIBC = ctypes.CDLL(None)


def cores() -> list[int]:
    """Cores this process may use; an empty list where the system cannot pin (no Linux)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def raise_file_limit() -> int:
    """Lift the soft limit on open files (children inherit it) as far as allowed and return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _before_exec(core: int, mask: set[signal.Signals]) -> Callable[[], None]:
    allowed, parent = cores(), os.getpid()

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # even a killed benchmark leaves nothing behind
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        if len(allowed) > core:
            os.sched_setaffinity(0, {allowed[core]})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


@contextmanager
def spawned(
    command: Sequence[str],
    *,
    core: int,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """``command`` as the leader of a process group of its own, on ``core``; the whole group is ended at the exit.

    Signals wait while it starts and ends: one that came in between would lose sight of the process.
    """
    mask = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _BREAKS)}
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=_before_exec(core, mask),  # noqa: PLW1509 (one thread when it forks)
        )
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield process
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _BREAKS)
            end_group(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End all of the group that ``process`` leads: politely, and after 3 s by force."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    _signal(process.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _END_S
    while (process.poll() is None or group_pids(process.pid)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(pgid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pgid, number)

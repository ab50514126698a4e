"""Simulators and the gateway as processes on this machine; all end with their context."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway.sim.profiles import PROFILES
from loadtests.bench.measure import ProcessGroup
from loadtests.bench.processes import free_port, spawned

FLEETS = {"D6": ("D4", "D5", "D5")}
REPLICAS_MAX = 32
_ANY_CORE = 1 << 20
_READY_S = 30.0
_LOG_LINES = 8


class NotStarted(Exception):
    """A process did not start; the message ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that answers at ``url``."""

    name: str
    url: str
    pgid: int

    def processes(self) -> ProcessGroup:
        """Its whole group, for CPU time."""
        return ProcessGroup(self.pgid)


def profiles(fleet: str) -> tuple[str, ...]:
    """The profiles of a fleet: ``D6`` or names with commas between, ``D5*4`` for four. Raises ``ValueError``."""
    names: list[str] = []
    for word in fleet.upper().split(","):
        name, _, times = word.strip().partition("*")
        if times and not (times.isdecimal() and 1 <= int(times) <= REPLICAS_MAX):
            raise ValueError(f"{word}: a number from 1 to {REPLICAS_MAX} belongs after the *")
        names += FLEETS.get(name, (name,)) * int(times or 1)
    if unknown := [name for name in names if name not in PROFILES]:
        raise ValueError(f"no profile {', '.join(unknown)}; there are {', '.join((*PROFILES, *FLEETS))}")
    if len(names) > REPLICAS_MAX:
        raise ValueError(f"a fleet has at most {REPLICAS_MAX} servers here")
    return tuple(names)


@contextmanager
def simulators(names: Sequence[str], *, speed: float, model: str, folder: Path) -> Iterator[list[Running]]:
    """A simulated vLLM for each profile. Raises ``NotStarted``."""
    with ExitStack() as stack:
        found = []
        for number, name in enumerate(names):
            port = free_port()
            command = ["sim", "--profile", name, "--port", str(port), "--speed", f"{speed:g}", "--model", model]
            label = f"{name.lower()}-{number}"
            found.append((label, port, stack.enter_context(_started(command, folder / f"{label}.log"))))
        yield [_ready(label, port, "/health", process, folder) for label, port, process in found]


@contextmanager
def gateway(settings: Path, port: int, folder: Path) -> Iterator[Running]:
    """The gateway with a settings file that says ``port``; ready once it sees a replica. Raises ``NotStarted``."""
    with _started(["serve", "--config", str(settings)], folder / "gateway.log") as process:
        yield _ready("gateway", port, "/readyz", process, folder)


@contextmanager
def _started(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "gateway", *arguments]
    with (
        log.open("wb") as output,
        spawned(command, core=_ANY_CORE, stdout=output, stderr=output) as process,
    ):
        yield process


def _ready(name: str, port: int, path: str, process: subprocess.Popen[bytes], folder: Path) -> Running:
    url = f"http://127.0.0.1:{port}"
    deadline_s = time.monotonic() + _READY_S
    while not answers(url + path):
        if process.poll() is not None or time.monotonic() > deadline_s:
            last = "\n".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise NotStarted(f"{name} did not start\n{last}".rstrip())
        time.sleep(0.05)
    return Running(name, url, process.pid)


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether ``url`` (http) answers a GET with 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

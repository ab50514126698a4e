"""The rounds: for each case each target in turn, again and again, so that the machine's moods hit all alike."""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadtests.bench.cases import Case
from loadtests.bench.jobs import Job, Result
from loadtests.bench.processes import LOAD_CORE, PROXY_CORE, free_port, spawned
from loadtests.bench.target import Site, Target
from loadtests.bench.wire import CHAT_PATH, Wanted, chat_body

_REPLICAS = 3
_LOG_TAIL_LINES = 8
_JOB_SLACK_S = 45.0  # on top of warm-up and window: opening, grace, waiting for aborts


class Measurement(msgspec.Struct, frozen=True):
    """What one target showed in one round of one case."""

    case: str
    target: str
    round: int
    figures: dict[str, float]
    failures: dict[str, int]


class TargetFailed(Exception):
    """A target did not start; the message ends with the last lines it printed."""


@dataclass(slots=True)
class Bench:
    """A run. ``measured`` and ``absent`` fill as it goes, so that a run that is broken off keeps what it has."""

    targets: Sequence[Target]
    cases: Sequence[Case]
    rounds: int
    say: Callable[[str], None] = lambda _: None
    ready_s: float = 30.0  # that a target may take until it answers
    measured: list[Measurement] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # target -> why it was not (always) measured

    def run(self) -> None:
        """Measure all. Every process that it starts has ended when it returns or raises."""
        for target in self.targets:
            if reason := target.missing():
                self._leave_out(target, reason)
        with _upstream() as upstream:
            for case in self.cases:
                self._case(case, upstream)

    def _leave_out(self, target: Target, reason: str) -> None:
        self.absent[target.name] = reason
        self.say(f"{target.name}: not measured: {reason}")

    def _case(self, case: Case, upstream: Upstream) -> None:
        targets = [t for t in self.targets if t.name not in self.absent and (case.with_direct or t.name != "direct")]
        rounds = min(self.rounds, case.rounds_max)
        with ExitStack() as stack:
            running: dict[str, Running] = {}
            for number in range(1, rounds + 1):
                for target in targets:
                    if target.name in self.absent:
                        continue
                    self.say(f"{case.title}: round {number} of {rounds}: {target.name}")
                    try:
                        if case.fresh:
                            with serving(target, upstream, self.ready_s) as at:
                                self._measure(case, at, number, upstream)
                        else:
                            if target.name not in running:
                                running[target.name] = stack.enter_context(serving(target, upstream, self.ready_s))
                            self._measure(case, running[target.name], number, upstream)
                    except TargetFailed as error:
                        self._leave_out(target, str(error))

    def _measure(self, case: Case, at: Running, number: int, upstream: Upstream) -> None:
        job = Job(
            case.job,
            at.port,
            upstream.ports[0],
            case.load,
            at.pgid,
            upstream.pgid,
            headers=at.target.headers(),
        )
        result = _client(job)
        self.measured.append(Measurement(case.name, at.target.name, number, result.figures, result.failures))
        if result.failures:
            failed = ", ".join(f"{count} × {reason}" for reason, count in result.failures.items())
            self.say(f"{case.title}: {at.target.name}: failed calls: {failed}")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The running stand-in: one process, a port for each replica."""

    ports: tuple[int, ...]
    pgid: int

    @property
    def urls(self) -> tuple[str, ...]:
        """The replicas' addresses."""
        return tuple(f"http://127.0.0.1:{port}" for port in self.ports)


@dataclass(frozen=True, slots=True)
class Running:
    """A target that answers. ``pgid`` is 0 where there is no process."""

    target: Target
    port: int
    pgid: int


@contextmanager
def _upstream() -> Iterator[Upstream]:
    command = [sys.executable, "-m", "loadtests.bench.upstream", str(_REPLICAS)]
    with spawned(command, core=LOAD_CORE, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the stand-in for vLLM did not start")
        yield Upstream(tuple(msgspec.json.decode(line, type=list[int])), process.pid)


@contextmanager
def serving(target: Target, upstream: Upstream, ready_s: float) -> Iterator[Running]:
    """``target`` in front of ``upstream``, once it has answered a call: in ``ready_s``, or TargetFailed is raised."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        site = Site(free_port(), upstream.urls, Path(folder))
        command = target.command(site)
        if command is None:
            yield Running(target, upstream.ports[0], 0)
            return
        log = site.folder / "output.log"
        with log.open("wb") as output, spawned(command, core=PROXY_CORE, stdout=output, stderr=output) as process:
            _await_ready(target, site.port, process, log, ready_s)
            yield Running(target, site.port, process.pid)


def _await_ready(target: Target, port: int, process: subprocess.Popen[bytes], log: Path, ready_s: float) -> None:
    deadline_s = time.monotonic() + ready_s
    said = "no answer"
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            said = _call_once(target, port)
        except OSError as error:
            said = str(error)
        if said == "":
            return
        time.sleep(0.1)
    ended = f"ended with {process.returncode}" if process.poll() is not None else f"not ready in {ready_s:.0f} s"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
    raise TargetFailed(f"{ended} ({said}); it printed:\n{tail}")


def _call_once(target: Target, port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        headers = {"content-type": "application/json", **target.headers()}
        connection.request("POST", CHAT_PATH, chat_body(Wanted()), headers)
        answer = connection.getresponse()
        body = answer.read()
    except http.client.HTTPException as error:
        return f"bad HTTP: {error!r}"
    finally:
        connection.close()
    return "" if answer.status == 200 else f"status {answer.status}: {body[:200].decode(errors='replace')}"


def _client(job: Job) -> Result:
    """Do ``job`` in a process of its own. One that fails or hangs is a failed call with what it said."""
    command = [sys.executable, "-m", "loadtests.bench.client"]
    timeout_s = job.load.warm_s * 3 + job.load.window_s + _JOB_SLACK_S
    with spawned(command, core=LOAD_CORE, stdin=subprocess.PIPE) as process:
        try:
            said, _ = process.communicate(msgspec.json.encode(job), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Result({}, {f"load client not done in {timeout_s:.0f} s": 1})
    if process.returncode != 0:
        return Result({}, {f"load client ended with {process.returncode}": 1})
    return msgspec.json.decode(said, type=Result)

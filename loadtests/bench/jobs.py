"""One measurement each: put a load on a target and read its processes' CPU time or memory meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import msgspec

from loadtests.bench.connections import CallLoad, StreamConnection, open_stream
from loadtests.bench.measure import ProcessGroup, machine_busy_s, percentile
from loadtests.bench.wire import CHAT_PATH, Wanted, await_cuts, chat_body, request_bytes

_GRACE_S = 5.0
_RESOLVED_S = 0.05  # CPU time is told in ticks of 10 ms: less than five of them are no figure
_ABORT_WAIT_S = 3.0
_STALL_AFTER_BYTES = 1_000_000
# What the official SDK adds to each call: proxies pay for every header.
_SDK_HEADERS = {
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "user-agent": "AsyncOpenAI/Python 2.1.0",
    "x-stainless-lang": "python",
    "x-stainless-package-version": "2.1.0",
    "x-stainless-os": "Linux",
    "x-stainless-arch": "x64",
    "x-stainless-runtime": "CPython",
    "x-stainless-runtime-version": "3.11.2",
    "x-stainless-async": "async:asyncio",
    "x-stainless-retry-count": "0",
    "x-stainless-read-timeout": "600",
}


class Load(msgspec.Struct, frozen=True):
    """How much of what. Fields that a kind of job does not use stay at their defaults."""

    connections: int = 64
    warm_s: float = 0.5
    window_s: float = 3.0
    prompt_bytes: int = 120
    sdk_headers: bool = False
    rate: float = 50.0  # chunks per second of each stream
    step: bool = False  # all streams' chunks at the same moments, as one engine sends them
    flood_bytes: int = 100_000_000
    repeats: int = 20


class Job(msgspec.Struct, frozen=True):
    """A load and where to put it. ``pgid`` 0 means that nothing stands between client and stand-in."""

    kind: str  # calls | streams | memory | stall | abort
    port: int
    upstream_port: int
    load: Load
    pgid: int = 0
    upstream_pgid: int = 0
    host: str = "127.0.0.1"
    path: str = CHAT_PATH
    headers: dict[str, str] = {}

    def request(self, answer: Wanted) -> bytes:
        """The bytes of a request for ``answer``."""
        extra = _SDK_HEADERS if self.load.sdk_headers else {}
        return request_bytes(
            chat_body(answer, prompt_bytes=self.load.prompt_bytes), {**extra, **self.headers}, self.path
        )


class Result(msgspec.Struct, frozen=True):
    """What one measurement found: figures by name (units last in the name), failed calls by reason."""

    figures: dict[str, float]
    failures: dict[str, int]


class _Spent:
    """CPU time over a window: of the target, of client and stand-in (to see whether they were the limit), and of
    everything else (to see whether the machine was quiet)."""

    def __init__(self, job: Job) -> None:
        self._target = ProcessGroup(job.pgid) if job.pgid else None
        self._upstream = ProcessGroup(job.upstream_pgid) if job.upstream_pgid else None
        self.target_s = self.wall_s = self.load_s = self.others_s = 0.0

    def _now(self) -> tuple[float, float, float, float]:
        target_s = self._target.cpu_s() if self._target else 0.0
        load_s = time.process_time() + (self._upstream.cpu_s() if self._upstream else 0.0)
        return time.monotonic(), target_s, load_s, machine_busy_s() - target_s - load_s

    async def window(self, seconds: float) -> None:
        """Let ``seconds`` pass and note what was spent in them."""
        before = self._now()
        await asyncio.sleep(seconds)
        spent = (b - a for a, b in zip(before, self._now(), strict=True))
        self.wall_s, self.target_s, self.load_s, self.others_s = spent

    def figures(self, units: int, unit: str) -> dict[str, float]:
        """CPU per ``unit`` and how busy target, load and others were (in cores)."""
        found = {f"{unit}s_per_s": units / self.wall_s, "load_busy": self.load_s / self.wall_s}
        found["others_busy"] = max(0.0, self.others_s / self.wall_s)
        if self._target and units and self.target_s >= _RESOLVED_S:
            found |= {f"cpu_us_per_{unit}": self.target_s / units * 1e6, "target_busy": self.target_s / self.wall_s}
        return found


def _percentiles_ms(samples_ns: list[int], name: str) -> dict[str, float]:
    if not samples_ns:
        return {}
    ordered = sorted(samples_ns)
    return {f"{name}_p50_ms": percentile(ordered, 0.5) / 1e6, f"{name}_p99_ms": percentile(ordered, 0.99) / 1e6}


async def calls(job: Job) -> Result:
    """Non-streamed calls in a closed loop."""
    load = CallLoad(job.host, job.port, job.request(Wanted("call")))
    await load.open(job.load.connections)
    await asyncio.sleep(job.load.warm_s)
    spent = _Spent(job)
    load.latencies_ns.clear()
    await spent.window(job.load.window_s)
    latencies_ns = load.latencies_ns.copy()
    await load.stop(_GRACE_S)
    if not latencies_ns:
        load.failures["no call ended"] += 1
    figures = spent.figures(len(latencies_ns), "call") | _percentiles_ms(latencies_ns, "latency")
    return Result(figures, dict(load.failures))


async def streams(job: Job) -> Result:
    """Paced streams. They start at random moments (the same for every target) so that their chunks do not clump."""
    load = job.load
    ramp_s = max(load.warm_s, 1.5 / load.rate)
    chunks = int((2 * ramp_s + load.window_s) * load.rate)
    request = job.request(Wanted("stream", chunks=chunks, rate=load.rate, step=int(load.step)))
    delays_ns: list[int] = []
    moments = random.Random(load.connections)
    started_s = time.monotonic()
    starts_s = sorted(moments.uniform(0, ramp_s) for _ in range(load.connections))
    opened = []
    for start_s in starts_s:
        await asyncio.sleep(max(0.0, started_s + start_s - time.monotonic()))
        opened.append(await open_stream(job.host, job.port, request, delays_ns.append))
    await asyncio.sleep(max(0.0, started_s + 1.5 * ramp_s - time.monotonic()))
    spent = _Spent(job)
    delays_ns.clear()
    await spent.window(load.window_s)
    in_window_ns = delays_ns.copy()
    failures = await _endings(opened, ramp_s + _GRACE_S, chunks)
    figures = spent.figures(len(in_window_ns), "chunk") | _percentiles_ms(in_window_ns, "delay")
    return Result(figures, dict(failures))


async def _endings(opened: list[StreamConnection], timeout_s: float, chunks: int) -> Counter[str]:
    failures: Counter[str] = Counter()
    await asyncio.wait([stream.ended for stream in opened], timeout=timeout_s)
    for stream in opened:
        if not stream.ended.done():
            failures["not ended"] += 1
            stream.transport.abort()
        elif (reason := stream.ended.result()) is not None:
            failures[reason] += 1
        elif stream.chunks != chunks:
            failures["chunks missing"] += 1
    return failures


async def _warm_up(job: Job) -> None:
    """Some of everything, so that memory measured afterwards is not that of code loaded at its first use."""
    load = CallLoad(job.host, job.port, job.request(Wanted("call")))
    await load.open(4)
    await asyncio.sleep(0.2)
    await load.stop(_GRACE_S)
    answers = Wanted("stream", chunks=5, rate=50.0), Wanted("flood", flood_bytes=4_000_000)
    warm = [await open_stream(job.host, job.port, job.request(answer)) for answer in answers]
    await asyncio.wait([stream.ended for stream in warm], timeout=_GRACE_S)
    await asyncio.sleep(0.2)


async def memory(job: Job) -> Result:
    """Resident memory that open, nearly idle streams take."""
    await _warm_up(job)
    group = ProcessGroup(job.pgid)
    before_bytes = group.rss_bytes()
    request = job.request(Wanted("stream", chunks=1000, rate=job.load.rate))
    opened = [await open_stream(job.host, job.port, request) for _ in range(job.load.connections)]
    await asyncio.wait([stream.started for stream in opened], timeout=10.0)
    await asyncio.sleep(job.load.window_s)
    grown_bytes = group.rss_bytes() - before_bytes
    failures = Counter(f"{stream.ended.result()}" for stream in opened if stream.ended.done())
    failures["no answer"] = sum(not stream.started.done() for stream in opened)
    for stream in opened:
        stream.transport.abort()
    figures = {"rss_idle_mb": before_bytes / 1e6, "rss_kb_per_stream": grown_bytes / len(opened) / 1e3}
    return Result(figures, dict(+failures))


async def _received(stream: StreamConnection, least_bytes: int) -> bool:
    """Whether ``least_bytes`` of a longer answer came in time."""
    deadline_s = time.monotonic() + _GRACE_S
    while stream.received_bytes < least_bytes:
        if stream.ended.done() or time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(0.005)
    return not stream.ended.done()


async def stall(job: Job) -> Result:
    """Resident memory that a client takes which asks for much and stops reading: the largest growth seen."""
    await _warm_up(job)
    group = ProcessGroup(job.pgid)
    before_bytes = most_bytes = group.rss_bytes()
    flood = Wanted("flood", id=f"stall-{job.port}", flood_bytes=job.load.flood_bytes)
    stream = await open_stream(job.host, job.port, job.request(flood))
    flowing = await _received(stream, _STALL_AFTER_BYTES)
    stream.transport.pause_reading()
    ending_s = time.monotonic() + job.load.window_s
    while time.monotonic() < ending_s:
        await asyncio.sleep(0.1)
        most_bytes = max(most_bytes, group.rss_bytes())
    stream.transport.abort()
    cuts = await asyncio.to_thread(await_cuts, job.upstream_port, {flood.id}, _ABORT_WAIT_S)
    figures = {"rss_growth_mb": (most_bytes - before_bytes) / 1e6, "received_mb": stream.received_bytes / 1e6}
    failures = {} if flowing else {"no stream to stall": 1}
    if cut := cuts.get(flood.id):  # absent where the proxy swallowed the whole stream
        figures["upstream_sent_mb"] = cut.sent_bytes / 1e6
    return Result(figures, failures)


async def abort(job: Job) -> Result:
    """Time from a client's close to the stand-in's loss of its connection, before headers and in mid-stream.

    A cancellation that never arrives is a failure with its count, not a figure.
    """
    figures: dict[str, float] = {}
    failures: Counter[str] = Counter()
    for name, kind in (("before_headers", "hang"), ("mid_stream", "stream")):
        closed_ns = await _close_early(job, name, kind, failures)
        cuts = await asyncio.to_thread(await_cuts, job.upstream_port, set(closed_ns), _ABORT_WAIT_S)
        took_ms = [(cuts[id_].lost_ns - closed_ns[id_]) / 1e6 for id_ in closed_ns if id_ in cuts]
        if early := sum(took < 0 for took in took_ms):
            failures[f"{name}: cut before the client closed"] += early
        if missing := len(closed_ns) - len(cuts):
            failures[f"{name}: not aborted within {_ABORT_WAIT_S:.0f} s"] += missing
        elif took_ms:
            ordered = sorted(took_ms)
            figures |= {f"{name}_p50_ms": percentile(ordered, 0.5), f"{name}_max_ms": ordered[-1]}
    return Result(figures, dict(failures))


async def _close_early(job: Job, name: str, kind: str, failures: Counter[str]) -> dict[str, int]:
    closed_ns: dict[str, int] = {}
    moments = random.Random(kind)
    for number in range(job.load.repeats):
        answer = Wanted(kind, id=f"{kind}-{job.port}-{number}", chunks=1000, rate=job.load.rate)
        stream = await open_stream(job.host, job.port, job.request(answer))
        if kind == "stream":
            await asyncio.wait([stream.started], timeout=_GRACE_S)
        await asyncio.sleep(moments.uniform(0.04, 0.08))
        if stream.ended.done():
            failures[f"{name}: {stream.ended.result()}"] += 1
        else:
            closed_ns[answer.id] = time.monotonic_ns()
            stream.transport.abort()
            await asyncio.sleep(0)
    return closed_ns

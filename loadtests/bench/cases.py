"""What is measured, how much of it, and the goals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from loadtests.bench.jobs import Load

DIRECT, NGINX, GATEWAY, COMPILED = "direct", "nginx", "gateway", "gateway-compiled"
NAIVE, NAIVEST = "fastapi+httpx", "fastapi+httpx-per-call"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load. ``fresh`` starts the target anew for each measurement (memory remembers earlier loads)."""

    name: str
    title: str
    job: str
    load: Load
    rounds_max: int = 99
    fresh: bool = False
    with_direct: bool = True
    extra: bool = False  # measured only when asked for by name

    def quick(self) -> Case:
        """The same, as short as it can be and still say something."""
        load = self.load
        shorter = msgspec.structs.replace(
            load, warm_s=min(load.warm_s, 0.2), window_s=load.window_s / 3, repeats=min(load.repeats, 5)
        )
        return replace(self, load=shorter, rounds_max=1 if self.fresh else 2)


_STREAM = Load(connections=64, window_s=5.0)
CASES: tuple[Case, ...] = (
    Case("calls", "short calls, 64 connections", "calls", Load(connections=64)),
    Case("streams", "64 streams × 50 chunks/s", "streams", _STREAM),
    Case("prompt", "1 MB prompts", "calls", Load(connections=2, prompt_bytes=1_000_000), with_direct=False),
    Case(
        "memory",
        "500 open streams",
        "memory",
        Load(connections=500, rate=1.0, window_s=2.0),
        rounds_max=3,
        fresh=True,
        with_direct=False,
    ),
    Case("stall", "a client that stops reading 100 MB", "stall", Load(), rounds_max=3, fresh=True, with_direct=False),
    Case("abort", "a client that goes away", "abort", Load(), rounds_max=3, fresh=True),
    Case("calls-sdk", "short calls with the openai SDK's headers", "calls", Load(sdk_headers=True), extra=True),
    Case("calls-1", "short calls, 1 connection", "calls", Load(connections=1), extra=True),
    Case("streams-1", "1 stream × 50 chunks/s", "streams", Load(connections=1, window_s=5.0), extra=True),
    Case("streams-256", "256 streams × 50 chunks/s", "streams", Load(connections=256, window_s=5.0), extra=True),
    Case(
        "streams-512",
        "512 streams × 25 chunks/s",
        "streams",
        Load(connections=512, rate=25.0, window_s=5.0),
        extra=True,
    ),
    Case(
        "streams-steps",
        "64 streams that send together",
        "streams",
        Load(connections=64, step=True, window_s=5.0),
        extra=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: figure ``key`` of a case, as it is, divided by or less that of another target.

    It shows in the case called ``case`` and its variations (``case-…``). ``goal_max`` is the most that the gateway
    may show in the case itself; variations have no goals.
    """

    case: str
    key: str
    title: str
    unit: str
    digits: int = 1
    scale: float = 1.0
    per: str | None = None  # ratio to this target's
    less: str | None = None  # difference to this target's
    goal_max: float | None = None

    def shows_in(self, case: Case) -> bool:
        """Whether ``case`` has this row."""
        return case.name.partition("-")[0] == self.case

    def goal_in(self, case: Case) -> float | None:
        """The goal that holds in ``case``."""
        return self.goal_max if case.name == self.case else None


FIGURES: tuple[Figure, ...] = (
    Figure("calls", "cpu_us_per_call", "CPU per call", "µs"),
    Figure("calls", "cpu_us_per_call", "CPU per call ÷ nginx", "×", 2, per=NGINX, goal_max=5.0),
    Figure("calls", "cpu_us_per_call", "CPU per call ÷ naive route", "×", 4, per=NAIVE, goal_max=1 / 50),
    Figure("calls", "cpu_us_per_call", "CPU per call ÷ route with a client per call", "×", 4, per=NAIVEST),
    Figure("calls", "calls_per_s", "calls per second", "/s", 0),
    Figure("calls", "target_busy", "share of its core used", "%", 0, scale=100.0),
    Figure("calls", "latency_p50_ms", "latency p50", "ms", 2),
    Figure("calls", "latency_p99_ms", "latency p99", "ms", 2),
    Figure("streams", "cpu_us_per_chunk", "CPU per chunk", "µs"),
    Figure("streams", "cpu_us_per_chunk", "CPU per chunk ÷ nginx", "×", 2, per=NGINX, goal_max=2.2),
    Figure("streams", "chunks_per_s", "chunks per second", "/s", 0),
    Figure("streams", "delay_p50_ms", "a chunk's way p50", "ms", 3),
    Figure("streams", "delay_p99_ms", "a chunk's way p99", "ms", 3),
    Figure("streams", "delay_p50_ms", "added over direct p50", "ms", 3, less=DIRECT),
    Figure("streams", "delay_p99_ms", "added over direct p99", "ms", 3, less=DIRECT),
    Figure("streams", "delay_p50_ms", "added over nginx p50", "ms", 3, less=NGINX, goal_max=0.1),
    Figure("streams", "delay_p99_ms", "added over nginx p99", "ms", 3, less=NGINX, goal_max=0.5),
    Figure("prompt", "cpu_us_per_call", "CPU per call", "ms", 2, scale=1e-3, goal_max=5.0),
    Figure("prompt", "latency_p50_ms", "latency p50", "ms", 2),
    Figure("memory", "rss_idle_mb", "memory before", "MB"),
    Figure("memory", "rss_kb_per_stream", "memory per stream", "KB", goal_max=20.0),
    Figure("stall", "rss_growth_mb", "growth of memory", "MB", 2, goal_max=1.0),
    Figure("abort", "before_headers_p50_ms", "to upstream's abort, before headers, p50", "ms", 2),
    Figure("abort", "before_headers_max_ms", "to upstream's abort, before headers, max", "ms", 2, goal_max=100.0),
    Figure("abort", "mid_stream_p50_ms", "to upstream's abort, mid-stream, p50", "ms", 2),
    Figure("abort", "mid_stream_max_ms", "to upstream's abort, mid-stream, max", "ms", 2, goal_max=100.0),
)


def chosen(names: str | None) -> list[Case]:
    """The cases called ``names`` (commas between); without, all that are no extras. Raises ValueError."""
    if names is None:
        return [case for case in CASES if not case.extra]
    by_name = {case.name: case for case in CASES}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in by_name]:
        raise ValueError(f"no such case: {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [case for case in CASES if case.name in wanted]

"""The loads behind the operators' figures, in simulated time: no clock, no sockets, the same result every time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.sim.engine import EngineRequest
from gateway.sim.machine import Happening, Machine, Timing, replay
from gateway.sim.profiles import Profile

_MARGIN_TOKENS = 2_000  # a marginal rate is taken over this much on either side
_BLOCK = 16


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


class Burst(NamedTuple):
    """Requests sent at one moment: times to first token (s), and tokens/s while all of them decode (0 if never)."""

    ttft_s: list[float]
    decode_rate: float


def burst(profile: Profile, count: int, prompt: int, output: int) -> Burst:
    """``count`` requests at once."""
    timings = replay(profile, [(0.0, EngineRequest(str(at), prompt, output)) for at in range(count)]).values()
    from_s, to_s = max(timing.first_s for timing in timings), min(timing.last_s for timing in timings)
    rate = count * (output - 1) / (to_s - from_s) if to_s > from_s else 0.0
    return Burst([timing.ttft_s for timing in timings], rate)


def prefill_s(profile: Profile, tokens: int) -> float:
    """Seconds to the only token of a prompt alone on the engine."""
    return replay(profile, [(0.0, EngineRequest("a", tokens, 1))])["a"].ttft_s


def marginal_rate(profile: Profile, position: int) -> float:
    """Prompt tokens/s around a position."""
    before, after = (prefill_s(profile, position + off) for off in (-_MARGIN_TOKENS, _MARGIN_TOKENS))
    return 2 * _MARGIN_TOKENS / (after - before)


def repeat_s(profile: Profile, tokens: int) -> tuple[float, float]:
    """Seconds to the first token of a prompt, and of the same prompt again on a calm engine."""
    blocks = range(tokens // _BLOCK)
    cold, warm = (EngineRequest(name, tokens, 1, blocks) for name in ("cold", "warm"))
    timings = replay(profile, [(0.0, cold), (600.0, warm)])
    return timings["cold"].ttft_s, timings["warm"].ttft_s


def beside_s(profile: Profile, long_tokens: int, after_s: float) -> float:
    """Seconds to the first token of a small chat sent ``after_s`` after a long prompt was sent."""
    arrivals = [(0.0, EngineRequest("long", long_tokens, 1)), (after_s, EngineRequest("chat", 40, 5))]
    return replay(profile, arrivals)["chat"].ttft_s


def together(profile: Profile, tokens: int) -> bool:
    """Whether two prompts of this size, with an answer of 2,000 tokens each, are ever served at the same time."""
    timings = replay(profile, [(0.0, EngineRequest(name, tokens, 2_000)) for name in ("a", "b")])
    return timings["b"].first_s < timings["a"].last_s


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed loop, as vLLM's serving benchmark runs it: ``clients`` at once, each end starts the next request.

    The first ``cached`` tokens of a client's prompts are the same every time; clients share nothing and stay with one
    engine each. ``seed`` changes the requests' ids, and by them which drafts are accepted.
    """

    clients: int
    prompt: int
    output: int
    requests: int
    cached: int = 0
    seed: int = 0


class Served(NamedTuple):
    """What a closed loop gave. Means over requests; ``output_rate`` is all output tokens over the whole run."""

    output_rate: float
    ttft_s: list[float]
    tpot_s: float
    e2e_s: float


def closed_loop(profile: Profile, loop: Loop) -> Served:
    """Run a closed loop to its end, the last requests without successors."""
    timings: dict[str, Timing] = {}
    for at_s, progress in _happenings(Machine(profile), loop, timings):
        timing = timings[progress.id]
        timing.tokens, timing.last_s = timing.tokens + progress.tokens, at_s
        if progress.first:
            timing.first_s = at_s
    done = list(timings.values())
    return Served(
        output_rate=sum(timing.tokens for timing in done) / max(timing.last_s for timing in done),
        ttft_s=[timing.ttft_s for timing in done],
        tpot_s=mean([(timing.last_s - timing.first_s) / (timing.tokens - 1) for timing in done]),
        e2e_s=mean([timing.last_s - timing.sent_s for timing in done]),
    )


class Sampled(NamedTuple):
    """A stretch of the server's log: tokens/s, mean requests running, hit rate and KV usage (0 to 1).

    ``prompt_rate`` is of computed tokens only, as vLLM's log line has it (``prompt_token_stats.computed``).
    """

    prompt_rate: float
    generation_rate: float
    running: float
    hit_rate: float
    kv_usage: float


def sampled(profile: Profile, loop: Loop, warm_requests: int) -> Sampled:
    """A closed loop seen through the engines' counters, from the end of ``warm_requests`` on while the loop is full."""
    machine = Machine(profile)
    marks: list[tuple[float, tuple[int, ...]]] = []
    running: list[int] = []
    usage: list[float] = []
    ended = 0
    for at_s, progress in _happenings(machine, loop, {}):
        ended += progress.finished
        if warm_requests <= ended <= loop.requests - loop.clients:
            marks.append((at_s, _totals(machine)))
            running.append(machine.running)
            usage.append(mean([engine.kv_usage for engine in machine.engines]))
    (from_s, before), (to_s, after) = marks[0], marks[-1]
    prompts, hits, queries, generated = (late - early for early, late in zip(before, after, strict=True))
    seconds = to_s - from_s
    return Sampled((prompts - hits) / seconds, generated / seconds, mean(running), hits / queries, mean(usage))


def _totals(machine: Machine) -> tuple[int, ...]:
    counters = [engine.counters for engine in machine.engines]
    return (
        sum(one.prompt_tokens for one in counters),
        sum(one.prefix_hits for one in counters),
        sum(one.prefix_queries for one in counters),
        sum(one.generation_tokens for one in counters),
    )


def _happenings(machine: Machine, loop: Loop, timings: dict[str, Timing]) -> Iterator[Happening]:
    """Everything that happens, in order; ``timings`` gets an entry for each request as it is sent."""

    ranks = len(machine.engines)

    def send(client: int, at_s: float) -> None:
        number = len(timings)
        common = [(client, position) for position in range(loop.cached // _BLOCK)]
        new = [(-1 - number, position) for position in range(len(common), loop.prompt // _BLOCK)] if common else []
        blocks = [hash(block) for block in common + new]
        name = f"{client}/{number}/{loop.seed}"
        machine.submit(EngineRequest(name, loop.prompt, loop.output, blocks, client % ranks), at_s)
        timings[name] = Timing(at_s)

    for client in range(min(loop.clients, loop.requests)):
        send(client, 0.0)
    while (due_s := machine.wake_s) is not None:
        for happening in machine.advance(due_s):
            if happening.progress.finished and len(timings) < loop.requests:
                send(int(happening.progress.id.split("/")[0]), happening.at_s)
            yield happening

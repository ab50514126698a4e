"""``GET /metrics`` as vLLM writes it (Prometheus text, labels ``engine`` and ``model_name``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.sim.engine import Engine
from gateway.sim.machine import Machine

Samples = Mapping[str, float]


@dataclass(slots=True)
class ServerCounters:
    """What the HTTP side counts for one engine; the engine counts the rest."""

    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    rejected: int = 0
    prefill_count: int = 0
    prefill_s: float = 0.0  # sum of times to the first token, simulated


def render(machine: Machine, counters: Sequence[ServerCounters], model: str) -> bytes:
    """The whole exposition; ``counters`` by rank, as the engines."""
    return "".join(f"{line}\n" for line in _lines(machine, counters, model)).encode()


def _lines(machine: Machine, counters: Sequence[ServerCounters], model: str) -> Iterator[str]:
    labels = [f'engine="{engine.rank}",model_name="{model}"' for engine in machine.engines]
    values = [_values(engine, counted) for engine, counted in zip(machine.engines, counters, strict=True)]
    for name, kind in values[0]:
        samples = [(label, value[name, kind].items()) for label, value in zip(labels, values, strict=True)]
        yield from _metric(name, kind, {label + more: number for label, pairs in samples for more, number in pairs})
    yield "# TYPE vllm:request_prefill_time_seconds histogram"
    for label, counted in zip(labels, counters, strict=True):
        yield f'vllm:request_prefill_time_seconds_bucket{{{label},le="+Inf"}} {counted.prefill_count}'
        yield f"vllm:request_prefill_time_seconds_count{{{label}}} {counted.prefill_count}"
        yield f"vllm:request_prefill_time_seconds_sum{{{label}}} {counted.prefill_s!r}"
    yield from _metric("cache_config_info", "gauge", {_cache_config(engine): 1.0 for engine in machine.engines})


def _values(engine: Engine, counters: ServerCounters) -> dict[tuple[str, str], Samples]:
    """Samples of one engine by name and kind; their keys are what follows the common labels."""
    totals = engine.counters
    gauges = {
        "num_requests_running": engine.running,
        "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": engine.kv_usage,
    }
    counts: dict[str, float] = {
        "prefix_cache_queries_total": totals.prefix_queries,
        "prefix_cache_hits_total": totals.prefix_hits,
        "prompt_tokens_total": totals.prompt_tokens,
        "generation_tokens_total": totals.generation_tokens,
        "num_preemptions_total": totals.preemptions,
        "admission_rejections_total": counters.rejected,
    }
    by_position: Samples = {}
    if engine.spec.speculation is not None:
        counts["spec_decode_num_drafts_total"] = totals.drafts
        counts["spec_decode_num_draft_tokens_total"] = totals.draft_tokens
        counts["spec_decode_num_accepted_tokens_total"] = sum(totals.accepted_at)
        by_position = {f',position="{position}"': count for position, count in enumerate(totals.accepted_at)}
    values: dict[tuple[str, str], Samples] = {(name, "gauge"): {"": value} for name, value in gauges.items()}
    values |= {(name, "counter"): {"": value} for name, value in counts.items()}
    if by_position:
        values["spec_decode_num_accepted_tokens_per_pos_total", "counter"] = by_position
    ended = {f',finished_reason="{reason}"': count for reason, count in counters.finished.items()}
    return values | {("request_success_total", "counter"): ended}


def _cache_config(engine: Engine) -> str:
    spec = engine.spec
    return (
        f'block_size="{spec.block_tokens}",cache_dtype="fp8",enable_prefix_caching="{spec.prefix_caching}",'
        f'engine="{engine.rank}",kv_cache_size_tokens="{spec.kv_blocks * spec.block_tokens}",'
        f'num_gpu_blocks="{spec.kv_blocks}"'
    )


def _metric(name: str, kind: str, samples: Samples) -> Iterator[str]:
    yield f"# TYPE vllm:{name} {kind}"
    for labels, value in samples.items():
        yield f"vllm:{name}{{{labels}}} {float(value)!r}"

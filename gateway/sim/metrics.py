"""``GET /metrics`` as vLLM writes it (Prometheus text, labels ``engine`` and ``model_name``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.sim.machine import Machine


@dataclass(slots=True)
class ServerCounters:
    """What the HTTP side counts; the engine counts the rest."""

    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})
    rejected: int = 0
    prefill_count: int = 0
    prefill_s: float = 0.0  # sum of times to the first token, simulated


def render(machine: Machine, counters: ServerCounters, model: str) -> bytes:
    """The whole exposition."""
    return "".join(f"{line}\n" for line in _lines(machine, counters, model)).encode()


def _lines(machine: Machine, counters: ServerCounters, model: str) -> Iterator[str]:
    engine, label = machine.engine, f'engine="0",model_name="{model}"'
    totals = engine.counters
    yield from _metric("num_requests_running", "gauge", {label: engine.running})
    yield from _metric("num_requests_waiting", "gauge", {label: machine.queued})
    yield from _metric("kv_cache_usage_perc", "gauge", {label: engine.kv_usage})
    for name, value in (
        ("prefix_cache_queries_total", totals.prefix_queries),
        ("prefix_cache_hits_total", totals.prefix_hits),
        ("prompt_tokens_total", totals.prompt_tokens),
        ("generation_tokens_total", totals.generation_tokens),
        ("num_preemptions_total", totals.preemptions),
        ("admission_rejections_total", counters.rejected),
    ):
        yield from _metric(name, "counter", {label: value})
    ended = {f'{label},finished_reason="{reason}"': count for reason, count in counters.finished.items()}
    yield from _metric("request_success_total", "counter", ended)
    yield "# TYPE vllm:request_prefill_time_seconds histogram"
    yield f'vllm:request_prefill_time_seconds_bucket{{{label},le="+Inf"}} {counters.prefill_count}'
    yield f"vllm:request_prefill_time_seconds_count{{{label}}} {counters.prefill_count}"
    yield f"vllm:request_prefill_time_seconds_sum{{{label}}} {counters.prefill_s!r}"
    spec = engine.spec
    config = (
        f'block_size="{spec.block_tokens}",cache_dtype="fp8",enable_prefix_caching="{spec.prefix_caching}",engine="0",'
        f'kv_cache_size_tokens="{spec.kv_blocks * spec.block_tokens}",num_gpu_blocks="{spec.kv_blocks}"'
    )
    yield from _metric("cache_config_info", "gauge", {config: 1.0})


def _metric(name: str, kind: str, samples: Mapping[str, float]) -> Iterator[str]:
    yield f"# TYPE vllm:{name} {kind}"
    for labels, value in samples.items():
        yield f"vllm:{name}{{{labels}}} {float(value)!r}"

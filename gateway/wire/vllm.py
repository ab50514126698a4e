"""What a vLLM server tells of itself: ``/metrics`` and ``/v1/models``, in the namings of all its versions."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Final

import msgspec

from gateway.domain import EngineStats

_RUNNING: Final = ("vllm:num_requests_running",)
_WAITING: Final = ("vllm:num_requests_waiting",)
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second before 0.10
_PREFIX_QUERIES: Final = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_PREFIX_HITS: Final = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_PROMPT: Final = ("vllm:prompt_tokens_total",)
_GENERATION: Final = ("vllm:generation_tokens_total",)
_PREEMPTIONS: Final = ("vllm:num_preemptions_total",)
_CACHE_CONFIG: Final = ("vllm:cache_config_info",)
_WANTED: Final = (
    *_RUNNING,
    *_WAITING,
    *_KV_USAGE,
    *_PREFIX_QUERIES,
    *_PREFIX_HITS,
    *_PROMPT,
    *_GENERATION,
    *_PREEMPTIONS,
    *_CACHE_CONFIG,
)
_SAMPLE: Final = re.compile(r"([^\s{]+)\s*(?:\{(.*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_Sample = tuple[dict[str, str], float]


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)


def parse_metrics(text: str) -> EngineStats:
    """Return the gauges and counters of a ``/metrics`` page, summed over its engines (KV usage: their mean).

    What is missing or unreadable counts as 0 (capacity: ``None``); nothing is raised.
    """
    samples = _samples(text)
    engines = {labels["engine"] for found in samples.values() for labels, _ in found if "engine" in labels}
    usage = _first(samples, _KV_USAGE)
    return EngineStats(
        engines=max(1, len(engines)),
        running=_sum(samples, _RUNNING),
        waiting=_sum(samples, _WAITING),
        kv_usage=sum(usage) / len(usage) if usage else 0.0,
        kv_capacity_tokens=_capacity_tokens(samples),
        prefix_queries=_sum(samples, _PREFIX_QUERIES),
        prefix_hits=_sum(samples, _PREFIX_HITS),
        prompt_tokens=_sum(samples, _PROMPT),
        generation_tokens=_sum(samples, _GENERATION),
        preemptions=_sum(samples, _PREEMPTIONS),
    )


def parse_models(body: bytes) -> dict[str, int | None]:
    """Return model ids and their ``max_model_len`` from ``/v1/models``; nothing from a body that is no such list."""
    try:
        return {model.id: model.max_model_len for model in _MODELS.decode(body).data}
    except msgspec.DecodeError:
        return {}


def _samples(text: str) -> dict[str, list[_Sample]]:
    found: defaultdict[str, list[_Sample]] = defaultdict(list)
    for line in text.split("\n"):
        if line.startswith(_WANTED):
            sample = _SAMPLE.match(line)
            value = _number(sample[3]) if sample else None
            if sample and value is not None and sample[1] in _WANTED:
                found[sample[1]].append((dict(_LABEL.findall(sample[2] or "")), value))
    return dict(found)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _first(samples: dict[str, list[_Sample]], names: tuple[str, ...]) -> list[float]:
    """Return the values under the first of ``names`` that the page has: versions between write both namings."""
    for name in names:
        if name in samples:
            return [value for _, value in samples[name]]
    return []


def _sum(samples: dict[str, list[_Sample]], names: tuple[str, ...]) -> float:
    return math.fsum(_first(samples, names))


def _capacity_tokens(samples: dict[str, list[_Sample]]) -> int | None:
    capacities = [_cache_tokens(labels) for name in _CACHE_CONFIG for labels, _ in samples.get(name, ())]
    known = [tokens for tokens in capacities if tokens]
    return sum(known) if known else None


def _cache_tokens(labels: dict[str, str]) -> int:
    """Return one engine's KV capacity in tokens, 0 if its labels do not tell."""
    tokens, blocks, block_size = (
        int(value) if (value := labels.get(name, "")).isdecimal() else 0
        for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    return tokens or blocks * block_size

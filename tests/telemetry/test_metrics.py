"""The metrics page: names, what a record adds, and labels nobody outside can make up."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.domain import CallClass, Outcome, Usage
from gateway.ports import QueueStatus
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.series import Counter, Histogram
from gateway.testing.fleet import FakeFleet, replica_status
from gateway.testing.records import call_record, refused_record

SERIES_LABELS = {
    "requests_total": {"model", "team", "outcome"},
    "ttft_seconds": {"model", "class"},
    "tpot_seconds": {"model", "class"},
    "e2e_seconds": {"model", "class"},
    "queue_wait_seconds": {"model", "class"},
    "overhead_seconds": set(),
    "inflight": {"replica"},
    "cap": {"replica"},
    "queue_depth": {"model", "class"},
    "tokens_total": {"team", "model", "kind"},
    "rejections_total": {"reason"},
    "retries_total": {"reason"},
    "replica_up": {"replica"},
    "routes_total": {"replica", "reason"},
    "prefix_actual_tokens_total": {"replica"},
    "loop_lag_seconds": set(),
    "token_estimate_error_ratio": {"model"},
    "empty_length_answers_total": {"model"},
}


def new_metrics() -> Metrics:
    return Metrics(["qwen", "embed"], ["chat", "research"])


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """The gateway's samples by name (without prefix) and label values in alphabetical order of their labels."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families(b"".join(metrics.page()).decode()):
        for sample in family.samples:
            if sample.name.startswith("gateway_"):
                name = (sample.name.removeprefix("gateway_"), tuple(v for _, v in sorted(sample.labels.items())))
                assert name not in found, "a series twice makes Prometheus refuse the page"
                found[name] = sample.value
    return found


def test_names_and_labels_are_the_documented_ones() -> None:
    metrics = new_metrics()
    queue = QueueStatus("qwen", 9, {CallClass.SHORT: 2})
    metrics.watch(FakeFleet(replica_list=[replica_status()], queue_list=[queue]))
    metrics.write(call_record(has_content=False, finish_reason="length"))
    metrics.retried("connect")
    metrics.rejected("draining")
    seen: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(b"".join(metrics.page()).decode()):
        if family.name.startswith("gateway_"):
            name = family.name.removeprefix("gateway_") + ("_total" if family.type == "counter" else "")
            seen[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    assert seen == SERIES_LABELS


def test_an_ordinary_call() -> None:
    metrics = new_metrics()
    metrics.write(call_record())
    found = samples(metrics)
    assert found["requests_total", ("qwen", "ok", "chat")] == 1
    assert found["tokens_total", ("prompt", "qwen", "chat")] == 1_000
    assert found["tokens_total", ("cached", "qwen", "chat")] == 400
    assert found["tokens_total", ("completion", "qwen", "chat")] == 50
    assert found["routes_total", ("least_inflight", "dp0")] == 1
    assert found["prefix_actual_tokens_total", ("dp0",)] == 400
    for name, value in (("ttft", 0.3), ("tpot", 0.012), ("e2e", 0.9), ("queue_wait", 0.02)):
        assert found[f"{name}_seconds_count", ("short", "qwen")] == 1
        assert found[f"{name}_seconds_sum", ("short", "qwen")] == pytest.approx(value)
    assert found["overhead_seconds_sum", ()] == pytest.approx(0.000_3)
    assert found["token_estimate_error_ratio_sum", ("qwen",)] == pytest.approx(0.1)
    assert not [name for name, _ in found if name.startswith(("rejections", "empty_length"))]


def test_buckets_are_cumulative_and_their_upper_edge_belongs_to_them() -> None:
    histogram = Histogram("x_seconds", "x", (1.0, 2.0), ("model",))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(("qwen",), value)
    counts = {sample.labels.get("le"): sample.value for sample in histogram.family().samples}
    assert (counts["1.0"], counts["2.0"], counts["+Inf"]) == (2, 3, 4)


@pytest.mark.parametrize(
    ("outcome", "reason", "counted"),
    [
        (Outcome.REFUSED, "invalid_api_key", "invalid_api_key"),
        (Outcome.QUEUE_FULL, "queue_full", "queue_full"),
        (Outcome.DRAINING, "", "draining"),
        (Outcome.UPSTREAM_ERROR, "upstream_error", None),
        (Outcome.CLIENT_GONE, "", None),
    ],
)
def test_rejections_are_what_the_gateway_refused(outcome: Outcome, reason: str, counted: str | None) -> None:
    metrics = new_metrics()
    metrics.write(refused_record(outcome=outcome, reason=reason))
    rejected = {key[0]: value for (name, key), value in samples(metrics).items() if name == "rejections_total"}
    assert rejected == ({counted: 1} if counted else {})


def test_a_refused_call_has_no_latency() -> None:
    metrics = new_metrics()
    metrics.write(refused_record())
    assert not [name for name, _ in samples(metrics) if name.startswith(("e2e", "ttft", "queue_wait", "tokens"))]


def test_a_call_that_waited_in_vain_has_a_wait_only() -> None:
    metrics = new_metrics()
    waited = {
        "outcome": Outcome.QUEUE_TIMEOUT,
        "reason": "queue_timeout",
        "call_class": CallClass.LONG,
        "queue_s": 300.0,
    }
    metrics.write(refused_record(**waited))
    found = samples(metrics)
    assert found["queue_wait_seconds_sum", ("long", "qwen")] == 300
    assert not [name for name, _ in found if name.startswith(("e2e", "tokens"))]


@pytest.mark.parametrize("finish_reason", ["length", "max_tokens", "max_output_tokens"])
def test_out_of_tokens_without_content(finish_reason: str) -> None:
    metrics = new_metrics()
    metrics.write(call_record(finish_reason=finish_reason, has_content=False))
    metrics.write(call_record(finish_reason=finish_reason))
    metrics.write(call_record(finish_reason="stop", has_content=False))
    assert samples(metrics)["empty_length_answers_total", ("qwen",)] == 1


@pytest.mark.parametrize("changes", [{"estimated": True}, {"usage": Usage()}, {"estimated_prompt": 0}])
def test_the_estimates_error_is_measured_on_real_counts_only(changes: dict[str, Any]) -> None:
    metrics = new_metrics()
    metrics.write(call_record(**changes))
    assert not [name for name, _ in samples(metrics) if name.startswith("token_estimate")]


def test_gauges_are_read_at_the_scrape() -> None:
    metrics = new_metrics()
    assert not [name for name, _ in samples(metrics) if name in ("inflight", "cap", "replica_up")]
    queue = QueueStatus("qwen", 256, {CallClass.SHORT: 7, CallClass.LONG: 0})
    fleet = FakeFleet(replica_list=[replica_status(inflight=3, cap=48)], queue_list=[queue])
    metrics.watch(fleet)
    found = samples(metrics)
    assert (found["inflight", ("dp0",)], found["cap", ("dp0",)], found["replica_up", ("dp0",)]) == (3, 48, 1)
    assert (found["queue_depth", ("short", "qwen")], found["queue_depth", ("long", "qwen")]) == (7, 0)
    fleet.replica_list = [replica_status(up=False)]
    assert samples(metrics)["replica_up", ("dp0",)] == 0


def test_a_forbidden_model_is_counted_as_an_unknown_one() -> None:
    metrics = new_metrics()
    metrics.write(refused_record(model="qwen"))
    metrics.write(refused_record(model="no-such-model", team=""))
    found = samples(metrics)
    assert found["requests_total", ("unknown", "refused", "chat")] == 1
    assert found["requests_total", ("unknown", "refused", "unknown")] == 1


def test_a_reload_changes_the_names_known() -> None:
    metrics = new_metrics()
    metrics.write(call_record(model="new"))
    metrics.know(["qwen", "new"], ["chat"])
    metrics.write(call_record(model="new"))
    found = samples(metrics)
    assert found["requests_total", ("unknown", "ok", "chat")] == found["requests_total", ("new", "ok", "chat")] == 1


def test_h5_series_are_constant_under_random_names() -> None:
    metrics = new_metrics()

    def storm(start: int) -> int:
        for i in range(start, start + 1_000):
            metrics.write(refused_record(model=f"model-{i}", team=f"team-{i}", key=f"key-{i}", request_id=f"id-{i}"))
            metrics.write(call_record(model=f"model-{i}", team=f"team-{i}", finish_reason=f"reason-{i}"))
        return len(samples(metrics))

    assert storm(0) == storm(1_000) == storm(2_000)


def test_a7_memory_is_flat_over_ten_thousand_unknown_models() -> None:
    metrics = new_metrics()
    metrics.write(refused_record(model="first"))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for i in range(10_000):
            metrics.write(refused_record(model=f"model-{i}" * 10))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000  # bytes; a kept name each would be a megabyte


def test_reasons_are_bounded_and_none_is_lost() -> None:
    metrics = new_metrics()
    for i in range(1_000):
        metrics.rejected(f"reason-{i}")
        metrics.retried(f"reason-{i}")
    found = samples(metrics)
    for name in ("rejections_total", "retries_total"):
        values = [value for (sample, _), value in found.items() if sample == name]
        assert len(values) == 65
        assert sum(values) == 1_000
        assert found[name, ("other",)] == 1_000 - 64


def test_series_are_bounded_and_none_is_lost() -> None:
    counter = Counter("x_total", "x", ("a", "b"), series_max=2)
    histogram = Histogram("x_seconds", "x", (1.0,), ("a", "b"), series_max=2)
    for i in range(10):
        counter.add((str(i), "b"))
        histogram.observe((str(i), "b"), 0.5)
    assert {sample.labels["a"]: sample.value for sample in counter.family().samples} == {"0": 1, "1": 1, "other": 8}
    assert {s.labels["a"]: s.value for s in histogram.family().samples if s.name.endswith("_count")} == {
        "0": 1,
        "1": 1,
        "other": 8,
    }


def test_two_gateways_in_one_process_share_nothing() -> None:
    first, second = new_metrics(), new_metrics()
    first.write(call_record())
    assert ("requests_total", ("qwen", "ok", "chat")) in samples(first)
    assert ("requests_total", ("qwen", "ok", "chat")) not in samples(second)


def test_label_values_are_escaped() -> None:
    name = 'odd"\\\nname'
    metrics = Metrics([name], ["chat"])
    metrics.write(call_record(model=name))
    assert samples(metrics)["requests_total", (name, "ok", "chat")] == 1


def test_the_process_is_measured_too() -> None:
    page = b"".join(new_metrics().page())
    assert b"process_resident_memory_bytes" in page
    assert b"python_info" in page


def test_a6_the_page_comes_in_pieces() -> None:
    pieces = list(new_metrics().page())
    assert all(piece.count(b"# TYPE") <= 1 for piece in pieces)
    assert len(pieces) > len(SERIES_LABELS)

"""Every metric of the gateway in one table.

Labels come from closed sets only: configured models, teams and replicas, and the enums of ``domain``.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ports import Fleet
from gateway.telemetry.series import PREFIX, Counter, Histogram

LATENCY_S = (
    *(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0),
)
WAIT_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0)
TOKEN_GAP_S = (0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)
OVERHEAD_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
ERROR_RATIO = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0)

REASONS_MAX = 64
BY_CLASS = ("model", "class")


class Table(Collector):
    """What is counted, one attribute a metric."""

    def __init__(self) -> None:
        self.requests = Counter("requests_total", "Calls by how they ended", ("model", "team", "outcome"))
        self.ttft = Histogram(
            "ttft_seconds", "From the whole request to the first token, waiting included", LATENCY_S, BY_CLASS
        )
        self.tpot = Histogram("tpot_seconds", "Mean gap between tokens after the first", TOKEN_GAP_S, BY_CLASS)
        self.e2e = Histogram(
            "e2e_seconds",
            "From the whole request to the answer's end, for calls sent to a replica",
            LATENCY_S,
            BY_CLASS,
        )
        self.queue_wait = Histogram(
            "queue_wait_seconds", "Wait for a permit, of calls that got or awaited one", WAIT_S, BY_CLASS
        )
        self.overhead = Histogram(
            "overhead_seconds", "What the gateway itself took before dispatch, waiting excluded", OVERHEAD_S
        )
        self.tokens = Counter(
            "tokens_total",
            "Tokens spent; kind cached is the part of prompt found in a prefix cache",
            ("team", "model", "kind"),
        )
        self.rejections = Counter(
            "rejections_total", "Requests the gateway turned away", ("reason",), series_max=REASONS_MAX
        )
        self.retries = Counter(
            "retries_total",
            "Attempts that failed before the first byte and went to another replica",
            ("reason",),
            series_max=REASONS_MAX,
        )
        self.routes = Counter("routes_total", "Calls by the replica chosen and why", ("replica", "reason"))
        self.prefix_actual = Counter(
            "prefix_actual_tokens_total", "Prompt tokens the replica reports from its prefix cache", ("replica",)
        )
        self.loop_lag = Histogram("loop_lag_seconds", "How much later than asked the event loop came back", LAG_S)
        self.estimate_error = Histogram(
            "token_estimate_error_ratio",
            "Estimated minus real prompt tokens, over the real ones",
            ERROR_RATIO,
            ("model",),
        )
        self.empty_length = Counter(
            "empty_length_answers_total", "Answers that ran out of tokens before they had any content", ("model",)
        )

    def collect(self) -> Iterator[Metric]:
        """Every family, those without a series too, so that the page shows what there is."""
        return (row.family() for row in vars(self).values())


class FleetGauges(Collector):
    """What is true at the moment of the scrape, read from the fleet instead of kept twice."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None

    def collect(self) -> Iterator[Metric]:
        """Permits taken and allowed, replicas up, calls waiting."""
        inflight = _gauge("inflight", "Permits taken", ("replica",))
        cap = _gauge("cap", "Permits allowed at this moment", ("replica",))
        up = _gauge("replica_up", "1 when calls may be sent there", ("replica",))
        depth = _gauge("queue_depth", "Calls waiting for a permit", ("model", "class"))
        for replica in self.fleet.replicas() if self.fleet else ():
            inflight.add_metric((replica.name,), replica.inflight)
            cap.add_metric((replica.name,), replica.cap)
            up.add_metric((replica.name,), replica.up)
        for queue in self.fleet.queues() if self.fleet else ():
            for call_class, waiting in queue.waiting.items():
                depth.add_metric((queue.model, call_class), waiting)
        yield from (inflight, cap, up, depth)


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)

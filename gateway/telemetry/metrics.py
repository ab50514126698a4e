"""How a call's record becomes numbers.

What a client makes up (a model name, a path, a key) never becomes a label value, so nobody can grow the page or the
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from gateway.domain import Outcome
from gateway.errors import ModelNotFound
from gateway.ports import CallRecord, Fleet
from gateway.telemetry.table import FleetGauges, Table

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
UNKNOWN = "unknown"

# Endings in which the gateway itself said no; the rest are the client's or the replica's doing.
REJECTED = frozenset({Outcome.REFUSED, Outcome.QUEUE_FULL, Outcome.QUEUE_TIMEOUT, Outcome.NO_REPLICA, Outcome.DRAINING})
# "Out of tokens" as chat and completions, messages, and responses say it.
OUT_OF_TOKENS = frozenset({"length", "max_tokens", "max_output_tokens"})


class Metrics:
    """Counts calls and events, and renders the page Prometheus reads. Is a ``RecordSink`` and ``Events``.

    ``models`` and ``teams`` are the configured names: every other name is counted as ``unknown``. A record costs
    about 6 us. To be used from one event loop.
    """

    def __init__(self, models: Iterable[str], teams: Iterable[str]) -> None:
        self._table = Table()
        self._gauges = FleetGauges()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._table)
        self._registry.register(self._gauges)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self.know(models, teams)

    def know(self, models: Iterable[str], teams: Iterable[str]) -> None:
        """Set the names that may become label values; a reload calls this again. Old counts stay."""
        self._models = {name: name for name in models}
        self._teams = {name: name for name in teams}

    def watch(self, fleet: Fleet) -> None:
        """Read the gauges from ``fleet`` from now on."""
        self._gauges.fleet = fleet

    def write(self, record: CallRecord) -> None:
        """Count one call."""
        model = self._models.get(record.model, UNKNOWN)
        if record.reason == ModelNotFound.code:  # a forbidden model looks like one that does not exist
            model = UNKNOWN
        team = self._teams.get(record.team, UNKNOWN)
        self._table.requests.add((model, team, record.outcome))
        if record.outcome in REJECTED:
            self._table.rejections.add((record.reason or record.outcome,))
        if record.attempts or record.queue_s:
            self._time(record, model)
            self._count_tokens(record, model, team)

    def retried(self, reason: str) -> None:
        """Count a failed attempt that goes to another replica."""
        self._table.retries.add((reason,))

    def rejected(self, reason: str) -> None:
        """Count a connection or request turned away before it became a call."""
        self._table.rejections.add((reason,))

    def lagged(self, seconds: float) -> None:
        """Observe the event loop's lateness."""
        self._table.loop_lag.observe((), seconds)

    def page(self) -> Iterator[bytes]:
        """The page in Prometheus' text format, a metric at a time.

        A line costs 11 us to render, a big department has thousands: whoever serves the page lets other work run
        between the pieces.
        """
        for family in self._registry.collect():
            yield generate_latest(_Family(family))

    def _time(self, record: CallRecord, model: str) -> None:
        key = (model, record.call_class or UNKNOWN)
        self._table.queue_wait.observe(key, record.queue_s)
        if not record.attempts:
            return
        self._table.e2e.observe(key, record.e2e_s)
        self._table.overhead.observe((), record.overhead_s)
        if record.ttft_s is not None:
            self._table.ttft.observe(key, record.ttft_s)
        if record.tpot_s is not None:
            self._table.tpot.observe(key, record.tpot_s)
        if record.route is not None:
            self._table.routes.add((record.replica, record.route))

    def _count_tokens(self, record: CallRecord, model: str, team: str) -> None:
        usage = record.usage
        if usage.prompt:
            self._table.tokens.add((team, model, "prompt"), usage.prompt)
            if record.estimated_prompt and not record.estimated:
                self._table.estimate_error.observe((model,), abs(record.estimated_prompt - usage.prompt) / usage.prompt)
        if usage.cached:
            self._table.tokens.add((team, model, "cached"), usage.cached)
            self._table.prefix_actual.add((record.replica,), usage.cached)
        if usage.completion:
            self._table.tokens.add((team, model, "completion"), usage.completion)
        if not record.has_content and record.finish_reason in OUT_OF_TOKENS:
            self._table.empty_length.add((model,))


class _Family(Collector):
    """One metric, for a renderer that wants a collector."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """The metric."""
        yield self._family

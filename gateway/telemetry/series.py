"""Counters and histograms that cost a dict access each, shown to prometheus_client only when it scrapes.

prometheus_client's own children take a lock for every number (1.3 us an increment, 2.6 us an observation); a call
touches fourteen of them. These belong to one event loop: it alone writes them and it alone renders the page.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

PREFIX = "gateway_"
OTHER = "other"

Labels = tuple[str, ...]


class Counter:
    """A count for each combination of label values, at most ``series_max`` of them.

    The label sets are closed already; the bound is for the day one of them is not. What comes after it is counted
    under ``other``, so that the sum stays right.
    """

    __slots__ = ("_values", "help", "labels", "name", "series_max")

    def __init__(self, name: str, text: str, labels: Labels = (), *, series_max: int = 10_000) -> None:
        self.name, self.help, self.labels, self.series_max = name, text, labels, series_max
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, key: Labels, amount: float = 1.0) -> None:
        """Add ``amount`` to the series of ``key`` (one value for each label)."""
        values = self._values
        try:
            values[key] += amount
        except KeyError:
            if len(values) >= self.series_max:
                key = (OTHER,) * len(self.labels)
            values[key] = values.get(key, 0.0) + amount

    def family(self) -> Metric:
        """The numbers as of now."""
        family = CounterMetricFamily(PREFIX + self.name, self.help, labels=self.labels)
        for key, value in self._values.items():
            family.add_metric(key, value)
        return family


class Histogram:
    """Observations in buckets for each combination of label values, at most ``series_max`` of them.

    ``edges`` are the upper bounds of the buckets, inclusive and ascending; a last one without bound is implied.
    """

    __slots__ = ("_edges", "_names", "_series", "help", "labels", "name", "series_max")

    def __init__(
        self, name: str, text: str, edges: tuple[float, ...], labels: Labels = (), *, series_max: int = 500
    ) -> None:
        self.name, self.help, self.labels, self.series_max = name, text, labels, series_max
        self._edges = edges
        self._names = [*map(str, map(float, edges)), "+Inf"]
        self._series: dict[Labels, list[float]] = {} if labels else {(): self._empty()}

    def observe(self, key: Labels, value: float) -> None:
        """Count ``value`` in the series of ``key``."""
        series = self._series.get(key) or self._open(key)
        series[bisect_left(self._edges, value)] += 1
        series[-1] += value

    def family(self) -> Metric:
        """The numbers as of now; buckets are cumulative, as Prometheus wants them."""
        family = HistogramMetricFamily(PREFIX + self.name, self.help, labels=self.labels)
        for key, (*counts, total) in self._series.items():
            family.add_metric(key, list(zip(self._names, accumulate(counts), strict=True)), total)
        return family

    def _open(self, key: Labels) -> list[float]:
        if len(self._series) >= self.series_max:
            key = (OTHER,) * len(self.labels)
        return self._series.setdefault(key, self._empty())

    def _empty(self) -> list[float]:
        return [0.0] * (len(self._names) + 1)  # one count a bucket, then the sum of the values

"""Percentiles and fairness: arithmetic on samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

import msgspec

CURVE_STEPS = 100


class Distribution(msgspec.Struct, frozen=True):
    """What there is to say of samples. ``curve`` are the quantiles 0, 0.01 … 1."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float
    curve: tuple[float, ...]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0–1) of the samples lie, straight lines between them (numpy's default).

    ``ordered`` is sorted and not empty.
    """
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def distribution(samples: Iterable[float]) -> Distribution | None:
    """The samples' distribution; ``None`` of nothing."""
    ordered = sorted(samples)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=fsum(ordered) / len(ordered),
        p50=quantile(ordered, 0.50),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        max=ordered[-1],
        curve=tuple(quantile(ordered, step / CURVE_STEPS) for step in range(CURVE_STEPS + 1)),
    )


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index of non-negative ``values``: 1 if all are equal, 1/n if one has everything.

    R. Jain, D. Chiu, W. Hawe, 1984. ``None`` if there is nothing to share.
    """
    squares = fsum(value * value for value in values)
    return fsum(values) ** 2 / (len(values) * squares) if squares else None

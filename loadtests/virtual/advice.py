"""What a sweep says about one fleet: which setting to take, and why.

Settings met the same seeds, so they are compared seed by seed. One is *alike* the best if it is within ``ALIKE`` of
it, or if the difference is no larger than twice its standard error over the seeds: then the sweep cannot tell them
apart. A setting is only worth changing for something that can be told from what is configured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from loadtests.virtual.settings import CONFIGURED, Change
from loadtests.virtual.sweep import Row

ALIKE = 0.01


class Advice(msgspec.Struct, frozen=True):
    """The setting to take (``CONFIGURED``: leave it), those that are as good, and the reason."""

    fleet: str
    take: Change
    alike: tuple[Change, ...]
    reason: str


def advise(rows: Sequence[Row]) -> Advice:
    """The advice of one fleet's rows (best first, at least one)."""
    best = rows[0]
    alike = tuple(row.change for row in rows if is_alike(best, row))
    kept = next((row for row in rows if row.change == CONFIGURED and row.change in alike), None)
    taken = kept or best
    if not best.goodput_per_s:
        return Advice(best.fleet, taken.change, alike, "nothing was good under any setting: too much for this fleet")
    reason = f"{taken.goodput_per_s:.3f} good calls a second" + _others(rows, alike, taken)
    if any(row.change.cap is not None for row in rows) and not any(binds(row) for row in rows):
        most = max(count for row in rows for run in row.runs for count in run.inflight_max.values())
        reason += (
            f"; no cap was ever reached (at most {most} calls at once on a replica): this load says nothing of caps"
        )
    return Advice(best.fleet, taken.change, alike, reason)


def is_alike(best: Row, row: Row) -> bool:
    """Whether the sweep cannot tell ``row`` from ``best``."""
    lost = [one.goodput_per_s - other.goodput_per_s for one, other in zip(best.runs, row.runs, strict=True)]
    behind = fmean(lost)
    if behind <= ALIKE * best.goodput_per_s:
        return True
    return len(lost) > 1 and behind <= 2 * stdev(lost) / sqrt(len(lost))


def binds(row: Row) -> bool:
    """Whether the cap held anybody back: a replica was full, or somebody waited."""
    return any(
        run.queued_max > 0 or any(run.inflight_max[name] >= cap for name, cap in run.caps.items()) for run in row.runs
    )


def named(change: Change) -> str:
    """A change in words."""
    words = [f"{name} {value}" for name, value in change._asdict().items() if value is not None]
    return ", ".join(words) or "as configured"


def _others(rows: Sequence[Row], alike: Sequence[Change], taken: Row) -> str:
    def told(kind: str, found: Sequence[Row]) -> str:
        each = (f"{named(row.change)}{_against(row, taken)}" for row in found)
        return f"; {kind}: {', '.join(each)}" if found else ""

    same = [row for row in rows if row.change in alike and row is not taken]
    return told("not to be told apart", same) + told("worse", [row for row in rows if row.change not in alike])


def _against(row: Row, taken: Row) -> str:
    return f" ({row.goodput_per_s / taken.goodput_per_s - 1:+.1%})"

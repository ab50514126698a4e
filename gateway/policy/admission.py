"""What a refused caller is told about coming back."""

from __future__ import annotations

RETRY_AFTER_MIN_S = 1.0


def retry_after_s(waiting: int, cap: int, wait_s: float) -> float:
    """Seconds after which trying again makes sense: the share of ``wait_s`` that the queue ahead will take.

    A queue as long as the fleet's permits turns over once in about the wait limit at worst, so the wait is
    proportional to ``waiting / cap``, at least one second and never more than ``wait_s``.
    """
    ahead = waiting / max(cap, 1)
    return min(max(RETRY_AFTER_MIN_S, ahead * wait_s / 4), max(wait_s, RETRY_AFTER_MIN_S))

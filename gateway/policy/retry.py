"""When a call may try another replica: before its first byte, within its attempts and the model's retry budget.

The budget is the token bucket of Finagle and Linkerd: each call pays in ``budget_share``, a retry takes one, and
``budget_burst`` is the most that can be saved. In an outage it bounds the extra load on what still works.
"""

from __future__ import annotations

from gateway.domain import RetrySpec

RETRYABLE_STATUSES = frozenset({502, 503, 504})


def deposit(balance: float, spec: RetrySpec) -> float:
    """The budget after one more call came in."""
    return min(spec.budget_burst, balance + spec.budget_share)


def withdraw(balance: float, attempts: int, spec: RetrySpec) -> float | None:
    """The budget after one retry by a call that made ``attempts`` so far, ``None`` if it may not."""
    if attempts >= spec.attempts_max or balance < 1.0:
        return None
    return balance - 1.0


def retryable(status: int) -> bool:
    """Whether an answer says that nothing was started here, so another replica may be asked."""
    return status in RETRYABLE_STATUSES

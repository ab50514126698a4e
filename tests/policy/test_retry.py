"""The retry budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import RetrySpec
from gateway.policy.retry import deposit, retryable, withdraw

SPECS = st.builds(
    RetrySpec,
    attempts_max=st.integers(1, 5),
    budget_share=st.floats(0, 1),
    budget_burst=st.floats(0, 20),
)


@given(SPECS, st.lists(st.integers(1, 5), max_size=300))
def test_e2_retries_never_pass_the_share_of_the_calls_and_the_burst(spec: RetrySpec, calls: list[int]) -> None:
    balance, retries = spec.budget_burst, 0
    for attempts_wanted in calls:
        balance = deposit(balance, spec)
        assert 0 <= balance <= spec.budget_burst
        for attempt in range(1, attempts_wanted):
            after = withdraw(balance, attempt, spec)
            if after is None:
                break
            assert attempt < spec.attempts_max
            balance, retries = after, retries + 1
    assert retries <= spec.budget_burst + spec.budget_share * len(calls) + 1e-6


def test_e2_attempts_are_bounded_even_with_a_full_budget() -> None:
    spec = RetrySpec(attempts_max=3, budget_burst=10.0)
    assert [withdraw(10.0, attempts, spec) for attempts in (1, 2, 3, 4)] == [9.0, 9.0, None, None]


def test_a_budget_of_nothing_retries_nothing() -> None:
    spec = RetrySpec(budget_share=0.0, budget_burst=0.0)
    assert withdraw(deposit(0.0, spec), 1, spec) is None


def test_a_smaller_burst_after_a_reload_takes_hold_at_once() -> None:
    assert deposit(100.0, RetrySpec(budget_burst=5.0)) == 5.0


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, False), (400, False), (429, False), (500, False), (502, True), (503, True), (504, True)],
)
def test_e2_what_may_be_tried_elsewhere(status: int, expected: bool) -> None:
    assert retryable(status) is expected

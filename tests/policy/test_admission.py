"""When a refused caller should come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admission import retry_after_s


@given(st.integers(0, 100_000), st.integers(0, 10_000), st.floats(0, 3_600))
def test_it_is_at_least_a_second_and_at_most_the_wait_limit(waiting: int, cap: int, wait_s: float) -> None:
    assert 1.0 <= retry_after_s(waiting, cap, wait_s) <= max(wait_s, 1.0)


@given(st.integers(0, 1_000), st.integers(1, 1_000), st.floats(1, 600))
def test_longer_queues_send_callers_away_longer(waiting: int, cap: int, wait_s: float) -> None:
    assert retry_after_s(waiting, cap, wait_s) <= retry_after_s(waiting + 10, cap, wait_s)
    assert retry_after_s(waiting, cap + 10, wait_s) <= retry_after_s(waiting, cap, wait_s)


def test_figures() -> None:
    assert [retry_after_s(waiting, 64, 30.0) for waiting in (0, 64, 256, 10_000)] == [1.0, 7.5, 30.0, 30.0]

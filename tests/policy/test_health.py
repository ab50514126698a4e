"""Breaker and probe as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import BreakerSpec
from gateway.policy.health import CLOSED, Breaker, BreakerState, ProbeState, counts_as_failure

SPEC = BreakerSpec(failures=3, open_s=10.0)


def opened(at_s: float = 0.0) -> Breaker:
    breaker = CLOSED
    for _ in range(SPEC.failures):
        breaker = breaker.failed(at_s, SPEC)
    return breaker


def test_e1_it_opens_at_the_last_failure_in_a_row_and_half_opens_later() -> None:
    breaker = CLOSED.failed(0.0, SPEC).failed(1.0, SPEC)
    assert breaker.allows(1.0, SPEC)
    assert breaker.succeeded().failed(2.0, SPEC).failed(3.0, SPEC).allows(3.0, SPEC)
    breaker = breaker.failed(2.0, SPEC)
    assert [breaker.allows(t, SPEC) for t in (2.0, 11.9, 12.0)] == [False, False, True]
    states = [breaker.state(t, SPEC) for t in (2.0, 11.9, 12.0)]
    assert states == [BreakerState.OPEN, BreakerState.OPEN, BreakerState.HALF_OPEN]


def test_e1_half_open_lets_exactly_one_through() -> None:
    trying = opened().started()
    assert not trying.allows(10.0, SPEC)
    assert trying.succeeded() == CLOSED
    again = trying.failed(10.0, SPEC)
    assert [again.allows(t, SPEC) for t in (10.0, 19.9, 20.0)] == [False, False, True]


def test_e1_an_abandoned_trial_frees_its_place() -> None:
    assert opened().started().abandoned().allows(10.0, SPEC)
    assert CLOSED.abandoned() == CLOSED
    assert CLOSED.started() == CLOSED


@pytest.mark.parametrize("status", [200, 400, 401, 404, 413, 422, 429, 503])
def test_e1_no_failure_of_the_replica(status: int) -> None:
    assert not counts_as_failure(status)


@pytest.mark.parametrize("status", [500, 502, 504])
def test_e1_failures_of_the_replica(status: int) -> None:
    assert counts_as_failure(status)


STEPS = st.lists(st.tuples(st.sampled_from(["fail", "succeed", "start", "abandon"]), st.floats(0, 6)))


@given(STEPS, st.integers(1, 4))
def test_e1_whatever_happens_it_recovers_and_never_lets_two_try(steps: list[tuple[str, float]], failures: int) -> None:
    spec = BreakerSpec(failures=failures, open_s=10.0)
    breaker, now_s = CLOSED, 0.0
    for step, passed_s in steps:
        now_s += passed_s
        match step:
            case "fail":
                breaker = breaker.failed(now_s, spec)
            case "succeed":
                breaker = breaker.succeeded()
            case "start" if breaker.allows(now_s, spec):
                was_open = breaker.state(now_s, spec) is not BreakerState.CLOSED
                breaker = breaker.started()
                assert breaker.allows(now_s, spec) is not was_open
            case _:
                breaker = breaker.abandoned()
        assert breaker.allows(now_s, spec) or breaker.state(now_s, spec) is not BreakerState.CLOSED
    assert breaker.abandoned().allows(now_s + 10.0, spec)


def test_e8_a_refused_probe_is_certain_and_a_silent_one_the_second_time() -> None:
    up = ProbeState(up=True)
    assert up.failed("refused", refused=True).up is False
    once = up.failed("slow", refused=False)
    assert once.up is True
    assert once.failed("slow", refused=False) == ProbeState(up=False, failures=2, why="slow")
    assert once.passed().failed("slow", refused=False).up is True


def test_e8_before_the_first_probe_anything_goes_and_one_failure_decides() -> None:
    assert ProbeState().up is None
    assert ProbeState().failed("slow", refused=False).up is False
    assert ProbeState().failed("slow", refused=False).passed() == ProbeState(up=True)

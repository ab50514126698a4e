"""Loops that look after everything else go on whatever one step of them does."""

from __future__ import annotations

import logging

import pytest

from gateway.proxy.tasks import going_on


def test_a_step_that_fails_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    done = []
    with caplog.at_level(logging.ERROR):
        for step in range(3):
            with going_on("a sweep"):
                if step == 1:
                    raise ZeroDivisionError
                done.append(step)
    assert done == [0, 2]
    assert [record.getMessage() for record in caplog.records] == ["a sweep failed"]


def test_being_told_to_end_is_no_failure() -> None:
    with pytest.raises(KeyboardInterrupt), going_on("a sweep"):
        raise KeyboardInterrupt

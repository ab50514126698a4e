"""The cross-check of counts: exact where everything is known, as wide as need be where not, never silent."""

from __future__ import annotations

import pytest

from loadtests.report.result import OK, UNFINISHED, Check, ReplicaShare
from loadtests.runner.verify import verify
from tests.loadtests.test_report import call


def share(prompt: float, output: float, **more: object) -> ReplicaShare:
    return ReplicaShare("http://x", prompt_tokens=prompt, generation_tokens=output, **more)  # type: ignore[arg-type]


def checked(calls: list, replicas: dict[str, ReplicaShare]) -> dict[str, Check]:
    return {check.name: check for check in verify(calls, replicas)}


def test_counts_that_agree() -> None:
    found = checked([call(0), call(1)], {"a": share(150, 10), "b": share(50, 12)})
    assert [found[name].passed for name in ("completion tokens", "prompt tokens", "answer lengths", "chunks")] == [
        True
    ] * 4


@pytest.mark.parametrize(("prompt", "output"), [(200, 21), (200, 23), (199, 22), (201, 22)])
def test_a_single_token_is_a_mismatch(prompt: int, output: int) -> None:
    found = checked([call(0), call(1)], {"a": share(prompt, output)})
    assert False in (found["completion tokens"].passed, found["prompt tokens"].passed)


def test_a_cut_call_may_have_cost_what_it_asked_for_and_no_more() -> None:
    cut = call(1, outcome=UNFINISHED, chunks=4, prompt_tokens=None, completion_tokens=None)
    for output, passed in ((14, False), (15, True), (22, True), (23, False)):
        assert checked([call(0), cut], {"a": share(200, output)})["completion tokens"].passed is passed


def test_a_refusal_costs_nothing() -> None:
    refused = call(1, outcome="503 queue_full", first_s=None, chunks=0, prompt_tokens=None, completion_tokens=None)
    assert checked([call(0), refused], {"a": share(100, 11)})["completion tokens"].passed
    assert checked([call(0), refused], {"a": share(100, 12)})["completion tokens"].passed is False


def test_what_cannot_be_checked_says_why() -> None:
    silent = call(0, completion_tokens=None, prompt_tokens=None)
    for calls, replicas, said in (
        ([call(0)], {}, "no engine"),
        ([call(0)], {"a": share(1, 1), "b": ReplicaShare("http://y", reached=False)}, "could not be read: b"),
        ([silent], {"a": share(100, 11)}, "1 of 1 answers told no usage"),
    ):
        check = checked(calls, replicas)["completion tokens"]
        assert check.passed is None
        assert said in check.said


def test_answers_of_another_length_are_another_load() -> None:
    found = checked([call(0, completion_tokens=10, chunks=10)], {"a": share(100, 10)})
    assert found["answer lengths"].passed is False


@pytest.mark.parametrize("chunks", [0, 12])
def test_more_chunks_than_tokens_are_impossible(chunks: int) -> None:
    assert checked([call(0, chunks=chunks, outcome=OK)], {"a": share(100, 11)})["chunks"].passed is False


def test_caps() -> None:
    over = share(0, 0, cap=48, inflight_max=49, over_cap_s=0.0)
    assert checked([], {"a": share(0, 0, cap=48, inflight_max=48)})["caps"].passed
    assert checked([], {"a": over})["caps"].passed is False
    assert checked([], {"a": share(0, 0, cap=48)})["caps"].passed is None
    assert checked([], {"a": share(0, 0)})["caps"].passed is None

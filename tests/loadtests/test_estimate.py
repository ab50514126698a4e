"""The measurement of estimates: what it writes, how it judges, and what it says where it cannot measure."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from gateway.domain import Estimate
from loadtests.__main__ import app
from loadtests.estimate import report
from loadtests.estimate.environment import Environment, NotToBeHad
from loadtests.estimate.prompts import MIXED, TOOLS, Writer
from loadtests.estimate.replay import CONTEXT_TOKENS, Seen, arrivals, fate

TOOL = {"type": "function", "function": {"name": "f", "description": "d" * 100}}


def writer(seed: int) -> Writer:
    return Writer({"english": ["some words\nand more"] * 9, "tables": ["1,2,3"]}, [TOOL], Random(seed))


def near(tokens: int, spread: float, actual: int) -> Seen:
    return Seen("k", "english", 60, Estimate(tokens, int(tokens * (1 - spread)), int(tokens * (1 + spread))), actual)


def test_the_same_seed_writes_the_same_prompts_of_every_key() -> None:
    first, second = (arrivals(writer(3), 4, Random(5)) for _ in range(2))
    assert first == second
    assert sorted({prompt.key for prompt in first}) == ["english", MIXED, "tables", TOOLS]
    for prompt in first:
        body = json.loads(prompt.body)
        assert body["messages"][-1]["role"] == "user"
        assert ("tools" in body) == (prompt.kind == TOOLS)


@pytest.mark.parametrize(
    ("seen", "misplaced", "detoured", "refused", "judged"),
    [
        (near(CONTEXT_TOKENS - 9_000, 0.05, CONTEXT_TOKENS - 9_000), 0, 0, 0, 0),
        (near(CONTEXT_TOKENS - 9_000, 0.05, CONTEXT_TOKENS), 1, 0, 0, 1),
        (near(CONTEXT_TOKENS - 100, 0.05, CONTEXT_TOKENS - 100), 0, 1, 0, 0),
        (near(CONTEXT_TOKENS + 100, 0.05, CONTEXT_TOKENS + 100), 0, 0, 0, 1),
        (near(CONTEXT_TOKENS + 9_000, 0.05, CONTEXT_TOKENS - 1), 0, 1, 1, 0),
    ],
)
def test_where_a_prompt_near_the_limit_goes(
    seen: Seen, misplaced: float, detoured: float, refused: float, judged: float
) -> None:
    assert fate([seen]) == (1, misplaced, detoured, refused, judged)


def test_errors_and_the_verdict() -> None:
    seen = [Seen("k", "english", nth, Estimate(110, 95, 125), 100 if nth % 2 else 130) for nth in range(1, 101)]
    found = report.errors(seen)
    assert found is not None
    assert found.mean == pytest.approx((0.1 + 20 / 130) / 2)
    assert found.within_bounds == 0.5
    assert report.errors([]) is None
    result = report.Result("t", [one._replace(key="english") for one in seen], [])
    assert report.too_far_off([result]) == ["t, english: 12.7%"]


def test_without_the_packages_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make(_: Environment) -> None:
        raise NotToBeHad("no network")

    monkeypatch.setattr(Environment, "ready", lambda _: False)
    monkeypatch.setattr(Environment, "make", make)
    where = tmp_path / "estimate.json"
    run = CliRunner().invoke(app, ["estimate", "--json", str(where)])
    assert run.exit_code == 1
    assert "not measured: no network" in run.output
    assert not where.exists()

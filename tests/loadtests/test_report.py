"""The arithmetic of results, and their files."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.report import page, plots
from loadtests.report.compare import differences, rows
from loadtests.report.result import (
    OK,
    UNFINISHED,
    Call,
    Check,
    Effort,
    Fairness,
    ReplicaShare,
    Result,
    Sample,
    load,
    save,
)
from loadtests.report.statistics import distribution, jain, quantile
from loadtests.report.summary import Gaps, Targets, fairness, groups
from loadtests.report.table import remarks

CLI = CliRunner()


def call(number: int, **more: object) -> Call:
    """An answered chat call sent at ``number`` seconds, first token after 1 s, ended after 3 s."""
    values = {
        "id": f"c{number}", "user": "u", "team": "a", "kind": "chat", "due_s": number, "sent_s": number,
        "asked_prompt": 100, "asked_output": 11, "outcome": OK, "first_s": number + 1.0, "ended_s": number + 3.0,
        "chunks": 11, "prompt_tokens": 100, "completion_tokens": 11,
    }  # fmt: skip
    return Call(**{**values, **more})  # type: ignore[arg-type]


def result(calls: list[Call], **more: object) -> Result:
    gaps = Gaps()
    for one in calls:
        gaps.add(one, [0.02, 0.04])
    values = {
        "scenario": "chat_only", "target": "http://x", "seed": 1, "seconds": 10.0, "speed": 1.0,
        "started_at": "2026-01-01T00:00:00+00:00", "complete": True, "elapsed_s": 10.0, "parameters": {},
        "machine": {"CPU": "1 × x"}, "groups": groups(calls, gaps, 10.0), "fairness": fairness(calls, ("a", "b")),
        "replicas": {"dp0": ReplicaShare(url="http://y", cap=48, generation_tokens=11.0)}, "prefix_hit_rate": 0.5,
        "checks": [Check("caps", True, "fine")], "effort": Effort({"client": 0.1}, 0.2, 2), "notes": ["<b>&"],
        "calls": calls, "samples": [Sample(0.0, {"dp0": 3}, {"dp0": 2}, {"dp0": 1}, 4.0), Sample(1.0, {"dp0": 1})],
    }  # fmt: skip
    return Result(**{**values, **more})  # type: ignore[arg-type]


def test_quantiles_of_known_data() -> None:
    found = distribution([float(value) for value in range(100, 0, -1)])
    assert found is not None
    assert (found.p50, found.max, found.mean, found.count) == (50.5, 100.0, 50.5, 100)
    assert found.p95 == pytest.approx(95.05)
    assert found.p99 == pytest.approx(99.01)
    assert (found.curve[0], found.curve[50], found.curve[100]) == (1.0, 50.5, 100.0)
    assert quantile([7.0], 0.99) == 7.0
    assert distribution([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=300))
def test_quantiles_are_those_of_the_standard_library(samples: list[float]) -> None:
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    found = distribution(samples)
    assert found is not None
    assert found.curve[1:-1] == pytest.approx(cuts, abs=1e-6)


def test_jain() -> None:
    assert jain([5, 5, 5]) == pytest.approx(1.0)
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([1, 2]) == pytest.approx(0.9)
    assert jain([]) is None
    assert jain([0, 0]) is None


def test_groups_count_what_failed_and_what_was_cut_apart() -> None:
    calls = [
        call(0),
        call(1, first_s=4.5, ended_s=9.0),
        call(2, outcome="503 queue_full", first_s=None, completion_tokens=None, prompt_tokens=None),
        call(3, outcome=UNFINISHED, ended_s=None),
        call(4, kind="document", asked_prompt=40_000),
    ]
    gaps = Gaps()
    gaps.add(calls[0], [0.01] * 99 + [0.5])
    gaps.add(calls[4], [0.2, 0.4])
    found = groups(calls, gaps, 10.0)
    assert set(found) == {"all", "chat", "document", "short", "long"}
    chat = found["chat"]
    assert (chat.asked, chat.ok, chat.failures) == (4, 2, {"503 queue_full": 1, "unfinished": 1})
    assert chat.ttft_s is not None
    assert (chat.ttft_s.count, chat.ttft_s.p50) == (2, 2.25)
    assert chat.good == pytest.approx(1 / 3)  # one of three that ended; the cut one does not count
    assert chat.strict == pytest.approx(1 / 3)  # its p99 gap is 0.0149: the one long gap is above
    assert chat.good_per_s == pytest.approx(0.1)
    assert chat.gap_s is not None
    assert (chat.gap_s.count, chat.gap_s.max) == (100, 0.5)
    assert chat.stream_tokens_per_s is not None
    assert chat.stream_tokens_per_s.max == pytest.approx(5.0)
    assert found["long"].good == 0.0
    assert (chat.completion_tokens, chat.cached_tokens) == (22, None)


def test_single_gaps_are_not_judged_where_they_are_not_resolved() -> None:
    found = groups([call(0)], Gaps(), 1.0, Targets(resolution_s=0.06))
    assert found["all"].strict is None
    assert found["all"].good == 1.0


def test_fairness_is_between_teams_that_asked() -> None:
    calls = [call(0), call(1), call(2, team="b", prompt_tokens=1_000, completion_tokens=110)]
    found = fairness(calls, ("a", "b", "idle"))
    assert set(found.teams) == {"a", "b"}
    assert found.teams["a"].share == pytest.approx(222 / 1332)
    assert found.jain_tokens == pytest.approx(1332**2 / (2 * (222**2 + 1110**2)))


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    once = result([call(0), call(1, outcome="503", first_s=None)])
    save(once, tmp_path / "deep" / "a.json")
    assert load(tmp_path / "deep" / "a.json") == once


@pytest.mark.parametrize(("text", "said"), [('{"schema": 99}', "schema 99"), ("{}", "no result"), ("x", "no result")])
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        load(path)


def test_ratios_are_second_over_first_and_absent_where_one_is() -> None:
    slow = [call(0, first_s=2.0), call(1, kind="agent")]
    found = {(row.group, row.name): row for row in rows(result([call(0)]), result(slow))}
    assert found["chat", "TTFT s p95"].ratio == pytest.approx(2.0)
    assert found["agent", "TTFT s p95"].first is None
    assert found["agent", "TTFT s p95"].ratio is None
    assert found["chat", "failed"].ratio is None  # of 0


def test_what_makes_two_runs_incomparable_is_said() -> None:
    one = result([call(0)], parameters={"workload": {"chat_users": 4, "chat": {"think_s": 1}}})
    other = result(
        [call(0)],
        parameters={"workload": {"chat_users": 4, "chat": {"think_s": 2}}},
        seed=2,
        complete=False,
        checks=[Check("caps", False, "60 of 48")],
    )
    assert differences(one, one) == []
    said = "\n".join(differences(one, other))
    for part in ("seed: 1 and 2", "workload.chat.think_s: 1 and 2", "second was broken off", "60 of 48"):
        assert part in said


def test_compare_prints_a_table(tmp_path: Path) -> None:
    save(result([call(0)]), tmp_path / "a.json")
    save(result([call(0, first_s=3.0)]), tmp_path / "b.json")
    shown = CLI.invoke(app, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert shown.exit_code == 0
    assert "3.00 ×" in shown.output
    missing = CLI.invoke(app, ["compare", str(tmp_path / "a.json"), str(tmp_path / "none.json")])
    assert missing.exit_code == 1


def test_an_empty_run_shows_no_figures() -> None:
    empty = result([], fairness=Fairness({}), replicas={}, samples=[], prefix_hit_rate=None, effort=None)
    assert remarks(empty)[0].endswith("–")


@pytest.mark.parametrize("with_plots", [True, False])
def test_the_page_needs_nothing_else(with_plots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if with_plots:
        pytest.importorskip("matplotlib")
    else:
        monkeypatch.setattr(plots, "AVAILABLE", False)
    page.write(
        result([call(0), call(1, outcome="503", first_s=None)], checks=[Check("caps", False, "x<y")]),
        tmp_path / "a.html",
    )
    text = (tmp_path / "a.html").read_text()
    assert text.count("<svg") == (5 if with_plots else 0)
    assert (plots.MISSING.split(":")[0] in text) is not with_plots
    assert "&lt;b&gt;&amp;" in text
    assert "x&lt;y" in text
    for outside in ("<script", "<link", "<img", 'src="'):
        assert outside not in text

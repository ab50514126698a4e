"""The calibration: its verdicts, its command, and the profiles against every measured figure."""

from itertools import count

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.sim.profiles import D1, D2
from loadtests.__main__ import app
from loadtests.calibrate import command
from loadtests.calibrate.command import all_rows
from loadtests.calibrate.loads import Loop, closed_loop, percentile, sampled
from loadtests.calibrate.table import Result, Row, Verdict

FAST = [row for row in all_rows() if not row.slow]
EXPLAINED = {"5 running, 3,843 prompt tok/s: prompt", "5 running, 3,843 prompt tok/s: generation"}


def row(low, high=None, value=0.0, reason=""):
    return Row("D9", "a figure", "s", low, low if high is None else high, lambda: value, "somehow", reason)


@pytest.mark.parametrize("row_", FAST, ids=lambda one: f"{one.deployment} {one.figure}")
def test_fast_rows(row_):
    expected = Verdict.EXPLAINED if row_.figure in EXPLAINED else Verdict.MET
    assert Result(row_, row_.simulate()).verdict is expected


@pytest.mark.slow
@pytest.mark.parametrize("row_", [row for row in all_rows() if row.slow], ids=lambda one: one.figure)
def test_slow_rows(row_):
    assert Result(row_, row_.simulate()).verdict is Verdict.MET


def test_only_the_rows_known_to_be_off_have_a_reason():
    assert {row.figure for row in all_rows() if row.reason} == EXPLAINED


@pytest.mark.parametrize(
    ("row_", "simulated", "ratio", "verdict"),
    [
        (row(10), 10.9, 1.09, Verdict.MET),
        (row(10), 11.2, 1.12, Verdict.OFF),
        (row(10, reason="why"), 8.8, 0.88, Verdict.EXPLAINED),
        (row(11, 13), 12, 1.0, Verdict.MET),
        (row(11, 13), 14.2, 14.2 / 13, Verdict.MET),
        (row(0), 1, float("inf"), Verdict.OFF),
    ],
)
def test_verdicts(row_, simulated, ratio, verdict):
    result = Result(row_, simulated)
    assert result.ratio == pytest.approx(ratio)
    assert result.verdict is verdict


def test_percentile_is_a_value_that_occurred():
    assert [percentile([3, 1, 2, 4], share) for share in (0.0, 0.5, 0.75, 0.99)] == [1, 2, 3, 4]


def test_a_closed_loop_keeps_its_clients_busy_and_is_the_same_every_time():
    loop = Loop(4, 100, 50, 20)
    served = closed_loop(D2, loop)
    assert served == closed_loop(D2, loop)
    assert len(served.ttft_s) == 20
    assert served.output_rate == pytest.approx(4 * 50 / served.e2e_s, rel=0.1)


def test_a_sample_counts_computed_tokens_only():
    seen = sampled(D1, Loop(2, 3_200, 50, 16, cached=1_600), 4)
    assert seen.hit_rate == pytest.approx(0.5, abs=0.02)
    assert seen.prompt_rate / seen.generation_rate == pytest.approx(1_600 / 50, rel=0.2)
    assert 1 <= seen.running <= 2


def run(rows, monkeypatch, *arguments):
    monkeypatch.setattr(command, "all_rows", lambda: rows)
    return CliRunner().invoke(app, ["calibrate", *arguments])


@pytest.mark.parametrize(("off", "code"), [(row(10, value=20.0), 1), (row(10, value=20.0, reason="two rows"), 0)])
def test_exit_code_and_files_tell_what_is_off(monkeypatch, tmp_path, off, code):
    where = tmp_path / "deep" / "out.json"
    done = run([row(10, value=10.0), off], monkeypatch, "--json", str(where))
    assert done.exit_code == code
    written = msgspec.json.decode(where.read_bytes())["rows"]
    assert [one["verdict"] for one in written] == ["met", "off" if code else "explained"]
    page = where.with_suffix(".md").read_text()
    assert "| D9 | a figure | 10 s | 20 | 2.00 |" in page
    assert (off.reason or "without a reason") in page
    assert (off.reason or "without a reason") in done.output


def test_only_and_quick_choose_rows_and_leave_the_results_alone(monkeypatch, tmp_path):
    calls = count()
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    slow = Row("D9", "slow", "", 1, 1, lambda: float(next(calls)), "", slow=True)
    other = Row("D8", "other", "", 1, 1, lambda: float(next(calls)), "")
    assert run([slow, other, row(10, value=10.0)], monkeypatch, "--quick", "--only", "d9").exit_code == 0
    assert next(calls) == 0
    assert not list(tmp_path.iterdir())
    assert run([row(10, value=10.0)], monkeypatch, "--only", "D7").exit_code == 2
    assert run([row(10, value=10.0)], monkeypatch).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"calibration.json", "calibration.md"}

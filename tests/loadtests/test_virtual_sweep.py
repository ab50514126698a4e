"""Sweeps: the grid, what is made of its figures, the advice, and the whole command; and the check against sockets."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import msgspec
import pytest
from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.report import plots
from loadtests.report.result import save
from loadtests.virtual import agree, command, sweep_page
from loadtests.virtual.advice import advise, binds, is_alike, named
from loadtests.virtual.run import run
from loadtests.virtual.settings import CONFIGURED, Change
from loadtests.virtual.sweep import POINTS_MAX, Figures, Load, Point, Row, grid, measured, plan_of, rows
from loadtests.virtual.sweep_page import Sweep, remarks, sweep_of, tables
from loadtests.workloads.mix import SCENARIOS, changed

SMALL = Load("chat_only", 20.0, {"chat_users": 6, "chat.think_s": 1})


def figures(goodput: float, *, most: int = 10, cap: int = 64, queued: int = 0) -> Figures:
    one = {"chat": 1.0, "all": 1.0}
    return Figures(goodput, 0.9, 0.5, 100, 1, one, one, one, {"r": most}, {"r": cap}, queued, 0)


def row(change: Change, *goodputs: float, **more: int) -> Row:
    return Row("D3", change, tuple(figures(goodput, **more) for goodput in goodputs))


def test_a_grid_has_every_combination_and_the_settings_as_they_are():
    points = grid(["D3", "D6"], [32, 64], [8_000, 16_000], ["round_robin"], 3)
    assert len(points) == len(set(points)) == 2 * (2 * 2 + 1) * 3
    assert {point.change for point in points} >= {CONFIGURED, Change(32, 8_000, "round_robin")}
    assert {point.seed for point in points} == {1, 2, 3}
    assert grid(["D3"], [], [], [], 1) == [Point("D3", CONFIGURED, 1)]
    with pytest.raises(ValueError, match=str(POINTS_MAX)):
        grid(["D3"], list(range(1, 101)), list(range(1, 101)), [], 1)


def test_rows_are_sorted_by_goodput_within_a_fleet():
    found = [
        (Point("D6", Change(32), 1), figures(1.0)),
        (Point("D6", Change(64), 1), figures(2.0)),
        (Point("D3", Change(32), 1), figures(3.0)),
    ]
    assert [(one.fleet, one.change.cap) for one in rows(found)] == [("D6", 64), ("D6", 32), ("D3", 32)]


def test_a_setting_that_lacks_a_seed_is_left_out():
    found = [(Point("D6", Change(cap), seed), figures(1.0)) for cap, seed in ((32, 1), (32, 2), (64, 1))]
    assert [one.change.cap for one in rows(found)] == [32]


@pytest.mark.parametrize(
    ("best", "other", "alike"),
    [
        ((1.0, 1.0), (0.995, 0.995), True),  # less than a percent
        ((1.0, 1.0), (0.9, 0.9), False),  # always worse
        ((1.0, 2.0), (1.2, 1.4), True),  # once better, once worse
        ((1.0, 2.0), (0.9, 1.9), False),  # seeds differ more than settings, but always the same way
        ((1.0,), (0.9,), False),  # one seed has no spread
    ],
)
def test_settings_are_compared_seed_by_seed(best, other, alike):
    assert is_alike(row(Change(64), *best), row(Change(32), *other)) is alike


def test_what_is_configured_stays_unless_something_is_better():
    kept = advise([row(Change(64), 1.005, 1.0), row(CONFIGURED, 1.0, 1.0), row(Change(16), 0.5, 0.5, most=16, cap=16)])
    assert kept.take == CONFIGURED
    assert "not to be told apart: cap 64 (+0.2%)" in kept.reason
    assert "worse: cap 16 (-50.0%)" in kept.reason
    changed = advise([row(Change(64), 2.0, 2.0, queued=1), row(CONFIGURED, 1.0, 1.0)])
    assert changed.take == Change(64)
    assert changed.reason == "2.000 good calls a second; worse: as configured (-50.0%)"


def test_a_load_that_reaches_no_cap_says_so():
    advice = advise([row(CONFIGURED, 1.0, 1.0), row(Change(32), 1.0, 1.0, cap=32)])
    assert advice.take == CONFIGURED
    assert "at most 10 calls at once" in advice.reason
    assert not binds(row(CONFIGURED, 1.0))
    assert binds(row(CONFIGURED, 1.0, most=64))
    assert binds(row(CONFIGURED, 1.0, queued=1))


def test_where_nothing_is_good_nothing_is_advised():
    advice = advise([row(Change(64), 0.0, 0.0), row(CONFIGURED, 0.0, 0.0), row(Change(32), 0.0, 0.0)])
    assert advice.take == CONFIGURED
    assert advice.reason.startswith("nothing was good")


def test_changes_have_names():
    assert named(CONFIGURED) == "as configured"
    assert named(Change(32, 8_000)) == "cap 32, long_tokens 8000"


@pytest.mark.slow
def test_a_cap_that_is_too_small_loses():
    points = grid(["D3"], [1, 16], [], [], 2)
    load = replace_load(seconds=60.0, settings={"chat_users": 20, "chat.think_s": 4})
    found = rows(measured(points, load, 1))
    assert found[-1].change == Change(1)
    assert all(run.inflight_max == {"tp4": 1} for run in found[-1].runs)
    assert advise(found).take == CONFIGURED


def replace_load(**more: object) -> Load:
    return msgspec.structs.replace(SMALL, **more)


@pytest.mark.slow
def test_two_processes_find_what_one_does():
    points = grid(["D3"], [4], [], [], 1)
    assert list(measured(points, SMALL, 2)) == list(measured(points, SMALL, 1))


def test_a_setting_that_cannot_be_is_found_before_the_first_run():
    with pytest.raises(ValueError, match="policy"):
        next(measured([Point("D3", CONFIGURED, 1), Point("D3", Change(policy="x"), 1)], SMALL, 1))


def test_tables_show_the_taken_setting_in_bold():
    sweep = sweep_of(SMALL, 2, "0", [row(Change(64), 2.0, 2.1), row(CONFIGURED, 1.0, 1.0)], complete=False)
    (table,) = tables(sweep)
    assert [one.style for one in table.rows] == ["bold", None]
    assert list(table.columns[0].cells) == ["cap 64", "as configured"]
    assert remarks(sweep)[0].startswith("D3: take cap 64")
    assert "broken off" in remarks(sweep)[-1]


@pytest.mark.skipif(not plots.AVAILABLE, reason=plots.MISSING)
@pytest.mark.parametrize(
    ("change", "drawn"), [(Change(8), "by cap"), (Change(None, 9_000), "by long_tokens"), (Change(policy="x"), None)]
)
def test_plots_are_over_what_was_varied(tmp_path, change, drawn):
    sweep = sweep_of(SMALL, 2, "0", [row(change, 2.0, 2.1), row(CONFIGURED, 1.0, 1.0)], complete=True)
    text = sweep_page.save(sweep, tmp_path / "s")[2].read_text()
    assert text.count("<svg") == (2 if drawn else 0)
    assert drawn is None or text.count(drawn) == 2


def test_the_sweep_command_writes_three_files(tmp_path):
    arguments = ["sweep", "--fleet", "D3", "--scenario", "chat_only", "--cap", "2,8", "--seeds", "1", "--seconds", "15"]
    base = tmp_path / "s"
    shown = CliRunner().invoke(app, [*arguments, "--set", "chat_users=5", "--out", str(base)])
    assert shown.exit_code == 0, shown.output
    assert "D3: take" in shown.output
    sweep = msgspec.json.decode(base.with_suffix(".json").read_bytes(), type=Sweep)
    assert {one.change for one in sweep.rows} == {CONFIGURED, Change(2), Change(8)}
    assert "| cap 8 |" in base.with_suffix(".md").read_text()
    page = base.with_suffix(".html").read_text()
    assert ("<svg" in page) is plots.AVAILABLE
    assert "D3: take" in page


def test_a_sweep_broken_off_keeps_what_it_has(tmp_path, monkeypatch):
    real, runs = command.measured, count(1)

    def broken(points, load, processes):
        for one in real(points, load, processes):
            if next(runs) > 2:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(command, "measured", broken)
    arguments = ["sweep", "--fleet", "D3", "--scenario", "chat_only", "--cap", "2,8", "--seeds", "1", "--seconds", "10"]
    shown = CliRunner().invoke(app, [*arguments, "--set", "chat_users=3", "--out", str(tmp_path / "s")])
    assert shown.exit_code == 130
    sweep = msgspec.json.decode((tmp_path / "s.json").read_bytes(), type=Sweep)
    assert not sweep.complete
    assert len(sweep.rows) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cap", "32,x"], "--cap"),
        (["--cap", "0"], "--cap"),
        (["--fleet", "D9"], "no profile"),
        (["--scenario", "x"], "no scenario"),
        (["--set", "chat.nothing=1"], "no such setting"),
    ],
)
def test_the_sweep_command_says_what_is_wrong(arguments, said):
    shown = CliRunner().invoke(app, ["sweep", *arguments])
    assert shown.exit_code == 2
    assert said in shown.output


def socket_like(seed: int = 1):
    """A result as a run with --fleet leaves it, measured in virtual time with delays of its own."""
    point = Point("D3", CONFIGURED, seed)
    load = Load("chat_only", 120.0, {"chat_users": 20, "chat.think_s": 4})
    result = run(replace(plan_of(point, load), jitter_s=agree.JITTER_S, draw=77))
    mix = msgspec.to_builtins(changed(SCENARIOS["chat_only"][1], load.settings))
    result.parameters, result.speed = {"fleet": "D3", "workload": mix, "config": None}, 5.0
    return result


@pytest.mark.slow
def test_equal_loads_agree_and_another_fleet_does_not(tmp_path):
    result = socket_like()
    save(result, tmp_path / "a.json")
    (found,) = agree.compared([tmp_path / "a.json"], 2)
    assert found.agrees
    firsts = {line.group: line for line in found.lines if line.name == "TTFT p95 s"}
    assert set(firsts) == {"all", "chat", "short"}
    assert "| chat | TTFT p95 s |" in agree.markdown(found)
    result.parameters["fleet"] = "D5"
    save(result, tmp_path / "b.json")
    same, other = agree.compared([tmp_path / "a.json", tmp_path / "b.json"], 2)
    assert same.agrees
    assert not other.agrees
    agree.save([same, other], 2, tmp_path / "agree.md")
    assert (tmp_path / "agree.md").read_text().count("| chat | TTFT p95 s |") == 2


def test_agree_says_what_it_cannot_compare(tmp_path):
    result = socket_like()
    result.parameters.pop("fleet")
    save(result, tmp_path / "a.json")
    shown = CliRunner().invoke(app, ["agree", str(tmp_path / "a.json")])
    assert shown.exit_code == 2
    assert "--fleet" in shown.output


def test_verdicts():
    def line(sockets: float, *draws: float) -> agree.Verdict:
        return agree.Line("chat", "TTFT p95 s", sockets, draws).verdict

    assert line(1.0, 0.95, 1.1) is agree.Verdict.WITHIN
    assert line(1.0, 0.9, 1.8) is agree.Verdict.DRAWS
    assert line(1.0, 1.2, 1.8) is agree.Verdict.OFF

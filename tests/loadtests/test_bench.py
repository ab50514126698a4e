"""The benchmark measures, counts failures, says what it did not measure, and leaves no process behind."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loadtests.bench import cases, report, targets
from loadtests.bench.cases import CASES
from loadtests.bench.jobs import Load
from loadtests.bench.run import Bench, Measurement
from loadtests.bench.targets import Direct, Gateway, Naive, Nginx, Site, Target
from loadtests.bench.wire import Wanted, chat_body, wanted

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the benchmark reads /proc")
BY_NAME = {case.name: case for case in CASES}
TINY = Load(connections=4, warm_s=0.05, window_s=0.25, repeats=2)


def tiny(name: str, **changes: object) -> cases.Case:
    return replace(BY_NAME[name], load=msgspec.structs.replace(TINY, **changes), rounds_max=1)


def ran(targets_: list[Target], *cases_: cases.Case) -> Bench:
    bench = Bench(targets_, cases_, rounds=1)
    bench.run()
    return bench


@pytest.mark.slow
def test_direct_and_naive_give_figures_and_end(left: Callable[[], list[str]]) -> None:
    bench = ran([Direct(), Naive()], tiny("calls"), tiny("streams"))
    assert left() == []
    assert [(m.case, m.target) for m in bench.measured] == [
        ("calls", "direct"), ("calls", "fastapi+httpx"), ("streams", "direct"), ("streams", "fastapi+httpx"),
    ]  # fmt: skip
    assert not any(m.failures for m in bench.measured)
    direct, naive = bench.measured[0].figures, bench.measured[1].figures
    assert direct["calls_per_s"] > 0 < naive["cpu_us_per_call"]
    assert "cpu_us_per_call" not in direct
    assert 0 < bench.measured[2].figures["delay_p50_ms"] <= bench.measured[2].figures["delay_p99_ms"]
    assert bench.measured[3].figures["chunks_per_s"] == pytest.approx(4 * 50, rel=0.5)


@pytest.mark.slow
def test_memory_stall_and_abort() -> None:
    bench = ran([Naive()], tiny("memory", rate=20.0), tiny("stall", flood_bytes=20_000_000))
    memory, stall = bench.measured
    assert not memory.failures
    assert memory.figures["rss_idle_mb"] > 5
    assert not stall.failures
    assert "rss_growth_mb" in stall.figures
    (abort,) = ran([Direct()], tiny("abort")).measured
    assert not abort.failures
    assert 0 <= abort.figures["before_headers_p50_ms"] <= abort.figures["before_headers_max_ms"] < 1000
    assert 0 <= abort.figures["mid_stream_max_ms"] < 1000


class Broken(Target):
    """A target that ends at once."""

    name = "broken"

    def command(self, site: Site) -> list[str]:
        return [sys.executable, "-c", "print('cannot: no such thing'); raise SystemExit(3)"]


class Refusing(Naive):
    """A target whose clients have no luck: its upstream answers 404."""

    name = "refusing"

    def command(self, site: Site) -> list[str]:
        return super().command(replace(site, upstream_urls=(site.upstream_urls[0] + "/nowhere",)))


@pytest.mark.slow
def test_a_target_that_does_not_start_is_reported_and_the_others_go_on() -> None:
    bench = ran([Broken(), Direct()], tiny("calls"))
    assert "ended with 3" in bench.absent["broken"]
    assert "cannot: no such thing" in bench.absent["broken"]
    assert [m.target for m in bench.measured] == ["direct"]


def measurement(target: str, number: int, figures: dict[str, float], **failures: int) -> Measurement:
    return Measurement("calls", target, number, figures, failures)


def verdicts(measured: list[Measurement]) -> dict[str, str]:
    found = report.rows(measured, [target.name for target in targets.ALL])
    return {row.figure.title: row.verdict for row in found if row.goal}


@pytest.mark.parametrize(
    ("gateway_us", "failures", "against_nginx", "against_naive"),
    [
        (100.0, {}, "met", "NOT MET"),
        (60.0, {}, "met", "met"),
        (200.0, {}, "NOT MET", "NOT MET"),
        (60.0, {"status 502": 2}, "NOT MET: 2 failed", "NOT MET: 2 failed"),
    ],
)
def test_verdicts(gateway_us: float, failures: dict[str, int], against_nginx: str, against_naive: str) -> None:
    found = verdicts(
        [
            measurement("nginx", 1, {"cpu_us_per_call": 30.0}),
            measurement("fastapi+httpx", 1, {"cpu_us_per_call": 4000.0}),
            measurement("gateway", 1, {"cpu_us_per_call": gateway_us}, **failures),
        ]
    )
    assert found == {"CPU per call ÷ nginx": against_nginx, "CPU per call ÷ naive route": against_naive}


def test_no_verdict_without_something_to_compare_with() -> None:
    gateway = measurement("gateway", 1, {"cpu_us_per_call": 60.0})
    assert set(verdicts([gateway]).values()) == {"not measured"}
    failing = measurement("nginx", 1, {"cpu_us_per_call": 30.0}, **{"connection lost": 1})
    assert verdicts([gateway, failing])["CPU per call ÷ nginx"] == "not measured"
    other_round = measurement("nginx", 2, {"cpu_us_per_call": 30.0})
    assert verdicts([gateway, other_round])["CPU per call ÷ nginx"] == "not measured"


def test_ratios_are_taken_round_by_round() -> None:
    measured = [measurement("nginx", n, {"cpu_us_per_call": us}) for n, us in ((1, 20.0), (2, 40.0), (3, 30.0))]
    measured += [measurement("gateway", n, {"cpu_us_per_call": us}) for n, us in ((1, 60.0), (2, 120.0), (3, 93.0))]
    (row,) = (row for row in report.rows(measured, ["gateway"]) if row.figure.per == "nginx")
    assert row.cells["gateway"].values == pytest.approx((3.0, 3.0, 3.1))
    assert row.cells["gateway"].text(2) == "3.00 (3.00–3.10)"


def test_a_request_says_what_it_wants_wherever_its_json_was_written_anew() -> None:
    answer = Wanted("stream", id="a-1", chunks=7, rate=12.5, step=1)
    body = chat_body(answer, prompt_bytes=5000)
    assert 5000 < len(body) < 6000
    assert wanted(body) == answer
    assert wanted(msgspec.json.format(body)) == answer
    assert wanted(b'{"model":"bench"}') == Wanted()


def test_configurations_are_written(tmp_path: Path) -> None:
    site = Site(8080, ("http://127.0.0.1:1", "http://127.0.0.1:2"), tmp_path)
    assert str(tmp_path / "gateway.yaml") in Gateway().command(site)
    written = (tmp_path / "gateway.yaml").read_text()
    assert "port: 8080" in written
    assert Gateway().headers()["authorization"].removeprefix("Bearer ") not in written  # only its hash
    if Nginx().missing() is None:
        assert subprocess.run([*Nginx().command(site), "-t"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("given", [["--case", "nonsense"], ["--targets", "nonsense"]])
def test_an_unknown_name_is_one_clear_line(given: list[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "loadtests", "bench", *given], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "nonsense" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGKILL))]
)
def test_breaking_off_keeps_what_was_measured_and_ends_every_process(
    number: signal.Signals, tmp_path: Path, left: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    where = tmp_path / "out.json"
    command = [sys.executable, "-m", "loadtests", "bench", "--quick", "--case", "calls"]
    command += ["--targets", "direct,fastapi+httpx", "--rounds", "9", "--json", str(where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "fastapi" in line)
        assert len(left()) >= 2  # the command itself and what it started
        process.send_signal(number)
        process.stdout.read()
    deadline_s = time.monotonic() + 5
    while left() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left() == []
    if number is not signal.SIGKILL:
        assert process.returncode == 130
        assert not list(tmp_path.glob("bench-*"))
        written = msgspec.json.decode(where.read_bytes())
        assert not written["complete"]
        assert [m["target"] for m in written["measured"]] == ["direct"]
        assert "short calls" in where.with_suffix(".md").read_text()


@pytest.mark.slow
def test_a_target_that_answers_badly_is_not_measured() -> None:
    bench = Bench([Refusing()], [tiny("calls")], rounds=1, ready_s=2.0)
    bench.run()
    assert not bench.measured
    assert "404" in bench.absent["refusing"]

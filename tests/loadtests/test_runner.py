"""Runs over sockets: against simulators in this process, broken ones among them, and the whole command."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.sim.faults import Fault, FaultKind
from gateway.sim.profiles import D3
from gateway.sim.server import SimServer
from loadtests.__main__ import app
from loadtests.report.result import OK, UNFINISHED, Result, load
from loadtests.runner.client import Target
from loadtests.runner.engines import Replica
from loadtests.runner.live import shown
from loadtests.runner.run import Plan, Scene, run
from loadtests.workloads.ask import Workload
from loadtests.workloads.mix import scenario

ROOT = Path(__file__).parent.parent.parent
SPEED = 40.0
SMALL = {
    "chat_users": 6, "chat.think_s": 4, "chat.system_tokens": 320, "chat.output_tokens": [5, 30],
    "agents": 1, "agent.think_s": 1, "agent.system_tokens": 160, "agent.opening_tokens": [500, 900],
    "agent.message_tokens": [50, 300], "agent.output_tokens": [5, 20],
}  # fmt: skip


def small(seconds: float = 30.0, **more: object) -> Workload:
    return scenario("chat_only", seed=7, seconds=seconds, settings={**SMALL, **more})


def plan_for(server: SimServer, workload: Workload, **more: object) -> Plan:
    replicas = (Replica("a", server.url, cap=64),)
    values = {"replicas": replicas, "speed": SPEED, "drain_s": 60.0, "sample_s": 0.05}
    return Plan(workload, Target(server.url, "qwen"), **{**values, **more})  # type: ignore[arg-type]


def against(scene: Callable[[SimServer], Awaitable[Result]], **options: object) -> Result:
    """Run ``scene`` against a fresh simulator, which has nothing left to do at the end."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[SimServer]:
        async with SimServer(D3, speed=SPEED, **options) as server:  # type: ignore[arg-type]
            yield server
            assert server.visits.inflight == 0

    async def main() -> Result:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with serving() as server:
            return await scene(server)

    faults: list[dict[str, object]] = []
    result = asyncio.run(main())
    gc.collect()
    assert faults == []
    return result


def passed(result: Result) -> dict[str, bool | None]:
    return {check.name: check.passed for check in result.checks}


def test_a_run_measures_and_its_counts_agree() -> None:
    scenes: list[Scene] = []
    result = against(lambda server: run(plan_for(server, small()), watch=scenes.append))
    assert result.complete
    assert set(passed(result).values()) == {True}
    whole = result.groups["all"]
    assert whole.asked == whole.ok == len(result.calls) > 20
    assert set(result.groups) == {"all", "chat", "agent", "short"}
    assert whole.ttft_s is not None
    assert 0.3 < whole.ttft_s.p50 < 3.0  # of the simulated server, not of this machine
    assert result.replicas["a"].generation_tokens == whole.completion_tokens == sum(c.chunks for c in result.calls)
    assert result.replicas["a"].share == 1.0
    assert result.prefix_hit_rate is not None
    assert 0.3 < result.prefix_hit_rate < 0.95  # histories and the teams' system prompts
    assert whole.cached_tokens == result.replicas["a"].prefix_hits
    assert result.replicas["a"].over_cap_s == 0.0
    assert result.samples
    assert scenes


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_is_shown_as_it_goes(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=150)
    with shown(console) as watch:
        against(lambda server: run(plan_for(server, small(10.0)), watch=watch))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "asked" in text
    assert ("TTFT p50" in text) is terminal


def test_prompts_have_the_size_the_workload_says() -> None:
    result = against(lambda server: run(plan_for(server, small(20.0))))
    assert [call.prompt_tokens for call in result.calls] == [call.asked_prompt for call in result.calls]


def test_somebody_elses_tokens_on_the_engine_fail_the_run() -> None:
    async def scene(server: SimServer) -> Result:
        async def intrude() -> None:
            body = {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
            async with httpx.AsyncClient() as other:
                await other.post(f"{server.url}/v1/chat/completions", json={**body, "ignore_eos": True})

        async with asyncio.TaskGroup() as group:
            running = group.create_task(run(plan_for(server, small(10.0))))
            await asyncio.sleep(0.1)
            group.create_task(intrude())
        return running.result()

    result = against(scene)
    assert passed(result)["completion tokens"] is False
    assert len(result.failed) == 2


def test_stopping_keeps_what_was_measured_and_ends_the_engines_work() -> None:
    async def scene(server: SimServer) -> Result:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.5, stop.set)
        workload = small(3_000.0, **{"chat.output_tokens": [2_000, 3_000], "chat.think_s": 0.5})
        return await run(plan_for(server, workload), stop=stop)

    result = against(scene)
    assert not result.complete
    cut = [call for call in result.calls if call.outcome == UNFINISHED]
    assert cut
    assert all(call.ended_s is None for call in cut)
    assert any(call.first_s is not None for call in cut)
    assert not result.failed
    assert (result.replicas["a"].generation_tokens or 0) < sum(call.asked_output for call in cut)


def test_answers_that_outlast_the_drain_are_unfinished() -> None:
    workload = small(5.0, **{"chat_users": 2, "chat.output_tokens": [30_000, 30_000], "agents": 0})
    result = against(lambda server: run(plan_for(server, workload, drain_s=1.0)))
    assert result.complete
    assert {call.outcome for call in result.calls} == {UNFINISHED}
    assert result.groups["all"].good is None


def test_a_target_that_refuses_is_reported_and_not_hammered() -> None:
    target = Target("http://127.0.0.1:1", "qwen")
    plan = Plan(small(20.0), target, (Replica("a", "http://127.0.0.1:1"),), speed=SPEED)
    result = asyncio.run(run(plan))
    assert result.groups["all"].ok == 0
    assert set(result.groups["all"].failures) == {"connection refused"}
    assert len(result.calls) < 100
    assert result.groups["all"].ttft_s is None
    assert result.prefix_hit_rate is None
    assert not result.replicas["a"].reached
    assert passed(result)["completion tokens"] is None


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(FaultKind.STATUS, times=3, status=503), "503 InternalServerError"),
        (Fault(FaultKind.CLOSE, times=3), "connection lost"),
        (Fault(FaultKind.CLOSE_AFTER, times=3), "connection lost"),
        (Fault(FaultKind.ERROR_AFTER, times=3), "error in the answer: InternalServerError"),
        (Fault(FaultKind.HANG, times=3), "client left: no first token in time"),
    ],
)
def test_failures_by_kind(fault: Fault, outcome: str) -> None:
    async def scene(server: SimServer) -> Result:
        async with httpx.AsyncClient() as client:
            order = {"faults": [{"kind": fault.kind, "times": fault.times, "status": fault.status}]}
            (await client.post(f"{server.url}/sim/faults", json=order)).raise_for_status()
        return await run(plan_for(server, small(20.0, **{"chat.patience_s": 20, "agent.patience_s": 20})))

    result = against(scene)
    assert result.groups["all"].failures == {outcome: 3}
    assert result.groups["all"].ok > 5
    assert not result.failed


def test_no_more_is_asked_than_allowed() -> None:
    result = against(lambda server: run(plan_for(server, small(), asks_max=4)))
    assert len(result.calls) == 4
    assert any("--asks-max" in note for note in result.notes)


@pytest.mark.parametrize("bad", [{"speed": 0.0}, {"speed": 1e9}, {"asks_max": 0}, {"drain_s": -1.0}, {"sample_s": 0.0}])
def test_plans_are_bounded(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"0"):
        Plan(small(), Target("http://x", "m"), **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["gpu1:8000", "ftp://x", "http://", "http://x:99999"])
def test_targets_are_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Target(url, "m")


def command(*arguments: str) -> list[str]:
    numbers = [f"--set={name}={value}".replace(" ", "") for name, value in SMALL.items()]
    return [sys.executable, "-m", "loadtests", "run", "chat_only", *numbers, *arguments]


@pytest.mark.slow
def test_the_command_with_a_fleet_and_the_gateway(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    run_it = command("--fleet", "D5,D5", "--speed", "20", "--seconds", "20", "--out", str(out))
    done = subprocess.run(run_it, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = load(out)
    assert result.groups["all"].ok == len(result.calls) > 5
    assert set(passed(result).values()) == {True}
    assert {call.replica for call in result.calls} == {"d5-0", "d5-1"}
    assert sum(share.share or 0 for share in result.replicas.values()) == pytest.approx(1.0)
    assert result.effort is not None
    assert {"client", "gateway", "d5-0", "d5-1"} == set(result.effort.cores)
    assert all(sample.queued is not None for sample in result.samples)
    assert out.with_suffix(".html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    run_it = command("--fleet", "D5", "--speed", "20", "--seconds", "6000", "--out", str(out))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(run_it, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if " asked" in line:
                break  # it has begun
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(20) == 130
    assert "broken off" in rest
    result = load(out)
    assert not result.complete
    assert any(call.outcome == OK for call in result.calls)
    assert not result.failed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fleet", "D99"], "no profile D99"),
        (["--fleet", "D5*99"], "1 to 32"),
        (["--target", "nowhere"], "nowhere: a URL"),
        (["--set", "chat_user=1", "--fleet", "D5"], "no such setting"),
        (["--set", "chat_users", "--fleet", "D5"], "NAME=VALUE"),
        ([], "what to test"),
        (["--target", "http://x", "--fleet", "D5"], "what to test"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--seconds", "0", "--fleet", "D5"], "86400"),
        (["--trace", "t.jsonl", "--fleet", "D5"], "--trace"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_line(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["run", "chat_only", *arguments])
    assert done.exit_code == 2
    assert said in done.output

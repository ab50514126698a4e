"""Runs in virtual time: deterministic, with the gateway's own decisions, and every ending that matters for timing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from gateway.domain import (
    BreakerSpec,
    CallClass,
    ModelSpec,
    QueueSpec,
    ReplicaSpec,
    RetrySpec,
    RoutingSpec,
    TimeoutSpec,
)
from gateway.wire.body import parse
from gateway.wire.endpoints import route_of
from loadtests.__main__ import app
from loadtests.report.result import OK, UNFINISHED, Result
from loadtests.runner.client import Target
from loadtests.runner.fleet import profiles
from loadtests.virtual.run import Plan, run
from loadtests.virtual.settings import Change, model_of, tree_of
from loadtests.virtual.trip import text_size
from loadtests.workloads.ask import Reply, Workload
from loadtests.workloads.mix import scenario

BOTH = frozenset(CallClass)


def model(*caps: int, **more: object) -> ModelSpec:
    """A model with a replica for each cap, which serves everything."""
    replicas = tuple(ReplicaSpec(f"r{n}", f"http://127.0.0.1:{n + 1}", BOTH, 1, cap) for n, cap in enumerate(caps))
    return ModelSpec("qwen", "qwen", (), replicas, **more)  # type: ignore[arg-type]


def chats(users: int = 8, seconds: float = 60.0, **more: object) -> Workload:
    return scenario("chat_only", seed=3, seconds=seconds, settings={"chat_users": users, "chat.think_s": 2, **more})


def plan(
    *caps: int, workload: Workload | None = None, profile: str = "D3", spec: ModelSpec | None = None, **more
) -> Plan:
    return Plan(workload or chats(), spec or model(*caps), (profile,) * len(caps), **more)


def outcomes(result: Result) -> set[str]:
    return {call.outcome for call in result.calls}


@pytest.mark.slow
def test_a_run_is_whole_and_its_counts_agree():
    result = run(plan(64, 64))
    assert result.complete
    assert outcomes(result) == {OK}
    assert {check.passed for check in result.checks} == {True}
    whole = result.groups["all"]
    assert whole.ok == len(result.calls) > 40
    assert sum(replica.generation_tokens for replica in result.replicas.values()) == whole.completion_tokens
    assert 0.3 < whole.ttft_s.p50 < 2
    assert {replica.calls > 0 for replica in result.replicas.values()} == {True}


@pytest.mark.slow
def test_the_same_seed_is_the_same_json_and_another_is_not():
    first, again = (msgspec.json.encode(run(plan(64, 64))) for _ in range(2))
    assert first == again
    other = scenario("chat_only", seed=4, seconds=60, settings={"chat_users": 8, "chat.think_s": 2})
    assert msgspec.json.encode(run(plan(64, 64, workload=other))) != first


@pytest.mark.slow
def test_a_small_delay_is_another_run_of_the_same_load():
    drawn = [run(plan(64, 64, jitter_s=0.03, draw=draw)) for draw in (0, 0, 1)]
    assert msgspec.json.encode(drawn[0]) == msgspec.json.encode(drawn[1]) != msgspec.json.encode(drawn[2])
    assert all(0 <= call.sent_s - call.due_s <= 0.03 + 1e-9 for call in drawn[0].calls)


def test_no_replica_ever_holds_more_than_its_cap_and_the_others_wait():
    result = run(plan(2, 3, workload=chats(users=12)))
    assert result.replicas["r0"].inflight_max == 2
    assert result.replicas["r1"].inflight_max == 3
    assert max(sample.queued for sample in result.samples) > 0
    assert outcomes(result) == {OK}


@pytest.mark.slow
def test_waiting_costs_time():
    wide, narrow = run(plan(64, workload=chats(users=12))), run(plan(2, workload=chats(users=12)))
    assert narrow.groups["all"].ttft_s.p50 > 2 * wide.groups["all"].ttft_s.p50


def test_the_waiting_room_has_its_bounds():
    queue = QueueSpec(depth=1, wait_short_s=3.0)
    result = run(plan(1, workload=chats(users=12), spec=model(1, queue=queue)))
    assert {"503 queue_full", "503 queue_timeout", OK} == outcomes(result) - {UNFINISHED}
    refused = [call for call in result.calls if call.outcome == "503 queue_timeout"]
    assert all(call.e2e_s == pytest.approx(3.0) for call in refused)
    assert {check.passed for check in result.checks} == {True}


def test_a_refused_user_comes_back_when_told():
    spec = model(1, queue=QueueSpec(depth=1, wait_short_s=40.0))
    result = run(plan(1, workload=chats(users=6, **{"chat.retry_s": 0.1, "chat.retries": 99}), spec=spec))
    by_id = {call.id: call for call in result.calls}
    refused = [call for call in result.calls if call.outcome == "503 queue_full"]
    following = [by_id.get(f"{call.user}-{int(call.id.rpartition('-')[2]) + 1}") for call in refused]
    assert min(then.due_s - call.ended_s for call, then in zip(refused, following, strict=True) if then) >= 1.0


def test_a_client_without_patience_leaves_and_the_engine_stops():
    workload = chats(users=12, **{"chat.patience_s": 1.5, "chat.retries": 0})
    result = run(plan(2, workload=workload))
    left = [call for call in result.calls if call.outcome == "client left: no first token in time"]
    assert left
    assert all(call.e2e_s == pytest.approx(1.5) and call.first_s is None for call in left)
    assert {check.passed for check in result.checks} == {True}
    assert all(running == 0 for running in result.samples[-1].running.values()) or result.elapsed_s < 70


@pytest.mark.slow
def test_a_full_engine_sends_the_call_elsewhere_and_the_budget_bounds_that():
    once = RetrySpec(attempts_max=2)
    result = run(
        plan(64, 64, workload=chats(users=30, **{"chat.think_s": 0.5}), spec=model(64, 64, retry=once), queued_max=1)
    )
    assert outcomes(result) >= {OK, "503 Service Unavailable"}
    never = RetrySpec(attempts_max=1)
    alone = run(
        plan(64, 64, workload=chats(users=30, **{"chat.think_s": 0.5}), spec=model(64, 64, retry=never), queued_max=1)
    )
    assert (
        alone.groups["all"].failures["503 Service Unavailable"]
        > result.groups["all"].failures["503 Service Unavailable"]
    )
    assert {check.passed for check in result.checks} == {True}


def test_a_prompt_too_long_for_all_is_refused_at_once():
    workload = scenario("giant_prompt", seed=1, seconds=40, settings={"chat_users": 1})
    result = run(plan(48, workload=workload, profile="D5"))
    (giant,) = (call for call in result.calls if call.kind == "document")
    assert giant.outcome == "400 context_length_exceeded"
    assert giant.e2e_s == 0.0


def test_a_silent_replica_times_out_and_its_breaker_opens():
    slow = TimeoutSpec(first_byte_s=0.01, prefill_tokens_per_s=1e9)
    spec = model(64, timeouts=slow, breaker=BreakerSpec(failures=2, open_s=1e6))
    result = run(plan(64, spec=spec))
    assert result.groups["all"].failures["504 upstream_timeout"] >= 2
    assert result.groups["all"].failures["503 no_replica"] > 0
    assert not result.groups["all"].ok


def test_a_timeout_after_comments_is_an_error_in_the_answer():
    slow = TimeoutSpec(first_byte_s=0.2, prefill_tokens_per_s=1e9)
    result = run(plan(64, spec=model(64, timeouts=slow), keepalive_s=0.1))
    assert "error in the answer: upstream_timeout" in outcomes(result)
    assert "504 upstream_timeout" not in outcomes(result)


def test_what_the_end_cuts_is_unfinished():
    result = run(plan(64, workload=chats(seconds=20), drain_s=0))
    assert outcomes(result) == {OK, UNFINISHED}
    assert all(call.ended_s is None for call in result.calls if call.outcome == UNFINISHED)


def test_the_number_of_asks_is_bounded():
    result = run(plan(64, asks_max=10))
    assert len(result.calls) == 10
    assert any("--asks-max" in note for note in result.notes)


@pytest.mark.slow
def test_long_prompts_go_where_the_settings_say():
    names = profiles("D6")
    tree = tree_of("D6", names, None)
    workload = scenario("department_day", seed=1, seconds=60, settings={"documents.per_minute": 6})
    long = {
        call.id: call for call in run(Plan(workload, model_of(tree, names), names)).calls if call.asked_prompt > 16_500
    }
    assert {call.replica for call in long.values()} == {"tp2"}
    workload = scenario("department_day", seed=1, seconds=60, settings={"documents.per_minute": 6})
    never = model_of(tree, names, Change(long_tokens=10_000_000))
    elsewhere = {call.replica for call in run(Plan(workload, never, names)).calls if call.id in long}
    assert elsewhere >= {"dp0", "dp1"}


def test_changes_reach_the_model_and_are_checked_like_a_settings_file():
    names = profiles("D6")
    changed = model_of(tree_of("D6", names, None), names, Change(32, 8_000, "round_robin"))
    assert {(one.cap_min, one.cap_max) for one in changed.replicas} <= {(32, 32), (1, 32)}
    assert changed.routing == RoutingSpec("round_robin", 8_000)
    with pytest.raises(ValueError, match="policy"):
        model_of(tree_of("D6", names, None), names, Change(policy="by moonlight"))


def test_plans_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="2 replicas, the fleet 1"):
        Plan(chats(), model(1, 2), ("D3",))
    for wrong in ({"drain_s": -1.0}, {"sample_s": 0.0}, {"asks_max": 0}, {"jitter_s": -1.0}, {"queued_max": -1}):
        with pytest.raises(ValueError):
            replace(plan(64), **wrong)  # type: ignore[arg-type]


def test_prompts_weigh_what_they_weigh_as_json():
    workload = scenario("department_day", seed=1, seconds=600)
    route, target = route_of(b"POST", b"/v1/chat/completions"), Target("http://x:1", "qwen")
    for user in (workload.users[0], workload.users[41]):
        due = user.first()
        for _ in range(3):
            body = target.request(due.ask).partition(b"\r\n\r\n")[2]
            facts = parse(route, body, b"application/json")
            assert facts.size == text_size(due.ask.prompt)
            assert facts.max_tokens == due.ask.output_tokens
            due = user.then(due.at_s + 1, Reply(True, due.ask.output_tokens))


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path):
    out = tmp_path / "v.json"
    arguments = ["virtual", "chat_only", "--fleet", "D3", "--seconds", "30", "--set", "chat_users=5", "--cap", "4"]
    shown = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "in virtual time" in shown.output
    assert "times real time" in shown.output
    result = msgspec.json.decode(out.read_bytes(), type=Result)
    assert result.replicas["tp4"].cap == 4
    assert out.with_suffix(".html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "no scenario 'nonsense'"),
        (["chat_only", "--fleet", "D9"], "no profile D9"),
        (["chat_only", "--cap", "0"], "max"),
        (["chat_only", "--policy", "x"], "policy"),
        (["chat_only", "--set", "chat_users"], "NAME=VALUE"),
        (["chat_only", "--seconds", "-1"], "a workload lasts"),
        (["chat_only", "--config", "/nowhere.yaml"], "nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, said):
    shown = CliRunner().invoke(app, ["virtual", *arguments])
    assert shown.exit_code == 2
    assert said in shown.output

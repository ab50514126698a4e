"""Peers: what they are started with, what is kept of a run, and that nobody is dropped in silence."""

import dataclasses
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import uvloop

from gateway.settings import load
from loadtests.bench.target import Site
from loadtests.peers import report
from loadtests.peers.command import all_peers, chosen
from loadtests.peers.environment import Environment, NotInstalled
from loadtests.peers.figures import figures
from loadtests.peers.fleet import Server, parse
from loadtests.peers.litellm import LiteLLM
from loadtests.peers.nginx import LeastConnections
from loadtests.peers.ours import Ours
from loadtests.peers.peer import Peer
from loadtests.peers.production_stack import ProductionStack
from loadtests.peers.race import Course, Race, Trial, trial
from loadtests.peers.routers import SglangCacheAware, VllmCacheAware, VllmRoundRobin
from loadtests.report.result import Check, Result
from loadtests.runner.run import Plan
from loadtests.runner.run import run as run_plan
from loadtests.workloads.ask import Workload
from loadtests.workloads.mix import scenario

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the runs read /proc")
URLS = ("http://127.0.0.1:7001", "http://127.0.0.1:7002")


def site(folder: Path) -> Site:
    return Site(7000, URLS, folder, "qwen", (262_144, 131_072), ("D4", "D5"), ("a", "b"), 10.0)


class TestFleets:
    def test_servers_of_other_paces(self) -> None:
        assert parse("D3,D5, d5@0.5") == (Server("D3"), Server("D5"), Server("D5", 0.5))
        assert parse("D6") == (Server("D4"), Server("D5"), Server("D5"))
        assert parse("D5*2@2") == (Server("D5", 2.0), Server("D5", 2.0))

    @pytest.mark.parametrize("text", ["", "D9", "D5@", "D5@x", "D5@0", "D5@nan", "D5*20,D5*20"])
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse(text)


class TestCommands:
    def test_nginx_takes_the_least_loaded_unbuffered_and_is_patient(self, tmp_path: Path) -> None:
        LeastConnections().command(site(tmp_path))
        config = (tmp_path / "nginx.conf").read_text()
        assert "upstream replicas {\n    least_conn;\n    server 127.0.0.1:7001;" in config
        assert "proxy_buffering off;" in config
        assert "proxy_read_timeout 600s;" in config

    def test_litellm_knows_contexts_and_filters_by_them(self, tmp_path: Path) -> None:
        command = LiteLLM().command(site(tmp_path))
        assert command[command.index("--host") + 1] == "127.0.0.1"
        config = msgspec.json.decode((tmp_path / "litellm.yaml").read_bytes())
        assert [one["model_info"]["max_input_tokens"] for one in config["model_list"]] == [262_144, 131_072]
        assert [one["litellm_params"]["api_base"] for one in config["model_list"]] == [f"{url}/v1" for url in URLS]
        assert config["router_settings"]["routing_strategy"] == "least-busy"
        assert config["router_settings"]["enable_pre_call_checks"] is True
        assert config["router_settings"]["timeout"] >= 180

    @pytest.mark.parametrize(
        ("peer", "policy"),
        [(VllmCacheAware(), "cache_aware"), (VllmRoundRobin(), "round_robin"), (SglangCacheAware(), "cache_aware")],
    )
    def test_routers(self, peer: VllmCacheAware, policy: str, tmp_path: Path) -> None:
        command = peer.command(site(tmp_path))
        assert command[command.index("--policy") + 1] == policy
        assert command[command.index("--worker-urls") + 1 :][:2] == list(URLS)
        assert int(command[command.index("--request-timeout-secs") + 1]) >= 180
        assert not [word for word in command if word.startswith(("--queue", "--max-concurrent"))]  # as they come

    def test_ours_has_the_fleets_settings_and_a_key_for_each_team(self, tmp_path: Path) -> None:
        ours = Ours("D6")
        three = dataclasses.replace(
            site(tmp_path), upstream_urls=(*URLS, "http://127.0.0.1:7003"), profiles=("D4", "D5", "D5")
        )
        ours.command(three)
        settings = load(tmp_path / "gateway.yaml", {}).compile()
        assert [replica.cap_max for replica in settings.models[0].replicas] == ours.caps(three.profiles, "qwen")
        assert [replica.url for replica in settings.models[0].replicas] == list(three.upstream_urls)
        assert len(set(ours.keys(("a", "b")).values())) == 2
        assert ours.keys(("a",)) == {"a": ours.keys(("a", "b"))["a"]}

    def test_production_stack_needs_its_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LOADTESTS_PRODUCTION_STACK", raising=False)
        assert "--production-stack DIR" in (ProductionStack().missing() or "")
        with pytest.raises(NotInstalled, match="is no checkout"):
            ProductionStack(tmp_path).install()

    def test_names(self) -> None:
        peers = all_peers("D6", None, None)
        assert [peer.name for peer in chosen(peers, "nginx, gateway")] == ["gateway", "nginx"]
        assert len({peer.name for peer in peers}) == len(peers) == 7
        with pytest.raises(ValueError, match="no such peer: apache; there are gateway, nginx"):
            chosen(peers, "apache")


@pytest.mark.slow
def test_an_environment_is_made_once_and_anew_when_it_should_hold_something_else(tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("")
    environment = Environment("x", ("-r", str(wanted)), tmp_path)
    assert not environment.ready
    environment.make()
    assert environment.ready
    assert environment.program("python").exists()
    assert (environment.version("pip") or "").replace(".", "").isdecimal()
    wanted.write_text(f"{tmp_path}/no-such-package.whl\n")
    assert not environment.ready
    with pytest.raises(NotInstalled, match="no-such-package"):
        environment.make()
    assert not environment.ready


class Broken(Peer):
    """A peer that ends at once."""

    name = "broken"

    def command(self, site: Site) -> list[str]:
        return [sys.executable, "-c", "print('cannot: no such thing'); raise SystemExit(3)"]


class NotToBeHad(Peer):
    """A peer that no index has."""

    name = "not-to-be-had"

    def missing(self) -> str | None:
        return "no such package"


def course(seeds: Sequence[int] = (1,), fleet: str = "D5*2") -> Course:
    def build(seed: int) -> Workload:
        return scenario("chat_only", seed=seed, seconds=20.0, settings={"chat_users": 6, "chat.think_s": 2.0})

    servers = parse(fleet)
    return Course(servers, [64] * len(servers), build, seeds, speed=10.0, drain_s=60.0)


def measured(plan: Plan) -> Result:
    return uvloop.run(run_plan(plan))


@pytest.mark.slow
def test_a_race_measures_those_who_run_and_names_the_others(left: Callable[[], list[str]]) -> None:
    peers: list[Peer] = [Ours("D5*2"), Broken(), NotToBeHad()]
    if shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin"):
        peers.append(LeastConnections())
    race = Race(peers, course(), measured)
    race.install()
    race.run()
    assert left() == []
    assert "cannot: no such thing" in race.absent["broken"]
    assert race.absent["not-to-be-had"] == "not installed: no such package"
    assert [one.peer for one in race.trials] == [peer.name for peer in peers if peer.name not in race.absent]
    for one in race.trials:
        assert one.broken == []
        assert one.complete
        chat = one.figures["chat"]
        assert chat["asked"] >= 6
        assert chat["failed"] == 0
        assert 0 < chat["TTFT p50, s"] <= chat["TTFT p95, s"]
        whole = one.figures["all"]
        assert whole["share of d5-0, %"] + whole["share of d5-1, %"] == pytest.approx(100)
        assert whole["most at once on d5-0 (cap 64)"] <= 6
        assert whole["above a cap, s"] == 0
        assert "router's CPU, cores" in whole
    said = "\n".join(report.notes(race))
    assert "broken: not measured: ended with 3" in said
    assert "not-to-be-had: not measured: not installed: no such package" in said


def some(peer: str = "nginx", seed: int = 1, **changes: object) -> Trial:
    found = Trial(peer, seed, 10.0, True, {"chat": {"TTFT p50, s": 0.5 * seed, "failed": 0.0}}, {})
    return msgspec.structs.replace(found, **changes)


def shown(*trials: Trial, peers: Sequence[Peer] = (LeastConnections(),)) -> Race:
    return Race(peers, course(), measured, trials=list(trials))


class TestReport:
    def test_mean_and_spread_over_the_seeds(self) -> None:
        cell = report.cell([some(), some(seed=3), some("gateway", 9)], "nginx", "chat", "TTFT p50, s")
        assert cell == "1 (0.50–1.50)"
        assert report.cell([some()], "nginx", "chat", "TTFT p50, s") == "0.50"

    def test_what_was_not_measured_is_a_dash(self) -> None:
        assert report.cell([some()], "gateway", "chat", "TTFT p50, s") == "–"
        assert report.cell([some()], "nginx", "agent", "TTFT p50, s") == "–"

    def test_doubtful_figures_are_marked_and_explained(self) -> None:
        race = shown(some(), some(seed=2, limits=["client used 0.99 of a core"], broken=["prompt tokens: 1, 2"]))
        assert report.cell(race.trials, "nginx", "chat", "failed") == "0†"
        said = report.notes(race)
        assert "† nginx, seed 2: SATURATED: client used 0.99 of a core" in said
        assert "† nginx, seed 2: counts disagree: prompt tokens: 1, 2" in said

    def test_failures_by_kind_without_those_that_the_end_cut(self) -> None:
        lost = {"chat": {"502 bad": 2, "unfinished": 3}, "all": {"502 bad": 2, "unfinished": 3}}
        said = report.notes(shown(some(failures=lost), some(seed=2, failures=lost)))
        assert [line for line in said if "failed" in line] == ["nginx: failed chat calls: 4 × 502 bad"]

    def test_written(self) -> None:
        race = shown(some(others_cores=0.7))
        race.absent["litellm"] = "not installed: no\nreally"
        text = report.markdown(race, {"fleet": "D6"})
        assert "| chat | TTFT p50, s | 0.50 |" in text
        assert "* litellm: not measured: not installed: no\n  really" in text
        assert "the machine was not quiet: others used 0.70 cores" in text
        content = msgspec.json.decode(report.as_json(race, {"fleet": "D6"}, complete=False))
        assert content["complete"] is False
        assert content["trials"][0]["figures"]["chat"]["TTFT p50, s"] == 0.5


@pytest.mark.slow
def test_only_who_promises_caps_is_failed_for_them() -> None:
    calm = Race([Ours("D5*2")], course(), lambda plan: kept.append(measured(plan)) or kept[-1])  # type: ignore[func-returns-value]
    kept: list[Result] = []
    calm.run()
    result = msgspec.structs.replace(
        kept[0], checks=[Check("caps", False, "too many"), Check("prompt tokens", False, "1, 2")]
    )
    assert trial(LeastConnections(), 1, result).broken == ["prompt tokens: 1, 2"]
    assert trial(Ours("D5*2"), 1, result).broken == ["caps: too many", "prompt tokens: 1, 2"]
    empty = msgspec.structs.replace(kept[0], groups={}, replicas={}, prefix_hit_rate=None, effort=None)
    assert figures(empty, "gateway") == {"all": {}}
    broken_off = Race([Ours("D5*2")], course((1, 2)), lambda _: msgspec.structs.replace(kept[0], complete=False))
    with pytest.raises(KeyboardInterrupt):
        broken_off.run()
    assert [(one.seed, one.complete) for one in broken_off.trials] == [(1, False)]

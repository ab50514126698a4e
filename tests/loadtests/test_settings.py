"""The gateway's settings for a run: what the file says, with other addresses and keys, waits scaled by the speed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway import settings as gateway_settings
from gateway.domain import CallClass
from loadtests.runner import fleet, settings

ROOT = Path(__file__).parent.parent.parent
SHIPPED = sorted((ROOT / "config").glob("D*.yaml"))
KEYS = {"chat-team-1": "gk-one", "documents": "gk-two"}


def adapt(tree: dict, urls: list[str], speed: float = 10.0) -> dict:
    return settings.adapted(tree, port=1234, urls=urls, keys=KEYS, admin_key="a" * 20, speed=speed)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_can_be_run(path: Path, tmp_path: Path) -> None:
    tree = settings.read(path)
    urls = [f"http://127.0.0.1:{9000 + at}" for at in range(len(tree["models"][0]["replicas"]))]
    adapted = adapt(tree, urls)
    settings.write(adapted, tmp_path / "g.yaml")
    compiled = gateway_settings.load(tmp_path / "g.yaml", {}).compile()
    before = gateway_settings.load(path, {}).compile().models[0]
    model = compiled.models[0]
    assert [replica.url for replica in model.replicas] == urls
    assert [replica.cap_max for replica in model.replicas] == [replica.cap_max for replica in before.replicas]
    assert model.queue.wait_short_s == pytest.approx(before.queue.wait_short_s / 10)
    assert model.queue.wait_long_s == pytest.approx(before.queue.wait_long_s / 10)
    assert model.timeouts.first_byte_s == pytest.approx(before.timeouts.first_byte_s / 10)
    assert model.timeouts.prefill_tokens_per_s == pytest.approx(before.timeouts.prefill_tokens_per_s * 10)
    assert model.breaker.open_s == pytest.approx(before.breaker.open_s / 10)
    assert (compiled.server.host, compiled.server.port) == ("127.0.0.1", 1234)
    assert {team.name for team in compiled.teams} == set(KEYS)
    assert {key.sha256 for key in compiled.keys} == {hashlib.sha256(key.encode()).hexdigest() for key in KEYS.values()}
    assert [(one.name, one.url, one.cap) for one in settings.replicas_of(tmp_path / "g.yaml", {})] == [
        (replica.name, replica.url, replica.cap_max) for replica in model.replicas
    ]


def test_a_team_of_the_file_keeps_its_limits() -> None:
    tree = settings.generic(["D5"], "qwen") | {"teams": [{"name": "documents", "weight": 3, "keys": []}, {"name": "x"}]}
    teams = {team["name"]: team for team in adapt(tree, ["http://127.0.0.1:1"])["teams"]}
    assert set(teams) == set(KEYS)
    assert teams["documents"]["weight"] == 3


def test_a_fleet_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="3 replicas, the fleet 1"):
        adapt(settings.read(ROOT / "config" / "D6.yaml"), ["http://127.0.0.1:1"])


def test_unlike_servers_serve_what_fits_them(tmp_path: Path) -> None:
    settings.write(
        adapt(settings.generic(["D4", "D5"], "qwen"), ["http://127.0.0.1:1", "http://127.0.0.1:2"]), tmp_path / "g"
    )
    large, small = gateway_settings.load(tmp_path / "g", {}).compile().models[0].replicas
    assert (large.serves, small.serves) == ({CallClass.LONG}, {CallClass.SHORT})
    alike = settings.generic(["D5", "D5"], "qwen")["models"][0]["replicas"]
    assert [replica["serves"] for replica in alike] == [["short", "long"]] * 2


def test_replicas_are_as_the_gateway_understands_them(tmp_path: Path) -> None:
    tree = settings.generic(["D5"], "qwen")
    tree["models"][0]["replicas"] = [{"name": "a", "url": "", "api_key": "${VLLM_KEY}"}]
    settings.write(adapt(tree, ["http://gpu1:8000/"]), tmp_path / "g.yaml")
    (replica,) = settings.replicas_of(tmp_path / "g.yaml", {"VLLM_KEY": "secret"})
    assert (replica.url, replica.api_key) == ("http://gpu1:8000", "secret")
    assert replica.cap is not None
    with pytest.raises(ValueError, match="VLLM_KEY"):
        settings.replicas_of(tmp_path / "g.yaml", {})


@pytest.mark.parametrize("text", ["", "- 1", "models: []", "models: {", "models: [3]"])
def test_files_without_models_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"g\.yaml"):
        settings.read(tmp_path / "g.yaml")


def test_fleets_by_name() -> None:
    assert fleet.profiles("D6") == ("D4", "D5", "D5")
    assert fleet.profiles("d4, d5*2") == ("D4", "D5", "D5")
    for bad in ("", "D5*0", "D5*x", "D5*33", "nope", "D6*11"):
        with pytest.raises(ValueError, match=r".+"):
            fleet.profiles(bad)

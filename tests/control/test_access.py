"""Who sees what: nobody, a client's key, the administrator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.clock import ManualClock
from gateway.domain import CallClass, EngineStats, Team
from gateway.policy.keys import KeyTable
from gateway.ports import QueueStatus
from gateway.testing.fleet import replica_status
from tests.control.conftest import ADMIN, ALICE, BOB, CHAT_TEAM, Control, key

ADMINISTRATION = ["/metrics", "/admin/replicas", "/admin/queues"]


@pytest.mark.parametrize("path", ADMINISTRATION)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_g4_administration_is_not_for_clients(control: Control, path: str, method: str) -> None:
    assert control.send(method, path).status_code == 401
    assert control.send(method, path, "wrong").status_code == 401
    assert control.send(method, path, ALICE).status_code == 403
    assert control.send(method, path, ADMIN).status_code == 200


def test_admin_key_in_any_of_the_headers(control: Control) -> None:
    assert control.get("/metrics", x_api_key=ADMIN).status_code == 200
    assert control.get("/metrics", api_key=ADMIN).status_code == 200
    assert control.get("/metrics", authorization=f"Basic {ADMIN}").status_code == 401


def test_g4_bad_keys_are_paced_and_good_ones_never(control: Control) -> None:
    control.get("/me", ALICE)
    control.get("/metrics", ADMIN)
    control.get("/metrics", ALICE)
    control.get("/metrics")
    control.get("/me")
    assert control.pacer.held == []
    control.get("/me", "wrong")
    control.get("/metrics", "wrong")
    assert control.pacer.held == ["192.0.2.7"] * 2


def test_g4_too_many_bad_keys_close_the_connection(control: Control) -> None:
    assert "connection" not in control.get("/me", "wrong").headers
    control.pacer.answer = False
    answer = control.get("/me", "wrong")
    assert (answer.status_code, answer.headers["connection"]) == (401, "close")


@pytest.mark.parametrize("path", ADMINISTRATION)
def test_without_an_admin_key_administration_is_closed(make: Callable[..., Control], path: str) -> None:
    control = make(admin_key=None)
    for shown in (None, "", "None", ADMIN):
        assert control.get(path, shown).status_code == 401
    assert control.get(path, ALICE).status_code == 403


def test_an_empty_admin_key_is_none(make: Callable[..., Control]) -> None:
    assert make(admin_key="").get("/metrics", x_api_key="").status_code == 401


def test_metrics_open_opens_metrics_only(make: Callable[..., Control]) -> None:
    control = make(metrics_open=True)
    assert control.get("/metrics").status_code == 200
    assert control.get("/admin/replicas").status_code == 401


def test_an_open_gateway_keeps_administration_closed(make: Callable[..., Control]) -> None:
    control = make(directory=KeyTable([key("alice", ALICE, CHAT_TEAM)], open_to=Team("everyone")))
    assert control.get("/me").json()["key"] == "anonymous"
    assert control.get("/me", "whatever").json()["team"] == "everyone"
    assert control.get("/metrics").status_code == 401
    assert control.get("/metrics", "guess").status_code == 401
    assert control.pacer.held == ["192.0.2.7"]
    assert control.get("/metrics", ALICE).status_code == 403
    assert control.get("/metrics", ADMIN).status_code == 200


def test_metrics_page(control: Control) -> None:
    page = control.get("/metrics", ADMIN)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'gateway_inflight{replica="tp2"} 3.0' in page.text


def test_a6_a_scrape_lets_others_run_between_its_pieces(make: Callable[..., Control]) -> None:
    class CountingClock(ManualClock):
        pauses = 0

        async def sleep(self, seconds: float) -> None:
            self.pauses += 1
            await super().sleep(seconds)

    clock = CountingClock()
    page = make(clock=clock, metrics_page=lambda: iter([b"a 1\n", b"b 2\n", b"c 3\n"])).get("/metrics", ADMIN)
    assert page.content == b"a 1\nb 2\nc 3\n"
    assert clock.pauses == 3


def test_replicas(control: Control) -> None:
    control.fleet.replica_list = [
        replica_status("a", inflight=2, stats=EngineStats(engines=2, kv_usage=0.5, kv_capacity_tokens=9)),
        replica_status("b", up=False),
    ]
    first, second = control.get("/admin/replicas", ADMIN).json()["replicas"]
    assert (first["name"], first["inflight"], first["cap"], first["serves"]) == ("a", 2, 64, ["short"])
    assert (first["engine"]["kv_usage_ratio"], first["engine"]["kv_capacity_tokens"]) == (0.5, 9)
    assert (second["up"], second["why_down"], second["engine"]) == (False, "connection refused", None)


def test_queues(control: Control) -> None:
    control.fleet.queue_list = [QueueStatus("qwen", 256, {CallClass.SHORT: 3, CallClass.LONG: 0})]
    queue = {"model": "qwen", "depth": 256, "waiting": {"short": 3, "long": 0}}
    assert control.get("/admin/queues", ADMIN).json() == {"queues": [queue]}


def test_me(control: Control) -> None:
    answer = control.get("/me", ALICE).json()
    assert (answer["team"], answer["key"], answer["suspended"]) == ("chat", "alice", False)
    assert answer["models"] == ["qwen", "default"]
    assert answer["limits"]["requests_per_minute"] == 60
    assert answer["limits"]["tokens_per_day"] is None
    assert control.get("/me").status_code == 401


def test_g2_no_answer_carries_a_secret_or_its_hash(control: Control) -> None:
    for path in ("/me", "/v1/models", "/v1/models/none", "/metrics", "/admin/replicas", "/nowhere"):
        for secret in (ALICE, BOB, ADMIN, "sk-canary"):
            answer = control.get(path, secret)
            shown = answer.text + str(answer.headers)
            assert secret not in shown
            assert key("x", secret, CHAT_TEAM).sha256 not in shown

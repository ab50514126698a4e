"""Alive, ready, and the small things health checkers and vLLM's clients ask for."""

from __future__ import annotations

import pytest

from gateway.testing.fleet import replica_status
from tests.control.conftest import Control


@pytest.mark.parametrize("path", ["/healthz", "/health", "/ping"])
def test_alive_whatever_the_fleet(control: Control, path: str) -> None:
    control.fleet.ready, control.fleet.draining = False, True
    answer = control.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready(control: Control) -> None:
    answer = control.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "reasons": []})


def test_ready_but_one_model_is_down(control: Control) -> None:
    control.fleet.replica_list = [replica_status("a"), replica_status("b", "embed", up=False)]
    answer = control.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (200, ["no replica up for model embed"])


def test_one_replica_up_is_enough_for_a_model(control: Control) -> None:
    control.fleet.replica_list = [replica_status("a", up=False), replica_status("b"), replica_status("c", up=False)]
    assert control.get("/readyz").json()["reasons"] == []


def test_e7_draining_is_unready_at_once(control: Control) -> None:
    control.fleet.ready, control.fleet.draining = False, True
    answer = control.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unready", "reasons": ["draining"]})


def test_unready_with_every_model_down_says_which(control: Control) -> None:
    control.fleet.ready = False
    control.fleet.replica_list = [replica_status("a", up=False), replica_status("b", "embed", up=False)]
    answer = control.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["no replica up for model qwen", "no replica up for model embed"]


def test_unready_without_a_visible_reason_still_gives_one(control: Control) -> None:
    control.fleet.ready = False
    assert control.get("/readyz").json()["reasons"] == ["replicas are still being probed"]


def test_h1_head(control: Control) -> None:
    for path in ("/", "/v1/models", "/healthz", "/readyz", "/version"):
        answer = control.send("HEAD", path)
        assert (answer.status_code, answer.content) == (200, b""), path


def test_landing_page_and_version(control: Control) -> None:
    page = control.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "gateway 1.2.3" in page.text
    assert control.get("/version").json() == {"name": "gateway", "version": "1.2.3"}

"""What nobody serves, what breaks, and what browsers ask first."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from tests.control.conftest import ADMIN, ALICE, Control

PREFLIGHT = {"origin": "https://chat.example", "access_control_request_method": "POST"}


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/docs", "/redoc", "/openapi.json", "/healthz/", "/v1"])
def test_unknown_paths(control: Control, path: str) -> None:
    answer = control.get(path, ALICE)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == answer.headers["x-gateway-reason"] == "not_found"
    assert f"GET {path}" in error["message"]


def test_wrong_method(control: Control) -> None:
    answer = control.send("POST", "/healthz")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_the_data_paths_take_post(control: Control) -> None:
    answer = control.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_h3_errors_on_messages_have_anthropics_shape(control: Control) -> None:
    answer = control.get("/v1/messages")
    assert answer.status_code == 405
    assert answer.json()["type"] == "error"


def test_paths_come_back_bounded(control: Control) -> None:
    assert len(control.get("/" + "x" * 60_000).text) < 600
    assert control.get("/%FF%00").status_code == 404


def test_401_names_the_scheme(control: Control) -> None:
    answer = control.get("/me")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_unexpected_failure_is_500_logged_and_not_shown(
    make: Callable[..., Control], caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Iterator[bytes]:
        raise RuntimeError("canary-in-the-mine")

    with caplog.at_level(logging.ERROR):
        answer = make(metrics_page=broken, cors_origins=("*",)).get("/metrics", ADMIN, origin="https://a.example")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "canary" not in answer.text
    assert "Traceback" not in answer.text
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert "canary-in-the-mine" in caplog.text
    assert ADMIN not in caplog.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/", "/nowhere"])
def test_h1_preflight_needs_no_key(make: Callable[..., Control], path: str) -> None:
    control = make(cors_origins=("https://chat.example",))
    answer = control.send("OPTIONS", path, **PREFLIGHT, access_control_request_headers="authorization,x-stainless-os")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_h1_foreign_origins_get_nothing(make: Callable[..., Control]) -> None:
    control = make(cors_origins=("https://chat.example",))
    foreign = PREFLIGHT | {"origin": "https://evil.example"}
    answer = control.send("OPTIONS", "/v1/chat/completions", **foreign)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-origin" not in control.get("/v1/models", ALICE, origin="https://evil.example").headers


def test_scripts_may_read_the_gateways_headers(make: Callable[..., Control]) -> None:
    answer = make(cors_origins=("*",)).get("/v1/models", ALICE, origin="https://chat.example")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/", "/nowhere"])
def test_options_without_cors(control: Control, path: str) -> None:
    answer = control.send("OPTIONS", path, **PREFLIGHT)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == "GET, HEAD, POST, OPTIONS"
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_bodies_are_json_with_its_type(control: Control) -> None:
    for path in ("/healthz", "/readyz", "/version", "/nowhere"):
        answer = control.get(path)
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.content)

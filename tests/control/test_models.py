"""The models a key may use, in OpenAI's shape."""

from __future__ import annotations

import pytest

from tests.control.conftest import ALICE, BOB, Control


def test_list_has_openais_shape(control: Control) -> None:
    answer = control.get("/v1/models", ALICE).json()
    assert answer["object"] == "list"
    assert answer["data"][0] == {
        "id": "qwen",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "gateway",
        "max_model_len": 32_768,
    }


def test_g3_list_holds_what_the_key_may_use(control: Control) -> None:
    def ids(secret: str) -> list[str]:
        return [entry["id"] for entry in control.get("/v1/models", secret).json()["data"]]

    assert ids(ALICE) == ["qwen", "default"]
    assert ids(BOB) == ["qwen", "default", "Qwen/Qwen3-8B"]


def test_g3_forbidden_looks_unknown(control: Control) -> None:
    forbidden = control.get("/v1/models/Qwen/Qwen3-8B", ALICE)
    unknown = control.get("/v1/models/Qwen/Qwen3-9B", ALICE)
    assert forbidden.status_code == unknown.status_code == 404
    assert forbidden.json()["error"]["code"] == "model_not_found"
    assert forbidden.text.replace("3-8B", "3-9B") == unknown.text
    assert set(forbidden.headers) == set(unknown.headers)


@pytest.mark.parametrize("path", ["/v1/models/Qwen/Qwen3-8B", "/v1/models/Qwen%2FQwen3-8B"])
def test_names_with_slashes(control: Control, path: str) -> None:
    answer = control.get(path, BOB)
    assert (answer.status_code, answer.json()["id"], answer.json()["max_model_len"]) == (200, "Qwen/Qwen3-8B", None)


def test_one_model_needs_a_key(control: Control) -> None:
    for method in ("GET", "HEAD"):
        assert control.send(method, "/v1/models/qwen").status_code == 401
        assert control.send(method, "/v1/models/qwen", ALICE).status_code == 200
    assert control.get("/v1/models").status_code == 401


def test_long_and_odd_names(control: Control) -> None:
    answer = control.get("/v1/models/" + "x" * 5_000, ALICE)
    assert answer.status_code == 404
    assert len(answer.text) < 500
    assert control.get("/v1/models/", ALICE).status_code == 404
    assert control.get("/v1/models/%FF%00%22", ALICE).json()["error"]["code"] == "model_not_found"

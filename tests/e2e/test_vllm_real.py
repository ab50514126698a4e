"""What only a real engine can show: it stops when a client leaves, its idle sockets, and its own token counters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.gateway_process import ADMIN_KEY, KEY
from tests.e2e.vllm_server import CONTEXT_TOKENS, MODEL

pytestmark = pytest.mark.vllm

LEAVE_S = 3.0  # the engine stops within a step, but its metrics page comes late from a busy machine
LONG_TOKENS = 30_000  # some 40 s of generation
KEEP_ALIVE_S = 5.0  # after which vLLM closes an idle connection
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count."}],
    "temperature": 0,
    "ignore_eos": True,
    "max_tokens": 20,
}


def sample(url: str, name: str, *, key: str = "", **labels: str) -> float:
    """The sum of a metric's samples that carry ``labels``."""
    answer = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {key}"} if key else {})
    return sum(
        found.value
        for family in text_string_to_metric_families(answer.raise_for_status().text)
        for found in family.samples
        if found.name == name and labels.items() <= found.labels.items()
    )


def wait_for(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether ``condition`` came true in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def client(vllm_gateway_url: str) -> Iterator[httpx.Client]:
    """A client of the gateway in front of the real vLLM."""
    with httpx.Client(base_url=vllm_gateway_url, headers={"authorization": f"Bearer {KEY}"}, timeout=60.0) as opened:
        yield opened


def running(vllm_url: str) -> float:
    """Requests the engine works on."""
    return sample(vllm_url, "vllm:num_requests_running")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_a2_a_client_that_leaves_stops_the_engine(vllm_url: str, vllm_gateway_url: str, stream: bool) -> None:
    body = json.dumps({**CHAT, "max_tokens": LONG_TOKENS, "stream": stream})
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with closing(HTTPConnection(urlsplit(vllm_gateway_url).netloc)) as leaver:
        leaver.request("POST", "/v1/chat/completions", body, headers)
        assert wait_for(lambda: running(vllm_url) == 1, within_s=10.0)
    assert wait_for(lambda: running(vllm_url) == 0, within_s=LEAVE_S)


@pytest.mark.parametrize("pause_s", [KEEP_ALIVE_S - 0.02, KEEP_ALIVE_S, KEEP_ALIVE_S + 0.02])
def test_e4_idle_sockets_closed_by_the_engine_never_show(client: httpx.Client, pause_s: float) -> None:
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
    time.sleep(pause_s)
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def counted(vllm_url: str, gateway_url: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Prompt and completion tokens so far, by vLLM's counters and by the gateway's."""
    engine = tuple(sample(vllm_url, f"vllm:{kind}_tokens_total") for kind in ("prompt", "generation"))
    own = tuple(
        sample(gateway_url, "gateway_tokens_total", key=ADMIN_KEY, kind=kind) for kind in ("prompt", "completion")
    )
    return engine, own  # type: ignore[return-value]


def test_token_counts_are_the_engines_own(vllm_url: str, vllm_gateway_url: str, client: httpx.Client) -> None:
    """Every kind of call, whole: the gateway's counters move exactly as the engine's do."""
    before = counted(vllm_url, vllm_gateway_url)
    text: dict[str, Any] = {"model": MODEL, "temperature": 0}
    calls = [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {**text, "prompt": "Count.", "max_tokens": 7}),
        ("/v1/responses", {**text, "input": "Count.", "max_output_tokens": 8}),
        ("/v1/messages", {**text, "messages": CHAT["messages"], "max_tokens": 9}),
    ]
    for path, body in calls:
        for stream in (False, True):
            assert client.post(path, json={**body, "stream": stream}).status_code == 200
    after = counted(vllm_url, vllm_gateway_url)
    moved = [[late - early for early, late in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)]
    assert moved[0] == moved[1]
    assert moved[1][1] >= 2 * 20


def test_the_engine_is_understood(vllm_gateway_url: str, client: httpx.Client) -> None:
    """The probe read vLLM's real pages: its context length comes out in the model list."""
    models = client.get("/v1/models").json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [(MODEL, CONTEXT_TOKENS)]

"""Fixtures of the end-to-end tests: real processes, started once a session and only when a test asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.gateway_process import KEY, gateway_process, sim_process
from tests.e2e.sdk_target import Capability, Target
from tests.e2e.vllm_install import Unavailable
from tests.e2e.vllm_server import CONTEXT_TOKENS, MODEL, START_S, vllm_server, vllm_venv

VLLM_TEST_S = START_S + 60  # the first of them waits for vLLM to start
SIM_SPEED = 20.0
SIM_CONTEXT_TOKENS = 262_144

MISSING_SIM = {
    Capability.MANY_CHOICES: "the simulator gives one",
}
MISSING_VLLM = {
    Capability.EMBEDDINGS: "vLLM serves a text generation model without it",
}
MISSING_DIRECT = {
    Capability.MODEL_BY_NAME: "vLLM has no such path",
    Capability.KEYS: "started without --api-key",
    Capability.GATEWAY_HEADERS: "there is no gateway",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of the real vLLM the time that its start takes."""
    for item in items:
        if item.get_closest_marker("vllm") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(VLLM_TEST_S))


@pytest.fixture(scope="session")
def vllm_url() -> Iterator[str]:
    """The base URL of a real vLLM; skips with the reason where none can be had."""
    if running := os.environ.get("GATEWAY_VLLM_URL"):
        yield running.rstrip("/")
        return
    try:
        with vllm_server(vllm_venv()) as url:
            yield url
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def vllm_gateway_url(vllm_url: str) -> Iterator[str]:
    """A gateway with the real vLLM as its only replica."""
    with gateway_process([{"name": MODEL, "replicas": [{"name": "real", "url": vllm_url}]}]) as gateway:
        yield gateway.url


@pytest.fixture(scope="session")
def sim_gateway_url() -> Iterator[str]:
    """A gateway with two simulated replicas."""
    with sim_process("D4", SIM_SPEED) as first, sim_process("D4", SIM_SPEED) as second:
        replicas = [{"name": "sim0", "url": first.url}, {"name": "sim1", "url": second.url}]
        with gateway_process([{"name": MODEL, "replicas": replicas}]) as gateway:
            yield gateway.url


TARGETS = [
    pytest.param("sim", id="sim"),
    pytest.param("vllm direct", id="vllm-direct", marks=pytest.mark.vllm),
    pytest.param("vllm", id="vllm", marks=pytest.mark.vllm),
]


@pytest.fixture(scope="session", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """What the SDK tests run against; vLLM without a gateway shows what may be asked of it."""
    match request.param:
        case "sim":
            url = request.getfixturevalue("sim_gateway_url")
            return Target(url, KEY, MODEL, SIM_CONTEXT_TOKENS, MISSING_SIM)
        case "vllm":
            url = request.getfixturevalue("vllm_gateway_url")
            return Target(url, KEY, MODEL, CONTEXT_TOKENS, MISSING_VLLM)
        case _:
            url = request.getfixturevalue("vllm_url")
            return Target(url, KEY, MODEL, CONTEXT_TOKENS, {**MISSING_VLLM, **MISSING_DIRECT})

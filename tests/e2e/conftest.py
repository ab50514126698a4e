"""Fixtures of the end-to-end tests: real processes, started once a session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.vllm_install import Unavailable
from tests.e2e.vllm_server import START_S, vllm_server, vllm_venv

VLLM_TEST_S = START_S + 60  # the first of them waits for vLLM to start


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

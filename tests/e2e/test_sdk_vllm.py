"""H4: the SDKs against a real vLLM, through the gateway and without it: the same suite, the same answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.gateway_process import KEY, gateway_process
from tests.e2e.sdk_suite import AnthropicCases, ChatCases, ChatErrorCases, ChatToolCases, OpenAICases
from tests.e2e.sdk_target import Capability, Target
from tests.e2e.vllm_server import CONTEXT_TOKENS, MODEL

pytestmark = pytest.mark.vllm

MISSING = {
    Capability.EMBEDDINGS: "vLLM serves a text generation model without it",
    Capability.MODEL_BY_NAME: "vLLM has no such path",
}
MISSING_DIRECT = {
    **MISSING,
    Capability.KEYS: "started without --api-key",
    Capability.GATEWAY_HEADERS: "there is no gateway",
}


@pytest.fixture(scope="module")
def gateway_url(vllm_url: str) -> Iterator[str]:
    """A gateway with the real vLLM as its only replica."""
    models = [{"name": MODEL, "replicas": [{"name": "real", "url": vllm_url}]}]
    with gateway_process(models) as gateway:
        yield gateway.url


@pytest.fixture(scope="module", params=["direct", "gateway"])
def target(request: pytest.FixtureRequest, vllm_url: str) -> Target:
    """vLLM itself shows what the suite may ask; the gateway must do as well."""
    if request.param == "direct":
        return Target(vllm_url, KEY, MODEL, CONTEXT_TOKENS, MISSING_DIRECT)
    return Target(request.getfixturevalue("gateway_url"), KEY, MODEL, CONTEXT_TOKENS, MISSING)


class TestChat(ChatCases):
    """``/v1/chat/completions``."""


class TestChatErrors(ChatErrorCases):
    """Its refusals."""


class TestChatTools(ChatToolCases):
    """Its tools and schemas."""


class TestOpenAI(OpenAICases):
    """The other OpenAI endpoints."""


class TestAnthropic(AnthropicCases):
    """``/v1/messages``."""

"""H4: the same request, sent to a real vLLM directly and through the gateway, gives equal bytes.

Only what vLLM makes anew for every request is masked: ids, times, and ``system_fingerprint``, which vLLM puts into the
last chunk of a stream, that is into the usage chunk when there is one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.e2e.gateway_process import KEY
from tests.e2e.sdk_calls import FORECAST_SCHEMA, TOOL
from tests.e2e.vllm_server import CONTEXT_TOKENS, MODEL

pytestmark = pytest.mark.vllm

TRIES = 5  # vLLM joins two tokens in one chunk when its own server lags behind its engine
EPHEMERAL = [
    (re.compile(rb'"(id|item_id|response_id)":"[^"]*"'), rb'"\1":"*"'),
    (re.compile(rb'"(created|created_at|completed_at)":\d+'), rb'"\1":0'),
    (re.compile(rb',"system_fingerprint":"[^"]*"'), rb""),
]
GENERATED = {"model": MODEL, "temperature": 0, "seed": 7, "max_tokens": 40, "ignore_eos": True}
CHAT = {**GENERATED, "messages": [{"role": "user", "content": "Tell me about 机器 and 🤖."}]}
CALL = {**CHAT, "max_tokens": 300, "ignore_eos": False, "parallel_tool_calls": False, "tools": [TOOL]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": FORECAST_SCHEMA}}
MESSAGE = {"model": MODEL, "temperature": 0, "max_tokens": 40, "messages": CHAT["messages"]}
RESPONSE = {"model": MODEL, "temperature": 0, "max_output_tokens": 40, "input": "Tell me about 机器."}
USAGE = {"stream_options": {"include_usage": True}}

STREAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat with usage": ("/v1/chat/completions", {**CHAT, **USAGE}),
    "chat with usage in every chunk": (
        "/v1/chat/completions",
        {**CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "chat with logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "chat with token ids": ("/v1/chat/completions", {**CHAT, "return_token_ids": True}),
    "chat with a stop word": ("/v1/chat/completions", {**CHAT, "ignore_eos": False, "stop": ["e", "6"]}),
    "required tool": ("/v1/chat/completions", {**CALL, "tool_choice": "required"}),
    "json schema": ("/v1/chat/completions", {**CHAT, "ignore_eos": False, "response_format": SCHEMA}),
    "completion": ("/v1/completions", {**GENERATED, "prompt": "Once upon a time"}),
    "completion with usage": ("/v1/completions", {**GENERATED, "prompt": "Once upon a time", **USAGE}),
    "response": ("/v1/responses", RESPONSE),
    "message": ("/v1/messages", MESSAGE),
}
PLAIN = {
    **{name: (path, body) for name, (path, body) in STREAMED.items() if "stream_options" not in body},
    "count tokens": ("/v1/messages/count_tokens", {"model": MODEL, "messages": CHAT["messages"]}),
    "tokenize": ("/tokenize", {"model": MODEL, "prompt": "Tell me about 机器."}),
    "detokenize": ("/detokenize", {"model": MODEL, "tokens": [70, 71, 72]}),
    "bad parameter": ("/v1/chat/completions", {**CHAT, "temperature": -1}),
    "bad message": ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": 5}]}),
    "max_tokens of 0": ("/v1/chat/completions", {**CHAT, "max_tokens": 0}),
    "max_tokens as a word": ("/v1/chat/completions", {**CHAT, "max_tokens": "many"}),
    "bad schema": (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
    ),
}


def ask(url: str, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
    """Status, content type and masked body."""
    answer = httpx.post(url + path, json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=60.0)
    masked = answer.content
    for pattern, replacement in EPHEMERAL:
        masked = pattern.sub(replacement, masked)
    return answer.status_code, answer.headers["content-type"], masked


def check_same(direct_url: str, vllm_gateway_url: str, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
    """Both answers, which must be equal; the first call only warms vLLM's prefix cache, which usage tells of."""
    ask(direct_url, path, body)
    for _ in range(TRIES):
        direct, through = ask(direct_url, path, body), ask(vllm_gateway_url, path, body)
        if direct == through:
            break
    assert through == direct
    return through


@pytest.mark.parametrize("name", STREAMED)
def test_h4_streams_are_equal(vllm_url: str, vllm_gateway_url: str, name: str) -> None:
    path, body = STREAMED[name]
    status, content_type, stream = check_same(vllm_url, vllm_gateway_url, path, {**body, "stream": True})
    assert status == 200
    assert content_type.startswith("text/event-stream")
    assert stream.count(b"\n\n") >= 3


@pytest.mark.parametrize("name", PLAIN)
def test_h4_plain_answers_are_equal(vllm_url: str, vllm_gateway_url: str, name: str) -> None:
    path, body = PLAIN[name]
    status, content_type, answer = check_same(vllm_url, vllm_gateway_url, path, body)
    assert status in (200, 400)
    assert content_type == "application/json"
    assert isinstance(json.loads(answer), dict)


def test_h4_context_errors_are_the_same_kind(vllm_url: str, vllm_gateway_url: str) -> None:
    """The gateway refuses before vLLM is asked, so the words differ; status and shape do not."""
    body = {**CHAT, "max_tokens": CONTEXT_TOKENS + 1}
    direct, through = (ask(url, "/v1/chat/completions", body) for url in (vllm_url, vllm_gateway_url))
    assert through[:2] == direct[:2] == (400, "application/json")
    assert json.loads(through[2])["error"].keys() == json.loads(direct[2])["error"].keys()

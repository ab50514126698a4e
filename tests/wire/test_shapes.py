"""Paths, whole JSON answers, errors, and what a replica tells of itself."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.domain import Endpoint, EngineStats, Usage
from gateway.wire.document import BODY_BYTES_MAX, TAIL_BYTES, JsonWatcher
from gateway.wire.endpoints import ROUTES, is_clean_path
from gateway.wire.errors_out import render_error, render_sse_error
from gateway.wire.vllm import parse_metrics, parse_models
from gateway.wire.watch import Watcher, watch

JSON = b"application/json"
CHAT = (
    b'{"id":"chatcmpl-1","choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3,"prompt_tokens_details":null},'
    b'"prompt_logprobs":null}'
)


def whole(endpoint: Endpoint, body: bytes, size: int = 1 << 30) -> Watcher:
    watcher = watch(endpoint, JSON, strip_usage=True)
    out = b"".join(watcher.feed(body[at : at + size]) for at in range(0, len(body), size))
    assert out + watcher.finish() == body
    return watcher


def test_every_endpoint_has_a_path_and_clean_paths_have_one_reading() -> None:
    assert {route.endpoint for route in ROUTES.values()} == set(Endpoint)
    assert all(is_clean_path(path) for path in ROUTES)
    free = {route.endpoint for route in ROUTES.values() if not route.takes_permit}
    assert free == {Endpoint.TOKENIZE, Endpoint.DETOKENIZE, Endpoint.COUNT_TOKENS}


@pytest.mark.parametrize(
    "path",
    [
        b"//v1",
        b"/v1//x",
        b"/v1/../admin",
        b"/v1/.",
        b"/..",
        b"/v1/%2e%2e",
        b"/v1/%63hat",
        b"/a\\b",
        b"/a b",
        b"/\xc3\xa9",
        b"/\x00",
    ],
)
def test_odd_paths_are_not_clean(path: bytes) -> None:
    assert not is_clean_path(path)


def test_dots_inside_names_are_clean() -> None:
    assert is_clean_path(b"/v1/models/qwen-2.5..x")


@pytest.mark.parametrize("size", [1, 17, 1 << 20])
def test_f4_usage_of_a_whole_chat_answer(size: int) -> None:
    watcher = whole(Endpoint.CHAT, CHAT % b"Hi", size)
    assert (watcher.usage, watcher.tokens, watcher.first_token) == (Usage(7, 3), 3, True)
    assert (watcher.finish_reason, watcher.completed, watcher.failed) == ("stop", True, False)
    assert (watcher.response_id, watcher.has_content) == ("chatcmpl-1", True)


@pytest.mark.parametrize("size", [4_096, 1 << 30])
def test_f4_usage_of_an_answer_too_large_to_keep(size: int) -> None:
    body = CHAT % (b'\\"usage\\":{\\"prompt_tokens\\":99}' * 100_000)
    watcher = watch(Endpoint.CHAT, JSON, strip_usage=False)
    assert isinstance(watcher, JsonWatcher)
    for at in range(0, len(body), size):
        watcher.feed(body[at : at + size])
        assert len(watcher._body) <= BODY_BYTES_MAX + 2 * TAIL_BYTES
    watcher.finish()
    assert (watcher.usage, watcher.completed, watcher.has_content) == (Usage(7, 3), True, True)


@pytest.mark.parametrize(
    ("endpoint", "answer", "expected"),
    [
        (
            Endpoint.COMPLETIONS,
            {
                "choices": [{"text": "x", "finish_reason": "length"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            },
            (Usage(1, 2), "length", True),
        ),
        (
            Endpoint.CHAT,
            {
                "choices": [{"message": {"content": None, "reasoning": "hm"}, "finish_reason": "length"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            },
            (Usage(1, 2), "length", False),
        ),
        (
            Endpoint.MESSAGES,
            {
                "type": "message",
                "content": [{"type": "text", "text": "x"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 3, "output_tokens": 4},
            },
            (Usage(3, 4), "end_turn", True),
        ),
        (
            Endpoint.RESPONSES,
            {
                "status": "completed",
                "output": [{"type": "reasoning"}, {"type": "message"}],
                "usage": {"input_tokens": 5, "output_tokens": 6},
            },
            (Usage(5, 6), "completed", True),
        ),
        (
            Endpoint.EMBEDDINGS,
            {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0}},
            (Usage(8), None, False),
        ),
    ],
)
def test_f4_both_namings_of_usage_count(
    endpoint: Endpoint, answer: dict[str, object], expected: tuple[Usage, str | None, bool]
) -> None:
    watcher = whole(endpoint, json.dumps({"id": "a-1", **answer}).encode(), 5)
    assert (watcher.usage, watcher.finish_reason, watcher.has_content) == expected
    assert watcher.first_token is (expected[0].completion > 0)
    assert (watcher.response_id, watcher.completed, watcher.failed) == ("a-1", True, False)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"m","type":"NotFoundError","param":null,"code":404}}',
        b'{"object":"error","message":"m","code":400}',
        b'{"type":"error","error":{"type":"api_error","message":"m"}}',
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.EMBEDDINGS])
def test_b5_the_engines_own_error_body_is_noted(endpoint: Endpoint, body: bytes) -> None:
    watcher = whole(endpoint, body)
    assert (watcher.failed, watcher.tokens, watcher.first_token) == (True, 0, False)


def test_b4_a_body_that_is_no_json_is_not_completed_but_other_types_are() -> None:
    assert not whole(Endpoint.CHAT, (CHAT % b"Hi")[:-9]).completed
    assert whole(Endpoint.CHAT, b'[{"odd":1}]').completed
    audio = watch(Endpoint.TRANSCRIPTIONS, b"text/plain", strip_usage=False)
    assert (audio.feed(b"\xff\0"), audio.finish(), audio.completed) == (b"\xff\0", b"", True)


ALL_ERRORS = [errors.InvalidRequest, errors.InvalidKey, errors.ModelNotFound, errors.RequestTooLarge, errors.Suspended,
              errors.QueueFull, errors.UpstreamError, errors.UpstreamTimeout, errors.GatewayError]  # fmt: skip
ANTHROPIC_TYPES = ["invalid_request_error", "authentication_error", "not_found_error", "request_too_large",
                   "rate_limit_error", "overloaded_error", "api_error", "timeout_error", "api_error"]  # fmt: skip


@pytest.mark.parametrize(("kind", "word"), list(zip(ALL_ERRORS, ANTHROPIC_TYPES, strict=True)))
def test_h3_errors_have_the_shape_of_their_endpoint(kind: type[errors.GatewayError], word: str) -> None:
    error = kind('say "你好"', param="model")
    openai = {"error": {"message": error.message, "type": kind.type, "param": "model", "code": kind.code}}
    anthropic = {"type": "error", "error": {"type": word, "message": error.message}}
    assert json.loads(render_error(error, Endpoint.CHAT)) == json.loads(render_error(error, None)) == openai
    assert json.loads(render_error(error, Endpoint.MESSAGES)) == anthropic
    assert json.loads(render_error(error, Endpoint.COUNT_TOKENS)) == anthropic


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES])
def test_b4_our_own_stream_error_is_one_event_its_watcher_understands(endpoint: Endpoint) -> None:
    event = render_sse_error(errors.UpstreamCut("The replica broke off."), endpoint)
    assert event.startswith(
        b'data: {"error":{' if endpoint is Endpoint.CHAT else b'event: error\ndata: {"type":"error",'
    )
    assert event.count(b"\n\n") == 1
    watcher = watch(endpoint, b"text/event-stream", strip_usage=False)
    assert watcher.feed(event) == event
    assert watcher.failed
    assert not watcher.completed


NEW = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="q"} 3.0
vllm:num_requests_running{engine="1",model_name="q"} 4.0
vllm:num_requests_running_by_team{engine="7"} 99.0
vllm:num_requests_waiting{engine="0",model_name="a \\" b} c"} 1.0
vllm:num_requests_waiting{engine="1",model_name="q"} NaN
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:gpu_cache_usage_perc{engine="0"} 0.9
vllm:prefix_cache_queries_total{engine="0"} 1e+03
vllm:prefix_cache_queries_created{engine="0"} 1.7e9
vllm:prefix_cache_hits_total{engine="0"} 750.0
vllm:prompt_tokens_total{engine="0"} 10.0
vllm:prompt_tokens_total{engine="1"} garbage
vllm:prompt_tokens_total
vllm:generation_tokens_total{engine="0"} 20.0
vllm:num_preemptions_total{engine="0"} 2.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",kv_cache_size_tokens="1500"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100",kv_cache_size_tokens="None"} 1.0
"""
OLD = """vllm:num_requests_running{model_name="q"} 2.0
vllm:gpu_cache_usage_perc{model_name="q"} 0.75
vllm:gpu_prefix_cache_queries_total{model_name="q"} 8.0
vllm:gpu_prefix_cache_hits_total{model_name="q"} 6.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1.0
"""


@pytest.mark.parametrize(
    ("page", "stats"),
    [
        (NEW, EngineStats(2, 7.0, 1.0, 0.375, 3_100, 1_000.0, 750.0, 10.0, 20.0, 2.0)),
        (OLD, EngineStats(1, 2.0, 0.0, 0.75, 160, 8.0, 6.0)),
        (NEW.replace("\n", "\r\n"), EngineStats(2, 7.0, 1.0, 0.375, 3_100, 1_000.0, 750.0, 10.0, 20.0, 2.0)),
        ("", EngineStats()),
        ("<html>busy</html>\nvllm:\nvllm:num_requests_running{\n\0", EngineStats()),
    ],
)
def test_d4_metrics_of_all_versions_and_of_garbage(page: str, stats: EngineStats) -> None:
    assert parse_metrics(page) == stats


def test_models_are_listed_with_their_context() -> None:
    body = b'{"object":"list","data":[{"id":"q","max_model_len":131072,"root":"x"},{"id":"lora","max_model_len":null}]}'
    assert parse_models(body) == {"q": 131072, "lora": None}
    for garbage in (b"", b"[]", b'{"data":5}', b"<html>", b'{"error":{}}'):
        assert parse_models(garbage) == {}

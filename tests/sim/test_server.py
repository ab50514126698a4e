"""The simulated server over real sockets, as ``vllm.md`` describes the real one."""

import asyncio
import threading

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.sim.ask import Refusal
from gateway.sim.http import Connection, Reply
from gateway.sim.offload import THREAD_BYTES, offload
from gateway.sim.profiles import D1, D2, D3
from gateway.sim.server import SimServer

FAST = 40.0
CHAT = "/v1/chat/completions"


def hello(**more):
    return {"model": "qwen", "messages": [{"role": "user", "content": "hello"}], **more}


def run(scene, profile=D3, speed=FAST, **options):
    """Run ``scene(client, server)`` against a fresh server."""

    async def main():
        async with (
            SimServer(profile, speed=speed, **options) as server,
            httpx.AsyncClient(base_url=server.url, timeout=20) as client,
        ):
            return await scene(client, server)

    return asyncio.run(main())


async def until(condition, seconds=5.0):
    """Wait for another task to make ``condition`` true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def events(text):
    """The JSON of each data line; ``[DONE]`` as text."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else msgspec.json.decode(line) for line in lines]


def test_chat_stream_is_role_then_tokens_then_finish_usage_done():
    async def scene(client, _):
        body = hello(stream=True, max_tokens=5, stream_options={"include_usage": True})
        return await client.post(CHAT, json=body, headers={"x-request-id": "abc"})

    answer = run(scene)
    role, *tokens, finish, usage, done = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert {event["id"] for event in (role, *tokens, finish, usage)} == {"chatcmpl-abc"}
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 5
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert done == "[DONE]"


def test_no_usage_chunk_unless_asked_for():
    async def scene(client, _):
        return await client.post(CHAT, json=hello(stream=True, max_tokens=2))

    assert all("usage" not in event for event in events(run(scene).text)[:-1])


def test_whole_answer_equals_the_streamed_one_and_the_second_prompt_is_cached():
    async def scene(client, _):
        body = hello(messages=[{"role": "user", "content": "tell me " * 100}])
        whole = (await client.post(CHAT, json=body)).json()
        stream = events((await client.post(CHAT, json={**body, "stream": True})).text)
        return whole, stream, (await client.post(CHAT, json=body)).json()

    whole, stream, again = run(scene)
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in stream[:-1])
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] // 16 * 16


def test_a_conversation_finds_its_own_answer_in_the_cache():
    async def scene(client, _):
        turns = [{"role": "user", "content": "explain the queue"}]
        first = (await client.post(CHAT, json=hello(messages=turns))).json()
        turns += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
        return first["usage"], (await client.post(CHAT, json=hello(messages=turns))).json()["usage"]

    first, second = run(scene)
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["total_tokens"] - 16


def test_thinking_comes_first_and_counts_against_the_limit():
    async def scene(client, _):
        body = hello(stream=True, max_tokens=10, chat_template_kwargs={"enable_thinking": True})
        return (await client.post(CHAT, json=body)).text

    deltas = [event["choices"][0]["delta"] for event in events(run(scene))[1:-2]]
    assert all(set(delta) == {"reasoning"} for delta in deltas)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (CHAT, b"{no json", 400, "JSON"),
        (CHAT, b"[]", 400, "dictionary"),
        (CHAT, b'{"messages": "x"}', 400, "messages"),
        (CHAT, b'{"messages": []}', 400, "messages"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "response_format": 3}', 400, "type"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}', 400, "at least 1"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "9"}', 400, "integer"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 300000}', 400, "262144"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "stream_options": {}}', 400, "stream=True"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}', 400, "tools"),
        (CHAT, b'{"model": "other", "messages": []}', 404, "`other` does not exist"),
        ("/v1/completions", b'{"prompt": ["a", "b"]}', 400, "one prompt"),
        ("/v1/completions", b'{"prompt": ""}', 400, "prompt"),
        ("/v1/embeddings", b'{"input": {}}', 400, "prompt"),
        ("/tokenize", b'{"prompt": [["a"]]}', 400, "prompt"),
        ("/detokenize", b'{"tokens": "x"}', 400, "integers"),
        ("/sim/faults", b'{"faults": [{"kind": "meteor"}]}', 400, "meteor"),
    ],
)
def test_errors_have_the_engines_shape(path, body, status, words):
    async def scene(client, server):
        answer = await client.post(path, content=body)
        assert server.visits.inflight == 0
        return answer

    answer = run(scene)
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == status
    assert words in error["message"]
    assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")


def test_errors_on_messages_have_anthropics_shape():
    async def scene(client, _):
        return await client.post("/v1/messages", json={"model": "nope", "messages": []})

    assert run(scene).json()["error"]["type"] == "not_found_error"


def test_methods_paths_and_preflight():
    async def scene(client, _):
        asked = [
            await client.head("/"),
            await client.head("/v1/models"),
            await client.get(CHAT),
            await client.get("/nowhere"),
            await client.options(CHAT, headers={"origin": "http://elsewhere"}),
        ]
        return [answer.status_code for answer in asked]

    assert run(scene) == [404, 405, 405, 404, 400]


def test_utility_pages():
    async def scene(client, _):
        ok = [(await client.get(path)).status_code for path in ("/health", "/ping", "/load", "/version")]
        card = (await client.get("/v1/models")).json()["data"][0]
        shown = (await client.post("/tokenize", json={"prompt": "hello 缓存"})).json()
        back = (await client.post("/detokenize", json={"tokens": shown["tokens"]})).json()
        return ok, card, shown, back

    ok, card, shown, back = run(scene)
    assert ok == [200] * 4
    assert (card["id"], card["max_model_len"]) == ("qwen", 262_144)
    assert shown["count"] == len(shown["tokens"]) == 4
    assert back == {"prompt": "hello 缓存"}


def test_tokenize_agrees_with_usage():
    async def scene(client, _):
        counted = (await client.post("/tokenize", json=hello())).json()["count"]
        return counted, (await client.post(CHAT, json=hello())).json()["usage"]["prompt_tokens"]

    counted, used = run(scene)
    assert counted == used


def test_metrics_count_what_was_answered():
    async def scene(client, _):
        body = hello(messages=[{"role": "user", "content": "x" * 400}], max_tokens=7)
        usage = [(await client.post(CHAT, json=body)).json()["usage"] for _ in range(2)]
        return usage, (await client.get("/metrics")).text

    usage, text = run(scene)
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="qwen"}'
    assert float(values[f"vllm:prompt_tokens_total{labels}"]) == sum(one["prompt_tokens"] for one in usage)
    assert float(values[f"vllm:generation_tokens_total{labels}"]) == 14
    assert float(values[f"vllm:prefix_cache_hits_total{labels}"]) == usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert float(values[f"vllm:num_requests_running{labels}"]) == 0
    assert 'kv_cache_size_tokens="1629008"' in text


def test_prometheus_can_read_the_metrics():
    async def scene(client, _):
        return (await client.get("/metrics")).text

    names = {family.name for family in text_string_to_metric_families(run(scene))}
    assert {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"} <= names


def test_a_full_backlog_is_503_at_once():
    async def scene(client, server):
        body = hello(max_tokens=400, ignore_eos=True)
        calls = [asyncio.create_task(client.post(CHAT, json=body)) for _ in range(3)]
        await until(lambda: server.visits.opened == 3)
        refused = await client.post(CHAT, json=body)
        return refused, [answer.status_code for answer in await asyncio.gather(*calls)]

    refused, others = run(scene, speed=10, max_num_queued_reqs=3)
    assert refused.status_code == refused.json()["error"]["code"] == 503
    assert refused.json()["error"]["type"] == "Service Unavailable"
    assert others == [200] * 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_engine(stream):
    async def scene(client, server):
        body = hello(stream=stream, max_tokens=100_000, ignore_eos=True)
        call = asyncio.create_task(client.post(CHAT, json=body))
        await until(lambda: server.machine.engine.running == 1)
        call.cancel()
        await until(lambda: server.visits.inflight == 0, 0.5)
        await until(lambda: server.machine.engine.running == 0, 0.5)
        return (await client.get("/sim/stats")).json()

    stats = run(scene)
    assert (stats["inflight_max"], stats["aborted"], stats["running"]) == (1, 1, 0)
    assert set(stats["requests"].values()) == {"aborted"}


def test_big_work_leaves_the_loop_and_its_result_or_error_comes_back():
    async def main():
        here, told, done = threading.get_ident(), [], asyncio.Event()

        def work():
            told.append(threading.get_ident() == here)
            raise Refusal(400, "BadRequestError", "no")

        def then(result):
            with pytest.raises(Refusal):
                result()
            told.append(threading.get_ident() == here)
            done.set()

        offload(10, work, then)
        offload(THREAD_BYTES, work, then)
        done.clear()
        await asyncio.wait_for(done.wait(), 5)
        return told

    assert asyncio.run(main()) == [True, True, False, True]


def test_a_megabyte_is_answered():
    async def scene(client, _):
        return await client.post(CHAT, json=hello(messages=[{"role": "user", "content": "word " * 200_000}]))

    assert run(scene, speed=1_000.0).json()["usage"]["prompt_tokens"] == 250_003


def test_pipelined_generations_are_answered_one_after_the_other():
    async def scene(_, server):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        for name in ("a", "b"):
            body = msgspec.json.encode(hello(max_tokens=3))
            head = f"POST {CHAT} HTTP/1.1\r\nx-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
        got = b""
        while b"chatcmpl-b" not in got:
            got += await asyncio.wait_for(reader.read(65_536), 5)
        writer.close()
        await writer.wait_closed()
        return got, server.visits.inflight_max

    got, most = run(scene)
    assert got.index(b"chatcmpl-a") < got.index(b"chatcmpl-b")
    assert most == 1


@pytest.mark.parametrize(("rank", "status"), [("0", 200), ("1", 400), ("word", 200), ("9" * 5_000, 400)])
def test_only_the_engines_there_are_can_be_pinned(rank, status):
    async def scene(client, _):
        return await client.post(CHAT, json=hello(max_tokens=1), headers={"x-data-parallel-rank": rank})

    assert run(scene).status_code == status


def samples(text):
    """The values of a metrics page by name and labels."""
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}


def test_two_engines_behind_one_server_have_caches_of_their_own():
    body = hello(messages=[{"role": "user", "content": "x" * 800}], max_tokens=2)

    async def scene(client, _):
        cached = []
        for rank in ("0", "0", "1", "word"):  # the word: balanced, and both engines are idle
            answer = await client.post(CHAT, json=body, headers={"x-data-parallel-rank": rank})
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        refused = await client.post(CHAT, json=body, headers={"x-data-parallel-rank": "2"})
        return cached, refused, (await client.get("/metrics")).text

    cached, refused, text = run(scene, D1)
    assert [count > 0 for count in cached] == [False, True, False, True]
    assert refused.status_code == 400
    assert "[0, 2)" in refused.json()["error"]["message"]
    values = samples(text)
    for rank, requests in (("0", 3), ("1", 1)):
        labels = f'engine="{rank}",model_name="qwen"'
        assert values[f"vllm:generation_tokens_total{{{labels}}}"] == 2 * requests
        assert values[f'vllm:request_success_total{{{labels},finished_reason="length"}}'] == requests
        assert values[f"vllm:request_prefill_time_seconds_count{{{labels}}}"] == requests
    configs = [name for name in values if name.startswith("vllm:cache_config_info")]
    assert [f'engine="{rank}"' in config for rank, config in enumerate(configs)] == [True, True]
    assert not any("spec_decode" in name for name in values)


def test_speculative_decoding_sends_groups_of_tokens_and_counts_them():
    async def scene(client, _):
        stream = await client.post(CHAT, json=hello(stream=True, max_tokens=300, ignore_eos=True))
        return events(stream.text), (await client.get("/metrics")).text

    chunks, text = run(scene, D2)
    values = samples(text)
    labels = 'engine="0",model_name="qwen"'
    drafts, drafted, accepted = (
        values[f"vllm:spec_decode_{name}_total{{{labels}}}"]
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    by_position = [
        values[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{at}"}}'] for at in (0, 1)
    ]
    pieces = [event["choices"][0]["delta"]["content"] for event in chunks[1:-2]]
    assert max(map(len, pieces)) > 8  # a simulated token has at most four characters
    assert sum(by_position) == accepted
    assert drafted == pytest.approx(2 * drafts, abs=1)
    assert 300 - len(pieces) == accepted
    assert 0.55 < accepted / drafted < 0.95


def test_api_key_guards_v1_only():
    async def scene(client, _):
        refused = await client.post(CHAT, json=hello())
        let_in = await client.get("/v1/models", headers={"authorization": "Bearer s"})
        return refused.status_code, let_in.status_code, (await client.get("/health")).status_code

    assert run(scene, api_key="s") == (401, 200, 200)


def test_idle_connections_are_closed():
    async def main():
        def serve(_, reply: Reply):
            reply.send(200, b"ok", "text/plain")

        open_ones = set()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(serve, open_ones, idle_s=0.05), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n")
            got = await asyncio.wait_for(reader.read(), 2)
            writer.close()
            await writer.wait_closed()
        return got

    got = asyncio.run(main())
    assert got.count(b"HTTP/1.1 200 OK") == got.count(b"\r\n\r\nok") == 2  # pipelined requests, answered in order


def test_garbage_is_400_and_a_restart_forgets():
    async def main():
        server = SimServer(D3, speed=FAST)
        async with server:
            port = server.port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x00\x01 what\r\n\r\n")
            garbage = await reader.read()
            writer.close()
            await writer.wait_closed()
            async with httpx.AsyncClient(base_url=server.url) as client:
                await client.post(CHAT, json=hello(max_tokens=1))
            assert server.visits.opened == 1
            assert server.visits.endings == {"done": 1}
        async with server:
            assert (server.port, server.visits.opened, server.machine.engine.cache.idle) == (port, 0, 0)
        return garbage

    assert asyncio.run(main()).startswith(b"HTTP/1.1 400 ")


def test_a_taken_port_is_an_os_error():
    async def scene(_, server):
        with pytest.raises(OSError):
            await SimServer(D3, server.port).start()

    run(scene)

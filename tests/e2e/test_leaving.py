"""Clients that leave, replicas that hang, and how little others notice."""

from __future__ import annotations

import asyncio
import gc
import time

import psutil
import pytest

from tests.e2e.stack import ADMIN_KEY, AUTH, Stack, get, post, prompt, served, stack, until
from tests.e2e.upstream import DONE, Upstream, chat, delta, role, stop, stream

LEAVE_S = 0.1  # disconnect to upstream abort, the goal; the requirement is 1 s


@pytest.mark.parametrize("streaming", [True, False])
@served
async def test_a2_leaving_during_a_long_prefill_stops_the_engine(streaming: bool) -> None:
    upstream = Upstream()
    upstream.answers.append([30.0, chat()])
    loop = asyncio.get_running_loop()
    async with stack(upstream) as running:
        client = await running.client()
        client.send(post(prompt("x" * 100_000, stream=streaming)))
        seen = await upstream.call()
        left_s = loop.time()
        client.writer.close()
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        assert seen.gone_s is not None
        assert seen.gone_s - left_s < LEAVE_S
        record = await running.record()
        assert (record["outcome"], record["completed"]) == ("client_gone", False)


@served
async def test_a2_leaving_in_the_middle_of_a_stream_stops_the_engine() -> None:
    upstream = Upstream()
    upstream.answers.append(stream(role(), delta("a"), delta("b"), 30.0, DONE))
    async with stack(upstream) as running:
        client = await running.client()
        client.send(post(prompt(stream=True)))
        seen = await upstream.call()
        await client.head()
        client.leave()
        async with asyncio.timeout(1.0):
            await seen.gone.wait()
        record = await running.record()
        assert record["outcome"] == "client_gone"
        assert record["completion"] == 2


@served
async def test_a4_leaving_the_queue_never_blocks_those_behind() -> None:
    gate = asyncio.Event()
    upstream = Upstream()
    upstream.answers.append([gate, chat("first")])
    async with stack(upstream, replica={"concurrency": {"max": 1}}) as running:
        clients = [await running.client() for _ in range(6)]
        for number, client in enumerate(clients, 1):
            client.send(post(prompt(f"call {number}")))
            waiting = running.gateway.path.models["qwen"].gate
            await until(lambda: len(upstream.seen) + waiting.depth == number)  # noqa: B023
        for client in clients[1:5]:
            client.leave()
        gate.set()
        assert (await clients[0].reply()).status == 200
        assert (await clients[5].reply(2.0)).status == 200
        assert len(upstream.seen) == 2
        assert upstream.inflight_max == 1
        await running.record(6)
        assert sorted(call["outcome"] for call in running.calls()) == ["client_gone"] * 4 + ["ok"] * 2
        for client in clients:
            client.leave()


@served
async def test_a5_one_hung_replica_does_not_slow_the_others() -> None:
    hung, sound = Upstream(), Upstream()
    hung.default = [60.0]
    loop = asyncio.get_running_loop()
    async with stack(hung, sound, replica={"concurrency": {"max": 4}}) as running:
        stuck = [await running.client() for _ in range(12)]
        for client in stuck:
            client.send(post(prompt(), extra=AUTH))
        await until(lambda: len(hung.seen) == 4)
        hung.health = hung.metrics = [60.0]
        before = loop.time()
        for _ in range(30):
            assert (await running.post(prompt())).headers["x-gateway-replica"] == "r1"
        assert loop.time() - before < 1.0
        for client in stuck:
            client.leave()


@served
async def test_a6_one_megabyte_prompts_do_not_block_the_loop() -> None:
    upstream = Upstream(context_tokens=10_000_000)
    body = prompt("lorem ipsum dolor 你好 " * 45_000)
    assert len(body) > 1_000_000
    busy_s: list[float] = []  # CPU time of this thread between two turns of the loop: a busy machine does not add to it
    async with stack(upstream) as running:

        async def watch() -> None:
            while True:
                before = time.thread_time()
                await asyncio.sleep(0.001)
                busy_s.append(time.thread_time() - before)

        watching = asyncio.get_running_loop().create_task(watch())
        for _ in range(30):
            assert (await running.post(body)).status == 200
        watching.cancel()
    assert len(busy_s) > 30
    assert max(busy_s) < 0.05


async def churn(running: Stack, calls: int) -> None:
    """``calls`` calls with prompts, ids, models and paths that never repeat, some answered and some not."""
    async with await running.client() as client:
        for number in range(calls):
            match number % 4:
                case 0:
                    client.send(post(prompt(f"distinct prompt {number} " * 5, model=f"unknown-{number}")))
                case 1:
                    client.send(get(b"/nowhere/%d" % number))
                case _:
                    client.send(post(prompt(f"p{number} " * 20), extra=AUTH + b"x-request-id: id-%d\r\n" % number))
            await client.reply()


@pytest.mark.parametrize("calls", [800, pytest.param(40_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
@served
async def test_a7_memory_and_series_are_flat(calls: int) -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        admin = b"authorization: Bearer %b\r\n" % ADMIN_KEY.encode()

        async def rounds(number: int) -> tuple[int, int, int]:
            await asyncio.gather(*(churn(running, number // 8) for _ in range(8)))
            upstream.seen.clear()
            gc.collect()
            series = (await running.ask(get(b"/metrics", admin))).body.count(b"\n")
            return psutil.Process().memory_info().rss, len(gc.get_objects()), series

        await rounds(400)
        before = await rounds(calls // 2)
        after = await rounds(calls // 2)
        assert after[2] == before[2] > 50
        assert after[1] - before[1] < 2_000
        assert after[0] - before[0] < 4_000_000
        assert (await running.record(400 * 3 // 4))["team"] == "tests"


@served
async def test_a1_every_ending_leaves_nothing_and_one_record() -> None:
    """The endings that others of these tests do not meet; ``stack`` checks what is left."""
    upstream = Upstream()
    upstream.answers += [
        [30.0],  # silent before the first byte
        stream(role(), delta("a"), 30.0),  # silent in the stream
        [b"HTTP/1.1 200 OK\r\n", 30.0],  # silent in the head
        [b"not http at all\r\n\r\n"],
        stream(role(), stop(), DONE),
    ]
    times = {"first_byte_s": 0.3, "idle_s": 0.3}
    async with stack(upstream, model={"timeouts": times, "retry": {"attempts_max": 1}}) as running:
        replies = [await running.post(prompt(stream=True)) for _ in range(5)]
        assert [reply.status for reply in replies] == [504, 200, 504, 502, 200]
        assert b"upstream_timeout" in replies[1].body
        assert not replies[1].complete
        await running.record(5)
        assert [call["outcome"] for call in running.calls()] == [
            "upstream_timeout",
            "upstream_timeout",
            "upstream_timeout",
            "upstream_error",
            "ok",
        ]
        await until(lambda: upstream.inflight == 0)

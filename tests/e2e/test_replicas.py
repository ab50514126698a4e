"""Caps, queue, routing, breaker, probes and TLS, as replicas on real sockets see them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from pathlib import Path

import pytest
import trustme

from gateway.settings import load
from gateway.sim.profiles import PROFILES
from gateway.sim.server import SimServer
from tests.e2e.stack import ADMIN_KEY, Reply, Stack, get, prompt, served, stack, until
from tests.e2e.upstream import CUT, Upstream, chat, response

ADMIN = b"authorization: Bearer " + ADMIN_KEY.encode() + b"\r\n"
BUSY = response(b'{"error": {"message": "The engine is currently busy", "code": 503}}', 503)


async def states(running: Stack) -> dict[str, str]:
    """What the administrator sees of each replica: up, or why not, or its breaker."""
    found = (await running.ask(get(b"/admin/replicas", ADMIN))).json["replicas"]
    return {r["name"]: r["why_down"] or (r["breaker"] if r["breaker"] != "closed" else "up") for r in found}


async def burst(running: Stack, calls: int, body: bytes = prompt()) -> list[Reply]:
    return await asyncio.gather(*(running.post(body) for _ in range(calls)))


# -- caps and queue ----------------------------------------------------------------------------------------------------


@served
async def test_caps_are_never_passed_by_one_under_five_hundred_clients() -> None:
    one, two = Upstream(), Upstream()
    gate = asyncio.Event()
    one.default = two.default = [gate, 0.02, chat()]
    model = {"queue": {"depth": 300}}
    async with stack(one, two, model=model, replica={"concurrency": {"max": 16}}) as running:
        calls = asyncio.get_running_loop().create_task(burst(running, 500))
        await until(lambda: running.log_text.count('"reason":"queue_full"') >= 168, 10.0)
        gate.set()
        replies = await calls
        assert (one.inflight_max, two.inflight_max) == (16, 16)
        counts = Counter((reply.status, reply.reason) for reply in replies)
        assert counts == {(200, None): 332, (503, "queue_full"): 168}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status == 503)
        assert all(int(reply.headers["retry-after-ms"]) >= 1 for reply in replies if reply.status == 503)


@served
async def test_caps_hold_at_a_simulated_engine_with_clients_that_come_and_go() -> None:
    async with SimServer(PROFILES["D4"], speed=50.0) as sim:
        upstream = Upstream()
        models = [{"name": "qwen", "replicas": [{"name": "sim", "url": sim.url, "concurrency": {"max": 8}}]}]
        async with stack(upstream, sections={"models": models}) as running:

            async def visit(number: int) -> int:
                async with await running.client() as client:
                    client.post(prompt(f"call {number}", stream=True, max_tokens=5, ignore_eos=True))
                    if number % 3 == 0:
                        await asyncio.sleep(0.001 * (number % 50))
                        return 0
                    return (await client.reply(20.0)).status

            statuses = Counter(await asyncio.gather(*(visit(number) for number in range(150))))
            await until(lambda: sim.visits.inflight == 0)
            assert sim.visits.inflight_max <= 8
            assert statuses[200] == 100


@served
async def test_queue_timeout_is_a_503_that_says_when_to_come_back() -> None:
    upstream = Upstream()
    upstream.default = [1.0, chat()]
    model = {"queue": {"wait_s": {"short": 0.3, "long": 0.3}}}
    async with stack(upstream, model=model, replica={"concurrency": {"max": 1}}) as running:
        first, second = await burst(running, 2)
        assert (first.status, second.status, second.reason) == (200, 503, "queue_timeout")
        assert "retry-after" in second.headers


# -- where ------------------------------------------------------------------------------------------------------------


@served
async def test_d2_d5_a_burst_in_one_tick_spreads() -> None:
    fleet = [Upstream() for _ in range(3)]
    for upstream in fleet:
        upstream.default = [0.1, chat()]
    async with stack(*fleet) as running:
        await burst(running, 50)
        assert max(len(upstream.seen) for upstream in fleet) <= 18


@served
async def test_d3_a_prompt_too_long_for_one_goes_to_the_other_and_too_long_for_all_is_400_at_once() -> None:
    small, large = Upstream(context_tokens=4_000), Upstream(context_tokens=40_000)
    async with stack(small, large) as running:
        await burst(running, 8, prompt("word " * 10_000))
        assert (len(small.seen), len(large.seen)) == (0, 8)
        reply = await running.post(prompt("word " * 100_000))
        assert (reply.status, reply.reason) == (400, "context_length_exceeded")
        assert "40,000" in reply.json["error"]["message"]
        assert len(small.seen) + len(large.seen) == 8


@pytest.mark.parametrize("page", [b"", b"garbage {{{\n", b"vllm:num_requests_running NaN\n"])
@served
async def test_d4_a_replica_with_odd_metrics_serves_like_the_others(page: bytes) -> None:
    odd, plain = Upstream(), Upstream()
    odd.metrics = [response(page, 200 if page else 500, b"text/plain")]
    plain.metrics = [response(b"vllm:num_requests_running 50\nvllm:num_requests_waiting 9\n", 200, b"text/plain")]
    odd.default = plain.default = [0.02, chat()]
    async with stack(odd, plain) as running:
        await burst(running, 20)
        assert (len(odd.seen), len(plain.seen)) == (10, 10)


@served
async def test_d7_a_waiting_long_prompt_and_short_chats_do_not_stop_each_other() -> None:
    tp, dp = Upstream(context_tokens=200_000), Upstream(context_tokens=200_000)
    gate = asyncio.Event()
    tp.default, dp.default = [gate, chat()], [0.01, chat()]
    replicas = [
        {"name": "tp", "url": "", "serves": ["long"], "concurrency": {"max": 1}},
        {"name": "dp", "url": "", "serves": ["short"], "concurrency": {"max": 2}},
    ]
    model = {"name": "qwen", "routing": {"overflow": False, "long_tokens": 5_000}, "replicas": replicas}
    async with tp, dp:
        replicas[0]["url"], replicas[1]["url"] = tp.url, dp.url
        async with stack(sections={"models": [model]}) as running:
            long = [asyncio.get_running_loop().create_task(running.post(prompt("word " * 20_000))) for _ in range(2)]
            await until(lambda: running.gateway.path.models["qwen"].gate.depth == 1)
            assert {reply.status for reply in await burst(running, 30)} == {200}
            assert len(dp.seen) == 30
            gate.set()
            assert [(await task).status for task in long] == [200, 200]
            assert len(tp.seen) == 2


# -- breaker, retry, probes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 429, 503])
@served
async def test_e1_a_replicas_own_refusals_never_open_its_breaker(status: int) -> None:
    upstream = Upstream()
    upstream.default = [response(b"{}", status)]
    async with stack(upstream, model={"breaker": {"failures": 2}}) as running:
        assert [(await running.post(prompt())).status for _ in range(6)] == [status] * 6
        assert await states(running) == {"r0": "up"}


@pytest.mark.parametrize("failure", [[CUT], [response(b"{}", 500)], [response(b"{}", 502)]])
@served
async def test_e1_failures_open_it_and_one_call_tries_again(failure: list[bytes]) -> None:
    upstream = Upstream()
    upstream.default = failure  # type: ignore[assignment]
    model = {"breaker": {"failures": 3, "open_s": 0.5}, "retry": {"attempts_max": 1}}
    async with stack(upstream, model=model) as running:
        for _ in range(3):
            assert (await running.post(prompt())).status in (500, 502)
        assert await states(running) == {"r0": "open"}
        reply = await running.post(prompt())
        assert (reply.status, reply.reason) == (503, "no_replica")
        assert len(upstream.seen) == 3
        upstream.default = [0.2, chat()]
        await asyncio.sleep(0.6)
        statuses = sorted(reply.status for reply in await burst(running, 5))
        assert statuses[0] == 200
        assert await states(running) == {"r0": "up"}
        assert len(upstream.seen) <= 8


@pytest.mark.parametrize("first", [[BUSY], [CUT]], ids=["busy", "reset"])
@served
async def test_e2_busy_and_broken_before_the_first_byte_go_elsewhere(first: list[bytes]) -> None:
    bad, good = Upstream(), Upstream()
    bad.default = first  # type: ignore[assignment]
    async with stack(bad, good) as running:
        for number in range(1, 5):
            assert (await running.post(prompt())).headers["x-gateway-replica"] == "r1"
            assert len(good.seen) == number
        ids = [seen.header(b"x-request-id") for seen in bad.seen + good.seen]
        assert len(bad.seen) >= 1
        assert len(set(ids)) == len(ids)
        assert Counter(call["attempts"] for call in running.calls())[2] <= len(bad.seen)


@served
async def test_e2_retries_are_bounded_by_a_budget() -> None:
    fleet = [Upstream() for _ in range(3)]
    for upstream in fleet:
        upstream.default = [BUSY]
    model = {"retry": {"attempts_max": 3, "budget_share": 0.1, "budget_burst": 5}}
    async with stack(*fleet, model=model) as running:
        replies = [await running.post(prompt()) for _ in range(50)]
        assert {reply.status for reply in replies} == {503}
        assert sum(len(upstream.seen) for upstream in fleet) <= 50 + 5 + 5 + 1


@served
async def test_h2_no_healthy_replica_is_503_with_retry_after() -> None:
    upstream = Upstream()
    upstream.health = [response(b"", 503)]
    async with stack(upstream) as running:
        reply = await running.post(prompt())
        assert (reply.status, reply.reason) == (503, "no_replica")
        assert int(reply.headers["retry-after"]) >= 1
        ready = await running.ask(get(b"/readyz", b""))
        assert ready.status == 503


@served
async def test_e8_a_restarted_replica_is_not_routed_to_while_down_and_back_within_two_probes() -> None:
    stays, restarts = Upstream(), Upstream()
    async with stack(stays, restarts) as running:
        await restarts.stop()
        await until(lambda: not running.gateway.path.models["qwen"].pool.replicas["r1"].available)
        before = len(restarts.seen)
        assert {reply.headers["x-gateway-replica"] for reply in await burst(running, 10)} == {"r0"}
        assert (await states(running))["r1"].startswith("cannot connect")
        await restarts.start()
        loop = asyncio.get_running_loop()
        back_s = loop.time()
        await until(lambda: running.gateway.path.models["qwen"].pool.replicas["r1"].available)
        assert loop.time() - back_s < 0.1 * 2 + 0.15  # two probes, and a little for the machine
        await burst(running, 10)
        assert len(restarts.seen) > before


@served
async def test_e8_a_health_page_that_drips_is_no_health() -> None:
    """Byte after byte, each in time, and never an end: that must not keep a replica up, nor stop its probes."""
    upstream = Upstream()
    async with stack(upstream, server={"probe_timeout_s": 0.2}) as running:
        upstream.health = [b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", *[b"x", 0.05] * 1_000]
        replica = running.gateway.path.models["qwen"].pool.replicas["r0"]
        await until(lambda: not replica.available)
        assert "in time" in replica.probe.why
        upstream.health = [response(b"")]
        await until(lambda: replica.available)


@served
async def test_e6_reloading_under_load_fails_no_call_and_keeps_the_caps() -> None:
    one, two = Upstream(), Upstream()
    one.default = two.default = [0.01, chat()]
    async with stack(one, two, replica={"concurrency": {"max": 4}}) as running:
        both = json.loads(running.settings.read_text())
        only = json.loads(running.settings.read_text())
        del only["models"][0]["replicas"][0]
        statuses: Counter[int] = Counter()
        over = asyncio.Event()

        async def keep_asking() -> None:
            async with await running.client() as client:
                while not over.is_set():
                    client.post(prompt())
                    statuses[(await client.reply()).status] += 1

        asking = [asyncio.get_running_loop().create_task(keep_asking()) for _ in range(20)]
        for settings in [only, both] * 8:
            running.settings.write_text(json.dumps(settings))
            running.gateway.apply(load(running.settings, {}).compile())
            await asyncio.sleep(0.05)
        over.set()
        await asyncio.gather(*asking)
        assert set(statuses) == {200}
        assert two.inflight_max == 4
        await until(lambda: one.inflight == two.inflight == 0)


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """A certificate authority that this machine trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return authority


def server_side(authority: trustme.CA, name: str = "localhost") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


@served
async def test_tls_a_replica_whose_authority_the_machine_trusts(authority: trustme.CA) -> None:
    upstream = Upstream(tls=server_side(authority))
    async with stack(upstream) as running:
        assert await states(running) == {"r0": "up"}
        for body in (prompt(), prompt("x" * 90_000)):
            assert (await running.post(body)).status == 200
        assert upstream.seen[1].body == prompt("x" * 90_000)


@pytest.mark.parametrize("name", ["elsewhere.example", "stranger"])
@served
async def test_tls_a_bad_certificate_is_a_clear_502(authority: trustme.CA, name: str) -> None:
    issuer = trustme.CA() if name == "stranger" else authority
    upstream = Upstream(tls=server_side(issuer, "localhost" if name == "stranger" else name))
    async with stack(upstream, model={"retry": {"attempts_max": 1}}) as running:
        assert "certificate" in (await states(running))["r0"].lower()
        reply = await running.post(prompt())
        assert (reply.status, reply.reason) == (503, "no_replica")
        replica = running.gateway.path.models["qwen"].pool.replicas["r0"]
        replica.probe = replica.probe.passed()  # a certificate that expired since the last probe
        reply = await running.post(prompt())
        assert (reply.status, reply.reason) == (502, "upstream_error")
        assert "certificate" in reply.json["error"]["message"].lower()
        assert upstream.seen == []


@served
async def test_tls_verify_off_takes_any_certificate() -> None:
    upstream = Upstream(tls=server_side(trustme.CA(), "elsewhere.example"))
    async with stack(upstream, replica={"verify_tls": False}) as running:
        assert (await running.post(prompt())).status == 200
        assert json.loads(upstream.seen[0].body)["model"] == "qwen"

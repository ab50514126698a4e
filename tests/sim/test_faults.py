"""Every way to misbehave on demand."""

import asyncio

import httpx
import pytest

from gateway.sim.faults import Fault, FaultKind, Faults
from tests.sim.test_server import CHAT, events, hello, run, until


async def read(client, got, **options):
    """Stream a chat into ``got``, piece by piece."""
    async with client.stream("POST", CHAT, **options) as answer:
        async for text in answer.aiter_text():
            got.append(text)


async def order(client, *faults, **manner):
    answer = await client.post("/sim/faults", json={"faults": list(faults), "manner": manner or None})
    assert answer.status_code == 200, answer.text


def test_a_status_for_the_next_two_requests():
    async def scene(client, _):
        await order(client, {"kind": "status", "status": 502, "times": 2})
        return [(await client.post(CHAT, json=hello(max_tokens=1))).status_code for _ in range(3)]

    assert run(scene) == [502, 502, 200]


def test_close_before_the_headers():
    async def scene(client, server):
        server.faults.inject(Fault(FaultKind.CLOSE))
        with pytest.raises(httpx.TransportError):
            await client.post(CHAT, json=hello())
        return server.visits.endings, (await client.post(CHAT, json=hello(max_tokens=1))).status_code

    assert run(scene) == ({"broken": 1, "done": 1}, 200)


@pytest.mark.parametrize("stream", [True, False])
def test_close_after_some_chunks(stream):
    async def scene(client, server):
        await order(client, {"kind": "close_after", "chunks": 3})
        got = []
        with pytest.raises(httpx.TransportError):
            await read(client, got, json=hello(stream=stream, max_tokens=50))
        await until(lambda: server.machine.engine.running == 0)
        assert server.visits.endings == {"broken": 1}
        return "".join(got)

    got = run(scene)
    assert len(events(got)) == (4 if stream else 0)  # role and three tokens
    assert "[DONE]" not in got


@pytest.mark.parametrize(("kind", "seen"), [("hang", 0), ("hang_after", 3)])
def test_silence_lasts_until_the_client_leaves(kind, seen):
    async def scene(client, server):
        await order(client, {"kind": kind, "chunks": 2})
        got = []
        with pytest.raises(httpx.ReadTimeout):
            await read(client, got, json=hello(stream=True), timeout=0.3)
        assert server.machine.engine.running == 0
        await until(lambda: server.visits.inflight == 0)
        return "".join(got)

    assert len(events(run(scene))) == seen


def test_the_engines_own_error_mid_stream():
    async def scene(client, _):
        await order(client, {"kind": "error_after", "chunks": 1}, {"kind": "error_after", "chunks": 1})
        stream = (await client.post(CHAT, json=hello(stream=True))).text
        return stream, await client.post(CHAT, json=hello())

    stream, whole = run(scene)
    *_, error, done = events(stream)
    assert error["error"]["type"] == "InternalServerError"
    assert done == "[DONE]"
    assert whole.status_code == whole.json()["error"]["code"] == 500


def test_every_byte_alone_with_crlf_is_the_same_stream():
    question = hello(messages=[{"role": "user", "content": "缓存是什么?"}], stream=True, max_tokens=40)

    async def scene(client, server):
        plain = (await client.post(CHAT, json=question, headers={"x-request-id": "a"})).text
        await order(client, bytewise=True, crlf=True)
        pieces = []
        async with client.stream("POST", CHAT, json=question, headers={"x-request-id": "a"}) as answer:
            pieces = [piece async for piece in answer.aiter_raw()]
        await client.delete("/sim/faults")
        assert not server.faults.manner.bytewise
        return plain, b"".join(pieces)

    plain, odd = run(scene)
    assert any(not character.isascii() for character in plain)
    assert odd.count(b"\r\n") == odd.count(b"\n")
    strip = [{**event, "created": 0} if isinstance(event, dict) else event for event in events(plain)]
    assert [{**e, "created": 0} if isinstance(e, dict) else e for e in events(odd.decode())] == strip


def test_faults_queue_in_order_and_are_bounded():
    faults = Faults()
    faults.inject(Fault(FaultKind.HANG), Fault(FaultKind.STATUS, times=2))
    assert faults.left == 3
    assert [fault.kind for fault in iter(faults.take, None)] == ["hang", "status", "status"]
    with pytest.raises(ValueError):
        Fault(FaultKind.STATUS, times=0)


def test_stats_and_requests_over_http():
    async def scene(client, _):
        await asyncio.gather(*(client.post(CHAT, json=hello(max_tokens=20)) for _ in range(5)))
        await client.post(CHAT, json=hello(max_tokens=3, top_k=5), headers={"x-request-id": "r1"})
        stats, one = (await client.get("/sim/stats")).json(), (await client.get("/sim/requests/r1")).json()
        return stats, one, (await client.get("/sim/requests/none")).status_code

    stats, one, missing = run(scene)
    assert (stats["inflight"], stats["inflight_max"], stats["done"]) == (0, 5, 6)
    assert one["ending"] == "done"
    assert one["tokens"] == 3
    assert '"top_k":5' in one["body"]
    assert missing == 404

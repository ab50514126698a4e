"""Who may call what, what the replica is sent, and what the record says."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from gateway.domain import (
    CallClass,
    Endpoint,
    Key,
    Limits,
    Outcome,
    QueueSpec,
    RouteReason,
    RoutingSpec,
    Team,
)
from gateway.policy.keys import KeyTable
from tests.proxy.replicas import (
    STREAM_HEAD,
    Seen,
    answer_ok,
    chunk,
    event,
    hangs_up,
    streams,
    whole,
)
from tests.proxy.world import SECRET, Client, World, fleet, model_spec, replica_spec


def keys(world: World) -> None:
    def key(name: str, team: Team) -> Key:
        return Key(name, team, sha256(f"sk-{name}".encode()).hexdigest())

    world.keys = KeyTable(
        [
            key("alice", Team("chat")),
            key("bob", Team("small", models=frozenset({"embed"}))),
            key("eve", Team("off", limits=Limits(tokens_per_day=0))),
        ]
    )


def two_models(world: World) -> None:
    keys(world)
    world.serve("r0", answer_ok)
    world.serve("r1", answer_ok)
    world.open(
        model_spec(replica_spec("r0"), aliases=("default", "gpt-4")),
        model_spec(replica_spec("r1"), name="embed", upstream_name="BAAI/embed"),
    )


@pytest.mark.parametrize(
    ("secret", "model", "status", "code"),
    [
        ("sk-alice", "qwen", 200, None),
        ("sk-alice", "gpt-4", 200, None),
        ("sk-alice", "embed", 200, None),
        ("sk-alice", "Qwen", 404, "model_not_found"),
        ("sk-alice", "BAAI/embed", 404, "model_not_found"),
        ("sk-alice", None, 400, "invalid_request"),
        ("sk-bob", "qwen", 404, "model_not_found"),
        ("sk-bob", "embed", 200, None),
        ("sk-bob", None, 200, None),
        ("sk-eve", "qwen", 429, "insufficient_quota"),
        ("sk-nobody", "qwen", 401, "invalid_api_key"),
        (None, "qwen", 401, "invalid_api_key"),
    ],
)
def test_g3_who_may_call_what(
    world: World, secret: str | None, model: str | None, status: int, code: str | None
) -> None:
    two_models(world)
    client = world.call(secret=secret, model=model)
    (record,) = world.finish(client)
    assert client.downlink.status == record.status == status
    if code is not None:
        assert client.json()["error"]["code"] == code
        assert client.downlink.header(b"x-gateway-reason") == code.encode()
        assert (record.outcome, record.reason, record.attempts) == (Outcome.REFUSED, code, 0)


def test_g3_a_forbidden_model_looks_unknown(world: World) -> None:
    two_models(world)
    forbidden, unknown = world.call(secret="sk-bob", model="qwen"), world.call(secret="sk-bob", model="nope")
    world.finish(forbidden, unknown)
    assert forbidden.downlink.body == unknown.downlink.body.replace(b"nope", b"qwen")
    assert world.path.models_for(world.keys.find("sk-bob", 0.0)) == [("embed", None)]


def test_c4_the_replica_gets_its_own_name_for_the_model(world: World) -> None:
    two_models(world)
    seen = Seen()
    world.servers["r1"].script = seen
    world.finish(world.call(model="embed"))
    assert msgspec.json.decode(seen.requests[0].body)["model"] == "BAAI/embed"


def test_c1_c3_what_the_replica_is_sent(world: World) -> None:
    seen = Seen()
    world.serve("r0", seen)
    world.open(model_spec(replica_spec("r0", api_key="its-own")))
    raw = b'{"model":"qwen", "messages":[{"role":"user","content":"\\u4f60"}],"top_k":1.0,"x":{"b":1,"a":2}}'
    world.finish(world.call(raw=raw, headers=[(b"cookie", b"c"), (b"x-trace", b"t"), (b"te", b"trailers")]))
    (request,) = seen.requests
    assert request.body == raw
    assert request.line == b"POST /v1/chat/completions HTTP/1.1"
    assert request.headers[b"authorization"] == b"Bearer its-own"
    assert request.headers[b"host"] == b"r0:8000"
    assert request.headers[b"x-trace"] == b"t"
    assert not {b"cookie", b"te"} & request.headers.keys()
    assert SECRET.encode() not in b"".join(request.headers.values())


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"model": 3}'])
def test_a_body_that_is_none_is_refused(world: World, raw: bytes) -> None:
    fleet(world, answer_ok)
    client = world.call(raw=raw)
    (record,) = world.finish(client)
    assert (client.downlink.status, record.reason) == (400, "invalid_request")


def test_d3_a_prompt_beyond_all_replicas_is_refused_at_once(world: World) -> None:
    world.serve("r0", answer_ok)
    world.open(model_spec(replica_spec("r0", context_tokens=1_000)))
    client = world.call(messages=[{"role": "user", "content": "word " * 20_000}])
    (record,) = world.finish(client)
    assert (client.downlink.status, record.reason, record.e2e_s) == (400, "context_length_exceeded", 0.0)


def test_d3_d7_long_prompts_go_to_long_replicas(world: World) -> None:
    for name in ("tp", "dp"):
        world.serve(name, streams(tokens=1))
    world.open(
        model_spec(
            replica_spec("tp", 1, serves=frozenset({CallClass.LONG})),
            replica_spec("dp", 1, serves=frozenset({CallClass.SHORT}), context_tokens=8_000),
            routing=RoutingSpec(long_tokens=4_000),
        )
    )
    long_text = [{"role": "user", "content": "word " * 20_000}]
    longs = [world.call(stream=True, messages=long_text) for _ in range(2)]
    shorts = [world.call(stream=True) for _ in range(4)]
    records = world.finish(*longs, *shorts)
    assert [(r.replica, r.call_class) for r in records[:2]] == [("tp", CallClass.LONG)] * 2
    assert records[0].route is RouteReason.ONLY_FIT
    assert {record.outcome for record in records} == {Outcome.OK}
    assert max(record.queue_s for record in records[2:]) <= 0.8


def test_g4_too_many_bad_keys_are_cut_off(world: World) -> None:
    fleet(world, answer_ok)
    clients = [world.call(secret=f"sk-{i}") for i in range(40)]
    world.finish(*clients)
    answered = [client for client in clients if client.downlink.status == 401]
    cut = [client for client in clients if client.downlink.aborted]
    assert len(answered) == 18  # ten at once, eight after a wait
    assert len(cut) == 22
    assert not any(client.downlink.started for client in cut)


def test_queue_and_route_are_told(world: World) -> None:
    fleet(world, streams(tokens=10, gap_s=0.1), cap=1)
    first, second = world.call(stream=True), world.call(stream=True)
    one, two = world.finish(first, second)
    assert (one.queue_s, one.overhead_s) == (0.0, 0.0)
    assert two.queue_s == pytest.approx(1.1)
    assert second.downlink.header(b"x-gateway-queue-ms") == b"1100"
    assert second.downlink.header(b"x-gateway-replica") == b"r0"
    assert second.downlink.header(b"x-gateway-route") == b"least_inflight"
    assert (two.endpoint, two.key, two.model, two.stream) == (Endpoint.CHAT, "alice", "qwen", True)


def test_f3_estimates_learn_from_what_the_engine_counted(world: World) -> None:
    def counted(tokens: int) -> bytes:
        return whole(body=b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1}}' % tokens)

    fleet(world, Seen(counted(400)))
    text = [{"role": "user", "content": "x" * 1_000}]  # 255 tokens by the first guess
    for _ in range(40):
        world.finish(world.call(messages=text))
    first, last = world.records.kept[0], world.records.kept[-1]
    assert first.estimated_prompt == 255
    assert last.estimated_prompt == pytest.approx(400, rel=0.05)


def test_g5_every_call_has_one_record_whatever_came_of_it(world: World) -> None:
    async def mixed(peer: Any) -> None:
        while True:
            request = await peer.request()
            number = msgspec.json.decode(request.body)["seed"]
            await peer.sleep(0.01 * (number % 7))
            if number % 5 == 0:
                peer.close()
            elif number % 5 == 1:
                peer.send(STREAM_HEAD, chunk(event()))
                await peer.sleep(0.1)
                peer.close(ConnectionResetError())
            else:
                peer.send(whole(200 if number % 5 == 2 else 400 + number % 200))

    fleet(world, mixed, mixed, mixed, cap=4, queue=QueueSpec(depth=8, wait_short_s=0.05))

    async def storm() -> list[Client]:
        clients = []
        for number in range(400):
            clients.append(world.send(seed=number, stream=number % 2 == 0))
            if number % 9 == 0:
                clients[-3 % len(clients)].leaves()
            await asyncio.sleep(0.002)
        return clients

    clients = world.run(storm())
    world.finish(*clients)
    assert sorted(r.request_id for r in world.records.kept) == sorted(c.exchange.request_id for c in clients)
    assert all(client.downlink.over for client in clients)
    seen = {record.outcome for record in world.records.kept}
    assert seen >= {
        Outcome.OK,
        Outcome.CLIENT_GONE,
        Outcome.UPSTREAM_CUT,
        Outcome.QUEUE_FULL,
        Outcome.QUEUE_TIMEOUT,
    }


def test_tokenizing_takes_no_permit(world: World) -> None:
    fleet(world, streams(tokens=20), cap=1)
    running = world.call(stream=True)
    world.servers["r0"].script = answer_ok
    client = world.call(path=b"/tokenize", prompt="hello")
    assert world.finish(client)[0].outcome is Outcome.OK
    assert world.finish(running)[0].outcome is Outcome.OK


def test_e2_small_calls_go_elsewhere_too(world: World) -> None:
    fleet(world, hangs_up, answer_ok)
    clients = [world.call(path=b"/tokenize", prompt="hello") for _ in range(2)]
    assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
    assert world.events.retries == ["connection"]

"""Calls over several replicas: retries, keep-alives, reload, drain, and what the client and the record are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from gateway.domain import (
    BreakerSpec,
    CallClass,
    Endpoint,
    Key,
    Limits,
    Outcome,
    QueueSpec,
    RetrySpec,
    RouteReason,
    RoutingSpec,
    ServingSpec,
    Team,
    TimeoutSpec,
)
from gateway.policy.keys import KeyTable
from gateway.testing.network import PeerRequest, Script
from tests.proxy.conftest import (
    CHAT,
    DONE,
    OK_BODY,
    SECRET,
    STREAM_END,
    STREAM_HEAD,
    Client,
    World,
    answer_ok,
    chunk,
    event,
    model_spec,
    replica_spec,
    streams,
    whole,
)

KEEPALIVE = b": keep-alive\n\n"


class Seen:
    """Answers with what it is given and keeps the requests."""

    def __init__(self, *answer: bytes, delay_s: float = 0.0) -> None:
        self.requests: list[PeerRequest] = []
        self.answer = answer or (whole(),)
        self.delay_s = delay_s

    async def __call__(self, peer: Any) -> None:
        while True:
            self.requests.append(await peer.request())
            await peer.sleep(self.delay_s)
            peer.send(*self.answer)

    @property
    def ids(self) -> list[bytes]:
        return [request.headers[b"x-request-id"] for request in self.requests]


async def hangs_up(peer: Any) -> None:
    await peer.request()
    peer.close()


def fleet(world: World, *scripts: Script, cap: int = 2, **changes: Any) -> None:
    """Replicas r0, r1 … that do what ``scripts`` say."""
    for i, script in enumerate(scripts):
        world.serve(f"r{i}", script)
    world.open(model_spec(*(replica_spec(f"r{i}", cap) for i in range(len(scripts))), **changes))


class TestRetries:
    @pytest.mark.parametrize("status", [502, 503, 504])
    def test_e2_an_answer_that_says_not_here_goes_elsewhere(self, world: World, status: int) -> None:
        seen = [Seen(whole(status, b"{}")), Seen(whole(status, b"{}")), Seen()]
        fleet(world, *seen)
        client = world.call()
        (record,) = world.finish(client)
        assert (client.downlink.status, client.downlink.body) == (200, OK_BODY)
        assert (record.outcome, record.attempts, record.replica) == (Outcome.OK, record.attempts, "r2")
        assert world.events.retries == [str(status)] * (record.attempts - 1)

    def test_e2_refused_and_broken_connections_go_elsewhere(self, world: World) -> None:
        fleet(world, hangs_up, answer_ok, answer_ok)
        world.servers["r1"].refuses = ConnectionRefusedError(111, "Connection refused")
        clients = [world.call() for _ in range(6)]
        assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
        assert set(world.events.retries) == {"connection"}
        assert {client.downlink.body for client in clients} == {OK_BODY}  # E3: no text twice

    @pytest.mark.parametrize("status", [400, 404, 429, 500])
    def test_e2_other_answers_are_the_clients(self, world: World, status: int) -> None:
        fleet(world, Seen(whole(status, b"{}")), Seen(whole(status, b"{}")))
        client = world.call()
        (record,) = world.finish(client)
        assert (client.downlink.status, record.attempts) == (status, 1)

    def test_e2_each_attempt_has_an_id_of_its_own_that_tells_the_calls(self, world: World) -> None:
        first, second = Seen(whole(503, b"{}")), Seen(whole(503, b"{}"))
        fleet(world, first, second)
        for _ in range(2):
            world.call(headers=[(b"x-request-id", b"mine")])
        world.until(lambda: len(world.records.kept) == 2)
        ids = first.ids + second.ids
        assert len(ids) == len(set(ids)) == 4
        assert all(one.startswith(b"mine-") for one in ids)

    def test_e2_the_last_refusal_is_passed_on_when_nobody_is_left(self, world: World) -> None:
        fleet(world, *(Seen(whole(503, b'{"busy":%d}' % i)) for i in range(2)))
        client = world.call()
        (record,) = world.finish(client)
        assert (client.downlink.status, record.attempts) == (503, 2)
        assert client.downlink.body.startswith(b'{"busy"')

    def test_e2_attempts_are_bounded(self, world: World) -> None:
        fleet(world, *(Seen(whole(503, b"{}")) for _ in range(5)), retry=RetrySpec(attempts_max=3))
        (record,) = world.finish(world.call())
        assert record.attempts == 3

    def test_e2_and_so_are_all_retries_together(self, world: World) -> None:
        seen = [Seen(whole(503, b"{}")) for _ in range(2)]
        fleet(world, *seen, retry=RetrySpec(attempts_max=3, budget_share=0.1, budget_burst=5.0))
        for _ in range(100):
            world.finish(world.call())
        assert 5 + 100 * 0.1 - 1 <= len(world.events.retries) <= 5 + 100 * 0.1
        assert len(seen[0].ids + seen[1].ids) == 100 + len(world.events.retries)

    def test_e2_a_prompt_is_not_retried_where_it_does_not_fit(self, world: World) -> None:
        big, small = Seen(whole(503, b"{}")), Seen()
        world.serve("big", big)
        world.serve("small", small)
        world.open(model_spec(replica_spec("big"), replica_spec("small", context_tokens=500)))
        client = world.call(messages=[{"role": "user", "content": "word " * 2_000}])
        (record,) = world.finish(client)
        assert (client.downlink.status, record.attempts, small.ids) == (503, 1, [])
        assert world.events.retries == []

    def test_e2_a_retry_waits_for_a_place(self, world: World) -> None:
        fleet(world, Seen(whole(503, b"{}")), streams(tokens=20, gap_s=0.1), cap=1)
        (first, second) = list(world.path.models["qwen"].pool)
        first.spec = replace(first.spec, cap_max=0)
        running = world.call(stream=True)
        first.spec = replace(first.spec, cap_max=1)
        client = world.call(stream=True)
        assert second.inflight == 1
        record, _ = world.finish(client, running)
        assert (record.outcome, record.replica, record.attempts) == (Outcome.OK, "r1", 2)
        assert record.queue_s == pytest.approx(2.0, abs=0.2)

    def test_e3_never_after_the_first_byte(self, world: World) -> None:
        async def cut(peer: Any) -> None:
            await peer.request()
            peer.send(STREAM_HEAD, chunk(event()))
            await peer.sleep(0.1)
            peer.close()

        fleet(world, cut, cut)
        client = world.call(stream=True)
        (record,) = world.finish(client)
        assert (record.attempts, record.outcome) == (1, Outcome.UPSTREAM_CUT)
        assert client.downlink.body.count(b"word") == 1

    def test_e4_the_keep_alive_race_is_no_attempt(self, world: World) -> None:
        async def once(peer: Any) -> None:
            await peer.request()
            peer.send(whole())
            await peer.request()
            peer.close()

        fleet(world, once)
        assert [world.finish(world.call())[0].attempts for _ in range(3)] == [1, 1, 1]
        assert {record.outcome for record in world.records.kept} == {Outcome.OK}
        assert world.events.retries == []
        assert len(world.servers["r0"].peers) == 3

    def test_a_stall_before_the_first_byte_is_not_repeated(self, world: World) -> None:
        async def silent(peer: Any) -> None:
            await peer.request()
            await peer.closed()

        fleet(world, silent, silent, timeouts=TimeoutSpec(first_byte_s=5.0))
        (record,) = world.finish(world.call())
        assert (record.outcome, record.attempts) == (Outcome.UPSTREAM_TIMEOUT, 1)


class TestBreaker:
    def test_e1_failures_open_it_and_one_call_finds_out(self, world: World) -> None:
        fleet(world, answer_ok, cap=8, breaker=BreakerSpec(failures=3, open_s=10.0))
        server = world.servers["r0"]
        server.refuses = ConnectionRefusedError(111, "Connection refused")
        outcomes = [world.finish(world.call())[0].outcome for _ in range(5)]
        assert outcomes == [Outcome.UPSTREAM_ERROR] * 3 + [Outcome.NO_REPLICA] * 2
        world.advance(10.0)
        server.refuses = None
        server.script = streams(tokens=100, gap_s=0.1, first_s=1.0)
        trial = world.call(stream=True)
        assert world.finish(world.call())[0].outcome is Outcome.NO_REPLICA
        world.advance(1.5)  # the trial has begun to answer: that is enough
        other = world.call(stream=True)
        assert [record.outcome for record in world.finish(trial, other)] == [Outcome.OK] * 2

    @pytest.mark.parametrize("status", [400, 404, 429, 503])
    def test_e1_these_never_open_it(self, world: World, status: int) -> None:
        fleet(world, Seen(whole(status, b"{}")), breaker=BreakerSpec(failures=2))
        for _ in range(10):
            assert world.finish(world.call())[0].status == status

    @pytest.mark.parametrize("status", [500, 502, 504])
    def test_e1_these_do(self, world: World, status: int) -> None:
        fleet(world, Seen(whole(status, b"{}")), breaker=BreakerSpec(failures=2))
        assert [world.finish(world.call())[0].status for _ in range(3)] == [status, status, 503]

    @pytest.mark.parametrize("sends", [(), (STREAM_HEAD, chunk(event()))], ids=["silent", "cut"])
    def test_e1_so_do_silence_and_broken_answers(self, world: World, sends: tuple[bytes, ...]) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            peer.send(*sends)
            await peer.sleep(0.1 if sends else 100.0)
            peer.close()

        fleet(world, script, breaker=BreakerSpec(failures=2), timeouts=TimeoutSpec(first_byte_s=5.0))
        found = [world.finish(world.call(stream=True))[0].outcome for _ in range(3)]
        assert found[0] is found[1] is (Outcome.UPSTREAM_CUT if sends else Outcome.UPSTREAM_TIMEOUT)
        assert found[2] is Outcome.NO_REPLICA

    def test_e1_a_trial_whose_client_leaves_frees_its_place(self, world: World) -> None:
        fleet(world, Seen(whole(500, b"{}")), breaker=BreakerSpec(failures=1, open_s=5.0))
        world.finish(world.call())
        world.advance(5.0)
        world.servers["r0"].script = Seen(delay_s=100.0)
        trial = world.call()
        world.advance(1.0)
        trial.leaves()
        world.finish(trial)
        world.servers["r0"].script = answer_ok
        assert world.finish(world.call())[0].outcome is Outcome.OK


class TestSilence:
    def test_b7_comments_fill_the_queue_and_the_prefill(self, world: World) -> None:
        world.serve("r0", streams(tokens=3, gap_s=0.1, first_s=40.0))
        spec = model_spec(replica_spec("r0", 1), queue=QueueSpec(wait_short_s=60.0))
        world.open(spec, serving=ServingSpec(keepalive_s=15.0))
        first, second = world.call(stream=True), world.call(stream=True)
        world.advance(16.0)
        assert (second.downlink.status, second.downlink.body) == (200, KEEPALIVE)
        assert second.downlink.header(b"content-type") == b"text/event-stream; charset=utf-8"
        assert second.downlink.header(b"x-request-id") is not None
        one, two = world.finish(first, second)
        words = event(None) + event() * 3 + DONE
        assert first.downlink.body == KEEPALIVE * 2 + words
        assert second.downlink.body == KEEPALIVE * 5 + words
        assert (one.outcome, two.outcome) == (Outcome.OK, Outcome.OK)
        assert two.ttft_s == pytest.approx(one.e2e_s + 40.1)  # B9: no comment is a first token
        assert two.queue_s == pytest.approx(one.e2e_s)

    def test_b7_never_where_no_stream_was_asked_for(self, world: World) -> None:
        fleet(world, Seen(delay_s=50.0))
        client = world.call()
        world.finish(client)
        assert client.downlink.body == OK_BODY

    @pytest.mark.parametrize("split", [False, True])
    def test_b7_a_role_chunk_is_followed_by_comments_but_a_token_is_not(self, world: World, split: bool) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            role = chunk(event(None)[:-1]), chunk(b"\n")
            peer.send(STREAM_HEAD, *(role if split else (chunk(event(None)),)))
            await peer.sleep(20.0)
            peer.send(chunk(event()))
            await peer.sleep(40.0)
            peer.send(chunk(DONE), STREAM_END)

        fleet(world, script)
        client = world.call(stream=True, stream_options={"include_usage": True})
        world.finish(client)
        assert client.downlink.body == event(None) + KEEPALIVE + event() + DONE

    def test_b7_no_comment_in_the_middle_of_an_event(self, world: World) -> None:
        async def script(peer: Any) -> None:
            await peer.request()
            peer.send(STREAM_HEAD, chunk(event()[:10]))
            await peer.sleep(40.0)
            peer.send(chunk(event()[10:]), chunk(DONE), STREAM_END)

        fleet(world, script)
        client = world.call(stream=True, stream_options={"include_usage": True})
        world.finish(client)
        assert client.downlink.body == event() + DONE

    @pytest.mark.parametrize(
        ("path", "lead"), [(CHAT, b""), (b"/v1/messages", b"event: error\n"), (b"/v1/responses", b"event: error\n")]
    )
    def test_b7_a_refusal_after_a_comment_is_an_event(self, world: World, path: bytes, lead: bytes) -> None:
        refusal = b'{\r\n "error": {"message": "no"}\n}'
        fleet(world, Seen(whole(400, refusal), delay_s=20.0))
        client = world.call(path=path, stream=True, input="x")
        (record,) = world.finish(client)
        assert client.downlink.status == 200
        assert client.downlink.body == KEEPALIVE + lead + b'data: {  "error": {"message": "no"} }\n\n'
        assert client.downlink.aborted
        assert (record.outcome, record.status) == (Outcome.UPSTREAM_REJECTED, 400)

    def test_b7_so_is_the_gateways_own(self, world: World) -> None:
        world.serve("r0", streams(tokens=100, gap_s=1.0))
        world.open(model_spec(replica_spec("r0", 1), queue=QueueSpec(wait_short_s=20.0)))
        running, waiting = world.call(stream=True), world.call(stream=True)
        record, _ = world.finish(waiting, running)
        assert record.outcome is Outcome.QUEUE_TIMEOUT
        assert waiting.downlink.body.startswith(KEEPALIVE + b'data: {"error"')
        assert waiting.downlink.aborted

    def test_b7_a_retry_is_still_possible_after_comments(self, world: World) -> None:
        fleet(world, Seen(whole(503, b"{}"), delay_s=20.0), Seen(whole(503, b"{}"), delay_s=20.0))
        world.servers["r1"].script = streams(tokens=1)
        world.servers["r0"].connect_s = 1.0
        clients = [world.call(stream=True) for _ in range(2)]
        records = world.finish(*clients)
        assert {record.outcome for record in records} == {Outcome.OK}
        assert sorted(record.attempts for record in records) == [1, 2]


def reloaded(world: World, *models: Any, serving: ServingSpec | None = None) -> None:
    world.path.apply(models, serving or world.path.serving)


class TestReload:
    def test_e6_streams_of_a_removed_replica_finish(self, world: World) -> None:
        fleet(world, streams(tokens=50), Seen())
        client = world.call(stream=True)
        removed = client.exchange.grant
        assert removed is not None
        name = removed.choice.replica
        keep = "r1" if name == "r0" else "r0"
        world.servers[name].script = world.servers["r0"].script
        reloaded(world, model_spec(replica_spec(keep)))
        world.advance(0.1)
        others = [world.call() for _ in range(3)]
        world.servers[keep].script = answer_ok
        records = world.finish(*others)
        assert {record.replica for record in records} == {keep}
        client.leaves()
        world.finish(client)

    def test_e6_a_removed_replica_keeps_no_connection(self, world: World) -> None:
        fleet(world, streams(tokens=20), streams(tokens=20))
        clients = [world.call(stream=True) for _ in range(2)]
        world.advance(1.0)
        reloaded(world, model_spec(replica_spec("r1")))
        assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
        assert world.servers["r0"].open_connections == 0

    def test_e6_waiters_of_a_removed_model_are_told(self, world: World) -> None:
        fleet(world, streams(tokens=50), cap=1)
        running, waiting = world.call(stream=True), world.call(stream=True)
        world.advance(1.0)
        reloaded(world, model_spec(replica_spec("r9"), name="other"))
        (record,) = world.finish(waiting)
        assert (record.status, record.reason) == (404, "model_not_found")
        client = world.call()
        assert world.finish(client)[0].status == 404
        assert world.finish(running)[0].outcome is Outcome.OK

    def test_e6_a_wider_cap_lets_waiters_in(self, world: World) -> None:
        fleet(world, streams(tokens=50), cap=1)
        clients = [world.call(stream=True) for _ in range(3)]
        world.advance(1.0)
        reloaded(world, model_spec(replica_spec("r0", 3)))
        for record in world.finish(*clients):
            assert record.queue_s == pytest.approx(0.0 if record.queue_s < 0.5 else 1.0, abs=0.01)


class TestDrain:
    def test_e7_streams_finish_new_calls_are_refused(self, world: World) -> None:
        fleet(world, streams(tokens=50, gap_s=0.1), cap=20)
        clients = [world.call(stream=True) for _ in range(20)]
        world.advance(1.0)
        drained = world.loop.create_task(world.path.drain())
        world.advance(0.01)
        assert (world.path.ready, world.path.draining) == (False, True)
        late = world.call()
        (refused,) = world.finish(late)
        assert (refused.outcome, late.downlink.status) == (Outcome.DRAINING, 503)
        assert late.downlink.header(b"retry-after") == b"5"
        world.run(drained)
        assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
        assert world.loop.time() < 1_000.0 + 7.0

    def test_e7_what_takes_too_long_is_cut_and_says_why(self, world: World) -> None:
        world.serve("r0", streams(tokens=5_000, gap_s=0.1))
        world.open(model_spec(replica_spec("r0", 1)), serving=ServingSpec(drain_s=10.0))
        running, waiting, whole_one = world.call(stream=True), world.call(stream=True), world.call()
        world.advance(1.0)
        world.run(world.path.drain())
        assert world.loop.time() == pytest.approx(1_011.0, abs=0.2)
        records = world.finish(running, waiting, whole_one)
        assert {record.outcome for record in records} == {Outcome.DRAINING}
        assert b'"draining"' in running.downlink.body
        assert running.downlink.aborted
        assert (waiting.downlink.status, whole_one.downlink.status) == (503, 503)

    def test_closing_ends_whatever_runs(self, world: World) -> None:
        fleet(world, streams(tokens=5_000), cap=1)
        clients = [world.call(stream=True) for _ in range(2)]
        world.advance(1.0)
        before = world.loop.time()
        world.run(world.path.close())
        assert all(client.downlink.over for client in clients)
        assert {record.outcome for record in world.finish(*clients)} == {Outcome.DRAINING}
        assert world.loop.time() - before < 1.0


class TestAdmission:
    def keys(self, world: World) -> None:
        def key(name: str, team: Team) -> Key:
            return Key(name, team, sha256(f"sk-{name}".encode()).hexdigest())

        world.keys = KeyTable(
            [
                key("alice", Team("chat")),
                key("bob", Team("small", models=frozenset({"embed"}))),
                key("eve", Team("off", limits=Limits(tokens_per_day=0))),
            ]
        )

    def two_models(self, world: World) -> None:
        self.keys(world)
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
        self, world: World, secret: str | None, model: str | None, status: int, code: str | None
    ) -> None:
        self.two_models(world)
        client = world.call(secret=secret, model=model)
        (record,) = world.finish(client)
        assert client.downlink.status == record.status == status
        if code is not None:
            assert client.json()["error"]["code"] == code
            assert client.downlink.header(b"x-gateway-reason") == code.encode()
            assert (record.outcome, record.reason, record.attempts) == (Outcome.REFUSED, code, 0)

    def test_g3_a_forbidden_model_looks_unknown(self, world: World) -> None:
        self.two_models(world)
        forbidden, unknown = world.call(secret="sk-bob", model="qwen"), world.call(secret="sk-bob", model="nope")
        world.finish(forbidden, unknown)
        assert forbidden.downlink.body == unknown.downlink.body.replace(b"nope", b"qwen")
        assert world.path.models_for(world.keys.find("sk-bob", 0.0)) == [("embed", None)]

    def test_c4_the_replica_gets_its_own_name_for_the_model(self, world: World) -> None:
        self.two_models(world)
        seen = Seen()
        world.servers["r1"].script = seen
        world.finish(world.call(model="embed"))
        assert msgspec.json.decode(seen.requests[0].body)["model"] == "BAAI/embed"

    def test_c1_c3_what_the_replica_is_sent(self, world: World) -> None:
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
    def test_a_body_that_is_none_is_refused(self, world: World, raw: bytes) -> None:
        fleet(world, answer_ok)
        client = world.call(raw=raw)
        (record,) = world.finish(client)
        assert (client.downlink.status, record.reason) == (400, "invalid_request")

    def test_d3_a_prompt_beyond_all_replicas_is_refused_at_once(self, world: World) -> None:
        world.serve("r0", answer_ok)
        world.open(model_spec(replica_spec("r0", context_tokens=1_000)))
        client = world.call(messages=[{"role": "user", "content": "word " * 20_000}])
        (record,) = world.finish(client)
        assert (client.downlink.status, record.reason, record.e2e_s) == (400, "context_length_exceeded", 0.0)

    def test_d3_d7_long_prompts_go_to_long_replicas(self, world: World) -> None:
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

    def test_g4_too_many_bad_keys_are_cut_off(self, world: World) -> None:
        fleet(world, answer_ok)
        clients = [world.call(secret=f"sk-{i}") for i in range(40)]
        world.finish(*clients)
        answered = [client for client in clients if client.downlink.status == 401]
        cut = [client for client in clients if client.downlink.aborted]
        assert len(answered) == 18  # ten at once, eight after a wait
        assert len(cut) == 22
        assert not any(client.downlink.started for client in cut)


class TestRecord:
    def test_queue_and_route_are_told(self, world: World) -> None:
        fleet(world, streams(tokens=10, gap_s=0.1), cap=1)
        first, second = world.call(stream=True), world.call(stream=True)
        one, two = world.finish(first, second)
        assert (one.queue_s, one.overhead_s) == (0.0, 0.0)
        assert two.queue_s == pytest.approx(1.1)
        assert second.downlink.header(b"x-gateway-queue-ms") == b"1100"
        assert second.downlink.header(b"x-gateway-replica") == b"r0"
        assert second.downlink.header(b"x-gateway-route") == b"least_inflight"
        assert (two.endpoint, two.key, two.model, two.stream) == (Endpoint.CHAT, "alice", "qwen", True)

    def test_f3_estimates_learn_from_what_the_engine_counted(self, world: World) -> None:
        def counted(tokens: int) -> bytes:
            return whole(body=b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1}}' % tokens)

        fleet(world, Seen(counted(400)))
        text = [{"role": "user", "content": "x" * 1_000}]  # 255 tokens by the first guess
        for _ in range(40):
            world.finish(world.call(messages=text))
        first, last = world.records.kept[0], world.records.kept[-1]
        assert first.estimated_prompt == 255
        assert last.estimated_prompt == pytest.approx(400, rel=0.05)

    def test_g5_every_call_has_one_record_whatever_came_of_it(self, world: World) -> None:
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


class TestSmallCalls:
    def test_tokenizing_takes_no_permit(self, world: World) -> None:
        fleet(world, streams(tokens=20), cap=1)
        running = world.call(stream=True)
        world.servers["r0"].script = answer_ok
        client = world.call(path=b"/tokenize", prompt="hello")
        assert world.finish(client)[0].outcome is Outcome.OK
        assert world.finish(running)[0].outcome is Outcome.OK

    def test_e2_small_calls_go_elsewhere_too(self, world: World) -> None:
        fleet(world, hangs_up, answer_ok)
        clients = [world.call(path=b"/tokenize", prompt="hello") for _ in range(2)]
        assert {record.outcome for record in world.finish(*clients)} == {Outcome.OK}
        assert world.events.retries == ["connection"]


def test_a5_a_hung_replica_does_not_slow_calls_to_the_others(world: World) -> None:
    async def hung(peer: Any) -> None:
        await peer.closed()

    fleet(world, hung, answer_ok, cap=4)
    clients = [world.call() for _ in range(12)]
    world.advance(0.1)
    stuck = [client for client in clients if not client.downlink.finished]
    assert {client.exchange.grant.choice.replica for client in stuck if client.exchange.grant} == {"r0"}
    assert len(stuck) <= 4
    for client in clients:
        client.leaves()
    world.finish(*clients)


def test_a7_a_thousand_calls_leave_memory_as_it_was(world: World) -> None:
    fleet(world, answer_ok, cap=4)
    for _ in range(1_000):
        world.finish(world.call())
    (replica,) = world.path.models["qwen"].pool
    assert (replica.upstream.open_connections, len(world.servers["r0"].peers)) == (1, 1)
    assert len(world.path.tasks) == 0

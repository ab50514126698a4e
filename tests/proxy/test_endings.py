"""A1: however a call ends, nothing of it is left (the fixture looks) and one record says how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain import Outcome, ServingSpec, TimeoutSpec
from gateway.testing.network import Script
from tests.proxy.replicas import (
    DONE,
    OK_BODY,
    STREAM_END,
    STREAM_HEAD,
    answer_ok,
    chunk,
    event,
    streams,
    usage_event,
    whole,
)
from tests.proxy.world import Client, World, model_spec, replica_spec

TIMES = TimeoutSpec(first_byte_s=20.0, idle_s=30.0, total_s=300.0, write_stall_s=10.0)


def says(*pieces: bytes, then: str = "wait") -> Script:
    """A replica that answers with ``pieces``, then waits, closes or resets."""

    async def script(peer: Any) -> None:
        while True:
            await peer.request()
            await peer.sleep(0.1)
            for piece in pieces:
                peer.send(piece)
                await peer.sleep(0.05)
            if then == "close":
                peer.close()
            elif then == "reset":
                peer.close(ConnectionResetError())

    return script


def one(world: World, script: Script, **changes: Any) -> None:
    world.serve("gpu", script)
    world.open(model_spec(replica_spec("gpu"), timeouts=TIMES, **changes))


ERROR = b'{"error":{"message":"no","type":"x","code":400}}'
STATUSES = {
    200: Outcome.OK,
    400: Outcome.UPSTREAM_REJECTED,
    404: Outcome.UPSTREAM_REJECTED,
    429: Outcome.UPSTREAM_REJECTED,
    500: Outcome.UPSTREAM_ERROR,
    502: Outcome.UPSTREAM_ERROR,
    503: Outcome.UPSTREAM_ERROR,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "outcome"), STATUSES.items())
def test_a1_the_replicas_own_answer_passes_on(world: World, status: int, outcome: Outcome, stream: bool) -> None:
    body = OK_BODY if status == 200 else ERROR
    one(world, says(whole(status, body)))
    client = world.call(stream=stream)
    (record,) = world.finish(client)
    assert (client.downlink.status, client.downlink.body, client.downlink.finished) == (status, body, True)
    assert (record.outcome, record.status, record.attempts) == (outcome, status, 1)


def test_a1_a_whole_answer(world: World) -> None:
    one(world, answer_ok)
    (record,) = world.finish(world.call())
    assert (record.outcome, record.completed, record.estimated, record.finish_reason) == (
        Outcome.OK,
        True,
        False,
        "stop",
    )
    assert (record.usage.prompt, record.usage.completion, record.replica, record.team) == (9, 1, "gpu", "chat")


@pytest.mark.parametrize("wants_usage", [False, True])
def test_a1_a_stream(world: World, wants_usage: bool) -> None:
    one(world, streams(tokens=3, gap_s=0.1, first_s=0.5))
    options = {"stream_options": {"include_usage": True}} if wants_usage else {}
    client = world.call(stream=True, **options)
    (record,) = world.finish(client)
    usage = usage_event(9, 3) if wants_usage else b""
    assert client.downlink.body == event(None) + event() * 3 + usage + DONE
    assert (record.outcome, record.completed, record.usage.prompt, record.usage.completion) == (Outcome.OK, True, 9, 3)
    assert record.ttft_s == pytest.approx(0.6)  # the first word, not the role
    assert record.tpot_s == pytest.approx(0.1)
    assert record.e2e_s == pytest.approx(0.8)


def test_a1_connection_refused(world: World) -> None:
    one(world, answer_ok)
    world.servers["gpu"].refuses = ConnectionRefusedError(111, "Connection refused")
    client = world.call()
    (record,) = world.finish(client)
    assert (record.outcome, record.status, client.downlink.status) == (Outcome.UPSTREAM_ERROR, 502, 502)
    assert client.json()["error"]["code"] == "upstream_error"


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("pieces", [(), (b"HTTP/1.1 20",), (STREAM_HEAD,)], ids=["nothing", "half a head", "a head"])
def test_a1_closed_before_the_first_byte(world: World, pieces: tuple[bytes, ...], then: str) -> None:
    one(world, says(*pieces, then=then))
    client = world.call(stream=True)
    (record,) = world.finish(client)
    assert (record.outcome, client.downlink.status, client.downlink.finished) == (Outcome.UPSTREAM_ERROR, 502, True)


@pytest.mark.parametrize("then", ["close", "reset"])
def test_b4_closed_mid_stream(world: World, then: str) -> None:
    one(world, says(STREAM_HEAD, chunk(event(None)), chunk(event()), chunk(event()), then=then))
    client = world.call(stream=True)
    (record,) = world.finish(client)
    sent = event(None) + event() * 2
    error = client.downlink.body.removeprefix(sent)
    assert client.downlink.body.startswith(sent)
    assert error.startswith(b'data: {"error"')
    assert error.endswith(b"\n\n")
    assert error.count(b"\n\n") == 1
    assert b"[DONE]" not in client.downlink.body
    assert b"finish_reason" not in client.downlink.body
    assert client.downlink.aborted
    assert (record.outcome, record.completed, record.estimated) == (Outcome.UPSTREAM_CUT, False, True)
    assert record.usage.completion == 2  # what was delivered is charged
    assert record.usage.prompt == record.estimated_prompt > 0


def test_b4_cut_in_the_middle_of_an_event_the_error_is_an_event_of_its_own(world: World) -> None:
    one(world, says(STREAM_HEAD, chunk(event()), chunk(event()[:20]), then="close"))
    client = world.call(stream=True, stream_options={"include_usage": True})
    world.finish(client)
    last = client.downlink.body.split(b"\n\n")[-2]
    assert last.startswith(b'data: {"error"')


def test_b4_a_whole_body_that_is_cut_never_looks_whole(world: World) -> None:
    one(world, says(whole()[:-5], then="close"))
    client = world.call()
    (record,) = world.finish(client)
    assert (client.downlink.aborted, client.downlink.finished) == (True, False)
    assert b"error" not in client.downlink.body
    assert record.outcome is Outcome.UPSTREAM_CUT


def test_b5_the_engines_own_error_mid_stream_passes_and_counts(world: World) -> None:
    failure = b'data: {"error":{"message":"engine died","code":500}}\n\n'
    one(world, says(STREAM_HEAD, chunk(event()), chunk(failure), chunk(DONE), STREAM_END))
    client = world.call(stream=True)
    (record,) = world.finish(client)
    assert client.downlink.body == event() + failure + DONE
    assert record.outcome is Outcome.UPSTREAM_ERROR


def test_e5_silent_before_the_first_byte(world: World) -> None:
    one(world, says())
    client = world.call()
    (record,) = world.finish(client)
    assert (record.outcome, client.downlink.status) == (Outcome.UPSTREAM_TIMEOUT, 504)
    assert record.e2e_s == pytest.approx(20.0, abs=0.5)


def test_e5_a_long_prompt_may_take_longer_for_its_first_byte(world: World) -> None:
    async def after_80_s(peer: Any) -> None:
        await peer.request()
        await peer.sleep(80.0)
        peer.send(whole())

    one(world, after_80_s)
    words = "word " * 60_000  # about 75,000 tokens, 75 s at the predicted rate
    client = world.call(messages=[{"role": "user", "content": words}])
    (record,) = world.finish(client)
    assert record.outcome is Outcome.OK
    assert record.e2e_s == pytest.approx(80.0, abs=0.1)


def test_e5_a_short_prompt_may_wait_for_the_long_one_ahead_of_it(world: World) -> None:
    async def after_80_s(peer: Any) -> None:
        await peer.request()
        await peer.sleep(80.0)
        peer.send(whole())

    one(world, after_80_s)
    long = world.call(messages=[{"role": "user", "content": "word " * 60_000}])
    short = world.call()
    records = world.finish(long, short)
    assert [record.outcome for record in records] == [Outcome.OK, Outcome.OK]
    assert [replica.prefilling_tokens for replica in world.replicas()] == [0]


def test_e5_silent_mid_stream(world: World) -> None:
    one(world, says(STREAM_HEAD, chunk(event())))
    client = world.call(stream=True)
    (record,) = world.finish(client)
    assert (record.outcome, client.downlink.aborted) == (Outcome.UPSTREAM_TIMEOUT, True)
    assert record.e2e_s == pytest.approx(30.0, abs=1.0)
    assert b'"error"' in client.downlink.body


def test_e5_an_endless_answer_ends(world: World) -> None:
    one(world, streams(tokens=10_000, gap_s=1.0))
    client = world.call(stream=True)
    (record,) = world.finish(client)
    assert record.outcome is Outcome.UPSTREAM_TIMEOUT
    assert record.e2e_s == pytest.approx(300.0, abs=0.5)


def test_e5_a_connection_that_is_not_made_in_time(world: World) -> None:
    one(world, answer_ok)
    world.servers["gpu"].connect_s = 60.0
    (record,) = world.finish(world.call())
    assert record.outcome is Outcome.UPSTREAM_ERROR
    assert record.e2e_s == pytest.approx(5.0, abs=0.1)


def gone_at(world: World) -> float | None:
    return world.servers["gpu"].peers[-1].gone_at_s


def test_a2_the_client_leaves_before_the_headers(world: World) -> None:
    one(world, says())
    client = world.call()
    world.advance(5.0)
    left_s = world.loop.time()
    client.leaves()
    (record,) = world.finish(client)
    assert gone_at(world) == pytest.approx(left_s, abs=0.1)
    assert (record.outcome, record.status) == (Outcome.CLIENT_GONE, 0)


def test_a2_the_client_leaves_mid_stream(world: World) -> None:
    one(world, streams(tokens=1_000, gap_s=0.1))
    client = world.call(stream=True)
    world.advance(5.0)
    left_s = world.loop.time()
    client.leaves()
    assert gone_at(world) == left_s  # at once, not when a task wakes
    (record,) = world.finish(client)
    assert (record.outcome, record.completed) == (Outcome.CLIENT_GONE, False)
    assert 40 < record.usage.completion < 50


def test_a1_the_client_leaves_while_it_connects(world: World) -> None:
    one(world, answer_ok)
    world.servers["gpu"].connect_s = 3.0
    client = world.call()
    world.advance(1.0)
    client.leaves()
    (record,) = world.finish(client)
    assert record.outcome is Outcome.CLIENT_GONE
    assert world.servers["gpu"].peers == []


def test_a1_the_client_leaves_while_queued(world: World) -> None:
    one(world, streams(tokens=100, gap_s=0.1))
    running = [world.call(stream=True) for _ in range(2)]
    waiting = world.call(stream=True)
    world.advance(1.0)
    waiting.leaves()
    (record,) = world.finish(waiting)
    assert (record.outcome, record.attempts, record.replica) == (Outcome.CLIENT_GONE, 0, "")
    assert record.queue_s == pytest.approx(1.0)
    assert {r.outcome for r in world.finish(*running)} == {Outcome.OK}


def test_a1_the_client_leaves_before_its_call_took_the_first_step(world: World) -> None:
    one(world, answer_ok)

    async def in_and_out() -> Client:
        client = world.send()
        client.leaves()
        return client

    client = world.run(in_and_out())
    (record,) = world.finish(client)
    assert record.outcome is Outcome.CLIENT_GONE
    assert client.downlink.aborted


def test_a1_leaving_after_the_answer_changes_nothing(world: World) -> None:
    one(world, answer_ok)
    client = world.call()
    world.until(lambda: client.downlink.finished, 1.0)
    client.leaves()
    (record,) = world.finish(client)
    assert record.outcome is Outcome.OK


def test_b8_a_slow_client_slows_its_replica_and_one_that_never_reads_is_cut(world: World) -> None:
    one(world, streams(tokens=100, gap_s=0.1))
    client = world.call(stream=True)
    world.advance(1.0)
    client.downlink.behind = True
    world.advance(1.0)
    pieces = len(client.downlink.pieces)
    peer = world.servers["gpu"].peers[0]
    assert not peer.reading
    client.downlink.behind = False
    client.exchange.writable()
    world.advance(0.01)
    assert len(client.downlink.pieces) > pieces + 5
    assert peer.reading
    client.downlink.behind = True
    stalled_s = world.loop.time()
    (record,) = world.finish(client)
    assert record.outcome is Outcome.CLIENT_STALLED
    assert world.loop.time() - stalled_s == pytest.approx(10.0, abs=0.6)
    assert client.downlink.aborted


def test_b8_the_time_a_client_stalled_is_not_the_replicas_silence(world: World) -> None:
    async def script(peer: Any) -> None:
        await peer.request()
        peer.send(STREAM_HEAD, chunk(event()))
        await peer.sleep(45.0)
        peer.send(chunk(event()), STREAM_END)

    world.serve("gpu", script)
    spec = TimeoutSpec(idle_s=30.0, write_stall_s=40.0)
    world.open(model_spec(replica_spec("gpu"), timeouts=spec))
    client = world.call(stream=True)
    client.downlink.behind = True
    world.advance(35.0)
    client.downlink.behind = False
    client.exchange.writable()
    (record,) = world.finish(client)
    assert record.outcome is Outcome.OK


def test_b8_a_client_behind_before_the_answer_begins_slows_it(world: World) -> None:
    async def script(peer: Any) -> None:
        await peer.request()
        await peer.sleep(5.0)
        peer.send(STREAM_HEAD, chunk(event()))
        for _ in range(50):
            await peer.sleep(0.1)
            peer.send(chunk(event()))
        peer.send(STREAM_END)

    world.serve("gpu", script)
    world.open(model_spec(replica_spec("gpu"), timeouts=TIMES), serving=ServingSpec(keepalive_s=1.0))
    client = world.call(stream=True)
    client.downlink.behind = True
    world.advance(8.0)
    assert not world.servers["gpu"].peers[0].reading
    assert len(client.downlink.pieces) <= 7
    (record,) = world.finish(client)
    assert record.outcome is Outcome.CLIENT_STALLED


def test_a3_a_permit_is_held_until_the_last_byte(world: World) -> None:
    one(world, streams(tokens=10, gap_s=1.0))
    (replica,) = world.replicas()
    client = world.call(stream=True)
    world.until(lambda: len(client.downlink.pieces) > 8, 20.0)
    assert replica.inflight == 1
    world.finish(client)
    assert replica.inflight == 0

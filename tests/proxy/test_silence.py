"""B7: comments fill a silence, and what is refused after one is an event."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain import (
    Outcome,
    QueueSpec,
    ServingSpec,
)
from tests.proxy.replicas import (
    DONE,
    OK_BODY,
    STREAM_END,
    STREAM_HEAD,
    Seen,
    chunk,
    event,
    streams,
    whole,
)
from tests.proxy.world import CHAT, World, fleet, model_spec, replica_spec

KEEPALIVE = b": keep-alive\n\n"


def test_b7_comments_fill_the_queue_and_the_prefill(world: World) -> None:
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


def test_b7_never_where_no_stream_was_asked_for(world: World) -> None:
    fleet(world, Seen(delay_s=50.0))
    client = world.call()
    world.finish(client)
    assert client.downlink.body == OK_BODY


@pytest.mark.parametrize("split", [False, True])
def test_b7_a_role_chunk_is_followed_by_comments_but_a_token_is_not(world: World, split: bool) -> None:
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


def test_b7_no_comment_in_the_middle_of_an_event(world: World) -> None:
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
def test_b7_a_refusal_after_a_comment_is_an_event(world: World, path: bytes, lead: bytes) -> None:
    refusal = b'{\r\n "error": {"message": "no"}\n}'
    fleet(world, Seen(whole(400, refusal), delay_s=20.0))
    client = world.call(path=path, stream=True, input="x")
    (record,) = world.finish(client)
    assert client.downlink.status == 200
    assert client.downlink.body == KEEPALIVE + lead + b'data: {  "error": {"message": "no"} }\n\n'
    assert client.downlink.aborted
    assert (record.outcome, record.status) == (Outcome.UPSTREAM_REJECTED, 400)


def test_b7_so_is_the_gateways_own(world: World) -> None:
    world.serve("r0", streams(tokens=100, gap_s=1.0))
    world.open(model_spec(replica_spec("r0", 1), queue=QueueSpec(wait_short_s=20.0)))
    running, waiting = world.call(stream=True), world.call(stream=True)
    record, _ = world.finish(waiting, running)
    assert record.outcome is Outcome.QUEUE_TIMEOUT
    assert waiting.downlink.body.startswith(KEEPALIVE + b'data: {"error"')
    assert waiting.downlink.aborted


def test_b7_a_retry_is_still_possible_after_comments(world: World) -> None:
    fleet(world, Seen(whole(503, b"{}"), delay_s=20.0), Seen(whole(503, b"{}"), delay_s=20.0))
    world.servers["r1"].script = streams(tokens=1)
    world.servers["r0"].connect_s = 1.0
    clients = [world.call(stream=True) for _ in range(2)]
    records = world.finish(*clients)
    assert {record.outcome for record in records} == {Outcome.OK}
    assert sorted(record.attempts for record in records) == [1, 2]

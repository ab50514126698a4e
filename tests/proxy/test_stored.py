"""Stored responses: a follow-up goes to the replica that has what it goes on from, and nobody else sees it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from gateway.domain import Key, Outcome, Team
from gateway.policy.keys import KeyTable
from tests.proxy.replicas import whole
from tests.proxy.world import SECRET, Client, World, fleet, model_spec, replica_spec

RESPONSES = b"/v1/responses"


class Storing:
    """A replica whose responses are called ``prefix`` and a number."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.lines: list[bytes] = []

    async def __call__(self, peer: Any) -> None:
        while True:
            self.lines.append((await peer.request()).line)
            name = f"{self.prefix}-{len(self.lines)}"
            usage = {"input_tokens": 5, "output_tokens": 2}
            peer.send(whole(body=msgspec.json.encode({"id": name, "status": "completed", "usage": usage})))


def asks(world: World, **fields: Any) -> str:
    """A new response; its id."""
    client = world.call(path=RESPONSES, input="hello", **fields)
    (record,) = world.finish(client)
    assert record.outcome is Outcome.OK
    return str(client.json()["id"])


def reads(world: World, response_id: str, secret: str = SECRET, path: bytes = b"") -> Client:
    client = world.call(
        method=b"POST" if path else b"GET", path=RESPONSES + b"/" + response_id.encode() + path, raw=b"", secret=secret
    )
    world.finish(client)
    return client


def two_teams(world: World) -> None:
    """Alice's of ``SECRET``, and Bob's of ``sk-bob``."""
    bob = Key("bob", Team("others"), sha256(b"sk-bob").hexdigest())
    world.keys = KeyTable([Key("alice", Team("chat"), sha256(SECRET.encode()).hexdigest()), bob])


def test_a_follow_up_goes_back_to_its_replica(world: World) -> None:
    fleet(world, Storing("a"), Storing("b"), Storing("c"))
    first = asks(world)
    for _ in range(6):
        assert asks(world, previous_response_id=first)[0] == first[0]


def test_a_stored_response_is_read_and_cancelled_where_it_is(world: World) -> None:
    replicas = [Storing("a"), Storing("b")]
    fleet(world, *replicas)
    name = asks(world)
    (owner,) = [replica for replica in replicas if replica.lines]
    assert reads(world, name).downlink.status == 200
    assert reads(world, name, path=b"/cancel").downlink.status == 200
    target = b"/v1/responses/" + name.encode()
    assert owner.lines[1:] == [b"GET " + target + b" HTTP/1.1", b"POST " + target + b"/cancel HTTP/1.1"]


def test_a3_what_would_run_on_after_its_answer_is_refused(world: World) -> None:
    replica = Storing("a")
    fleet(world, replica)
    for background in (True, "true", 1):
        client = world.call(path=RESPONSES, input="hi", background=background)
        (record,) = world.finish(client)
        assert (client.downlink.status, record.outcome, replica.lines) == (400, Outcome.REFUSED, [])
    assert asks(world, background=False) == "a-1"


def test_g3_another_teams_response_looks_unknown(world: World) -> None:
    two_teams(world)
    fleet(world, Storing("a"))
    name = asks(world)
    client = reads(world, name, secret="sk-bob")
    assert client.downlink.status == 404
    assert client.downlink.body == reads(world, "a-77", "sk-bob").downlink.body.replace(b"a-77", name.encode())


def test_g3_nobody_goes_on_from_another_teams_response(world: World) -> None:
    two_teams(world)
    replica = Storing("a")
    fleet(world, replica)
    name = asks(world)
    client = world.call(path=RESPONSES, input="and then?", previous_response_id=name, secret="sk-bob")
    (record,) = world.finish(client)
    assert (client.downlink.status, record.outcome, len(replica.lines)) == (404, Outcome.REFUSED, 1)
    assert name in client.json()["error"]["message"]
    assert asks(world, previous_response_id=name) == "a-2"


def test_g3_a_chosen_id_takes_nobodys_response_over(world: World) -> None:
    two_teams(world)
    replica = Storing("a")
    fleet(world, replica)
    name = asks(world)
    replica.lines.clear()  # the next one has the same id, as if Bob had asked for it
    assert asks(world, secret="sk-bob") == name
    assert reads(world, name, secret="sk-bob").downlink.status == 404
    assert reads(world, name).downlink.status == 200


def test_a_replica_that_fails_is_no_silence(world: World) -> None:
    fleet(world, Storing("a"), Storing("b"))
    name = asks(world)
    for server in world.servers.values():
        server.refuses = ConnectionRefusedError(111, "Connection refused")
    world.advance(5.0)  # the kept connection is old
    assert reads(world, name).downlink.status == 502


def test_e6_a_removed_replica_takes_its_responses_along(world: World) -> None:
    fleet(world, Storing("a"))
    name = asks(world)
    world.serve("r9", Storing("z"))
    world.servers["r9"].refuses = ConnectionRefusedError(111, "Connection refused")
    world.path.apply((model_spec(replica_spec("r9"), replica_spec("r8")),), world.path.serving)
    assert reads(world, name).downlink.status == 502

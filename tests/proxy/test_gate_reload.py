"""E6 in the waiting room: settings change under those who wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.errors import ContextTooLong, ModelNotFound, NoReplica
from tests.proxy.room import LONG, ONLY_LONG, ONLY_SHORT
from tests.proxy.world import model_spec, replica_spec


def test_e6_more_permits_seat_waiters(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2", "3", "4")
    room.model.apply(model_spec(replica_spec("a", 3)))
    room.settle()
    assert room.order == ["1", "2", "3"]


def test_e6_fewer_permits_are_reached_as_calls_end(make_room: Any) -> None:
    room = make_room(replica_spec("a", 3))
    room.comes("1", "2", "3", "4")
    room.model.apply(model_spec(replica_spec("a", 1)))
    room.ends("1", "2")
    assert room.order == ["1", "2", "3"]
    room.ends("3")
    assert room.order == ["1", "2", "3", "4"]
    assert room.inflight() == {"a": 1}


def test_e6_a_new_replica_takes_waiters_and_a_removed_one_finishes(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2", "3")
    room.model.apply(model_spec(replica_spec("b", 1)))
    room.settle()
    assert room.where("2") == "b"
    room.ends("1")
    assert room.order == ["1", "2"]  # a takes nobody any more
    assert room.gate.depth == 1


def test_e6_waiters_share_new_replicas_evenly(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes(*map(str, range(7)))
    room.model.apply(model_spec(replica_spec("a", 1), replica_spec("b", 8), replica_spec("c", 8)))
    room.settle()
    assert room.inflight() == {"a": 1, "b": 3, "c": 3}


def test_e6_after_a_reload_who_has_a_place_of_their_own_does_not_overflow(make_room: Any) -> None:
    tp, dp = replica_spec("tp", 1, serves=ONLY_LONG), replica_spec("dp", 1, serves=ONLY_SHORT)
    room = make_room(tp, dp)
    room.comes("l0", call_class=LONG)
    room.comes("s0", "s1")
    room.model.apply(model_spec(replace(tp, cap_max=2), replace(dp, cap_max=2)))
    room.settle()
    assert room.where("s1") == "dp"


def test_e6_waiters_that_fit_no_more_are_turned_away(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1, context_tokens=100_000))
    room.comes("1")
    room.comes("2", need=room.need(tokens=50_000))
    room.comes("3")
    room.model.apply(model_spec(replica_spec("a", 1, context_tokens=10_000)))
    room.settle()
    assert isinstance(room.refused["2"], ContextTooLong)
    assert room.gate.depth == 1


def test_e6_waiters_of_a_removed_model_are_turned_away(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2", "3")
    room.model.close(ModelNotFound("gone"))
    room.settle()
    assert {type(error) for error in room.refused.values()} == {ModelNotFound}
    assert room.gate.depth == 0
    room.ends("1")
    room.comes("4")
    assert isinstance(room.refused["4"], NoReplica)


def test_a_replica_that_comes_back_keeps_its_permits(make_room: Any) -> None:
    a, b = replica_spec("a", 1), replica_spec("b", 1)
    room = make_room(a, b)
    room.comes("1", "2")
    room.model.apply(model_spec(b))
    room.model.apply(model_spec(a, b))
    room.comes("3")
    assert room.inflight() == {"a": 1, "b": 1}
    assert room.gate.depth == 1
    assert not any(replica.retired for replica in room.model.pool)


def test_a_replica_renamed_or_trusted_otherwise_keeps_its_permits(make_room: Any) -> None:
    a = replica_spec("a", 1)
    room = make_room(a)
    room.comes("1", "2")
    room.model.apply(model_spec(replace(a, name="z", verify_tls=False)))
    room.settle()
    assert room.inflight() == {"z": 1}
    assert room.order == ["1"]

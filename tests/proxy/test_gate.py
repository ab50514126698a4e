"""The waiting room: who runs next, and that nobody is forgotten, whoever leaves when."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain import (
    BreakerSpec,
    CallClass,
    QueueSpec,
    RouteReason,
    RoutingSpec,
    Verdict,
)
from gateway.errors import ContextTooLong, NoReplica, QueueFull, QueueTimeout
from gateway.policy.health import Breaker, ProbeState
from gateway.proxy.gate import LIGHT_MAX, Gate, Grant, Waiter
from tests.proxy.room import LONG, ONLY_LONG, ONLY_SHORT, SHORT
from tests.proxy.world import replica_spec


def test_first_come_first_served(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2", "3", "4")
    assert room.order == ["1"]
    for name in ("1", "2", "3"):
        room.ends(name)
    assert room.order == ["1", "2", "3", "4"]


def test_a_freed_permit_is_bound_late_to_whom_it_suits(make_room: Any) -> None:
    room = make_room(
        replica_spec("tp", 1, serves=ONLY_LONG),
        replica_spec("dp", 1, serves=ONLY_SHORT),
        routing=RoutingSpec(overflow=False),
    )
    room.comes("long1", "long2", call_class=LONG)
    room.comes("short1", "short2")
    room.ends("short1")
    assert room.order == ["long1", "short1", "short2"]  # not the long one, though it came first
    room.ends("long1")
    assert (room.where("long2"), room.where("short2")) == ("tp", "dp")


def test_d7_a_waiting_long_prompt_does_not_keep_short_chats_from_running(make_room: Any) -> None:
    room = make_room(
        replica_spec("tp", 1, serves=ONLY_LONG), replica_spec("dp", 1, serves=ONLY_SHORT, context_tokens=8_000)
    )
    big = [room.need(LONG, tokens=20_000) for _ in range(3)]
    for i, need in enumerate(big):
        room.comes(f"long{i}", need=need)
    for i in range(5):
        room.comes(f"short{i}")
        room.ends(f"short{i}")
    assert room.order == ["long0"] + [f"short{i}" for i in range(5)]


def test_d7_nor_is_it_starved_by_those_that_overflow(make_room: Any) -> None:
    room = make_room(
        replica_spec("tp", 1, serves=ONLY_LONG), replica_spec("dp", 1, serves=ONLY_SHORT, context_tokens=8_000)
    )
    room.comes("s0", "s1", "s2", "s3")  # dp, tp by overflow, two waiting
    assert (room.where("s0"), room.where("s1")) == ("dp", "tp")
    assert room.seated["s1"].choice.reason is RouteReason.OVERFLOW
    room.comes("long", need=room.need(LONG, tokens=20_000))
    room.comes("s4")
    room.ends("s1")
    assert room.where("long") == "tp"  # before two shorts that came earlier
    room.ends("s0")
    assert room.where("s2") == "dp"


@pytest.mark.parametrize("gone", ["2", "3", "4"])
def test_a4_a_waiter_that_leaves_never_blocks_those_behind_it(make_room: Any, gone: str) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2", "3", "4")
    room.leaves(gone)
    assert room.gate.depth == 2
    left = [name for name in ("2", "3", "4") if name != gone]
    room.ends("1")
    room.ends(left[0])
    assert room.order == ["1", *left]


@pytest.mark.parametrize("before", ["leave then free", "free then leave"])
def test_a4_a_grant_that_meets_a_just_cancelled_waiter_passes_on(make_room: Any, before: str) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2", "3")

    async def at_once() -> None:
        steps = [room.tasks["2"].cancel, room.seated.pop("1").permit.release]
        for step in steps if before == "leave then free" else reversed(steps):
            step()

    room.loop.run_until_complete(at_once())
    room.settle()
    assert room.order == ["1", "3"]
    assert room.inflight() == {"a": 1}


def test_a4_the_half_open_place_passes_on_with_it(make_room: Any) -> None:
    room = make_room(replica_spec("a", 2), breaker=BreakerSpec(failures=1, open_s=10.0))
    room.comes("1", "2")
    room.comes("3", "4")
    (replica,) = room.model.pool
    room.seated["1"].permit.told(failed=True)
    room.ends("1", "2")
    assert room.gate.depth == 2  # the breaker is open
    room.settle(10.0)

    async def at_once() -> None:
        room.model.sweep(room.loop.time())  # seats one, the trial
        room.tasks["3"].cancel()

    room.loop.run_until_complete(at_once())
    room.settle()
    assert room.order == ["1", "2", "4"]
    assert replica.breaker.trying


def test_e1_half_open_lets_one_through_and_its_answer_lets_all_in(make_room: Any) -> None:
    room = make_room(replica_spec("a", 3), breaker=BreakerSpec(failures=1, open_s=10.0))
    room.comes("0", "1", "2")
    room.seated["0"].permit.told(failed=True)
    assert room.gate.try_enter(room.need()) is Verdict.DOWN
    room.ends("0")
    room.settle(10.0)
    room.comes("trial")
    assert room.gate.try_enter(room.need()) is Verdict.DOWN
    room.seated["trial"].permit.answered()
    room.comes("next")
    assert room.gate.depth == 1  # full, no longer down
    room.ends("1")
    assert room.where("next") == "a"


def test_e1_everybody_who_waits_is_seated_when_the_trial_is_answered(make_room: Any) -> None:
    room = make_room(replica_spec("a", 3), breaker=BreakerSpec(failures=1, open_s=10.0))
    room.comes("0", "1", "2", "trial", "4", "5")
    room.seated["0"].permit.told(failed=True)
    room.ends("0", "1", "2")
    room.settle(10.0)
    room.model.sweep(room.loop.time())
    room.settle()
    assert list(room.seated) == ["trial"]
    room.seated["trial"].permit.answered()
    room.settle()
    assert list(room.seated) == ["trial", "4", "5"]


def test_e1_calls_from_before_it_opened_neither_close_nor_hold_the_breaker(make_room: Any) -> None:
    room = make_room(replica_spec("a", 9), breaker=BreakerSpec(failures=1, open_s=10.0))
    room.comes("old1", "old2", "old3", "bad")
    (replica,) = room.model.pool
    room.seated["bad"].permit.told(failed=True)
    room.ends("bad")
    room.seated["old1"].permit.told(failed=False)
    assert not replica.available
    room.settle(10.0)
    room.comes("trial")
    room.ends("old1", "old2")  # old2 tells nothing: its client left
    assert not replica.available, "a second call in half-open"
    room.seated["old3"].permit.told(failed=True)
    room.seated["trial"].permit.told(failed=False)
    assert replica.available


@pytest.mark.parametrize(("call_class", "wait_s"), [(SHORT, 3.0), (LONG, 20.0)])
def test_waits_are_bounded_by_class(make_room: Any, call_class: CallClass, wait_s: float) -> None:
    room = make_room(replica_spec("a", 1), queue=QueueSpec(depth=9, wait_short_s=3.0, wait_long_s=20.0))
    room.comes("1")
    room.comes("2", call_class=call_class)
    room.settle(wait_s - 0.1)
    assert room.gate.depth == 1
    room.settle(0.2)
    assert isinstance(room.refused["2"], QueueTimeout)
    assert room.gate.depth == 0
    assert room.refused["2"].retry_after_s is not None
    room.ends("1")
    assert room.inflight() == {"a": 0}


def test_the_room_is_bounded(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1), queue=QueueSpec(depth=2))
    room.comes("1", "2", "3", "4")
    assert isinstance(room.refused["4"], QueueFull)
    assert room.gate.depth == 2
    room.leaves("2")
    room.comes("5")
    assert room.gate.depth == 2


def test_a_room_of_no_places_still_serves_who_need_not_wait(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1), queue=QueueSpec(depth=0))
    room.comes("1", "2")
    assert room.order == ["1"]
    assert isinstance(room.refused["2"], QueueFull)


def test_h2_none_up_is_no_replica_at_once(make_room: Any) -> None:
    room = make_room(replica_spec("a"), replica_spec("b"))
    for replica in room.model.pool:
        replica.probe = ProbeState(up=False)
    room.comes("1")
    assert isinstance(room.refused["1"], NoReplica)


def test_d3_what_fits_nowhere_is_refused_at_once_though_all_are_busy(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1, context_tokens=1_000))
    room.comes("1")
    room.comes("2", need=room.need(tokens=900, answer=101))
    assert isinstance(room.refused["2"], ContextTooLong)
    assert "1,000 tokens" in room.refused["2"].message


def test_retries_keep_their_place(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1), replica_spec("b", 1))
    early = room.gate.next_seq()
    room.comes("1", "2", "3")

    async def again() -> Grant:
        return await room.gate.enter(room.need(excluded=frozenset({"a"})), "team", early)

    task = room.loop.create_task(again())
    room.settle()
    on_a, on_b = sorted(("1", "2"), key=room.where)
    room.ends(on_a)
    assert room.order[-1] == "3"  # on a, where the retry may not go
    room.comes("4")
    room.ends(on_b)
    assert task.result().choice.replica == "b"
    task.result().permit.release()


def test_the_order_is_a_seam_for_fairness(make_room: Any) -> None:
    def last_come(waiters: Any) -> Waiter:
        return max(waiters, key=lambda waiter: waiter.seq)

    room = make_room(replica_spec("a", 1))
    room.gate = Gate(room.model.pool, last_come)
    room.comes("1", "2", "3")
    room.ends("1")
    assert room.order == ["1", "3"]


def test_d5_a_burst_in_one_tick_spreads_evenly(make_room: Any) -> None:
    room = make_room(*(replica_spec(name, 64) for name in "abc"))
    for _ in range(50):
        room.seated[str(room.nonce)] = room.gate.try_enter(room.need())
    assert sorted(room.inflight().values()) == [16, 17, 17]


def test_small_calls_take_no_permit_but_are_bounded(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1), replica_spec("b", 1))
    room.comes("1", "2")
    grants = [room.gate.borrow(room.need()) for _ in range(2 * LIGHT_MAX)]
    assert {replica.light for replica in room.model.pool} == {LIGHT_MAX}
    with pytest.raises(QueueFull):
        room.gate.borrow(room.need())
    for grant in grants:
        grant.permit.release()
        grant.permit.release()  # a second time does nothing
    assert {replica.light for replica in room.model.pool} == {0}
    for replica in room.model.pool:
        replica.probe = ProbeState(up=False)
    with pytest.raises(NoReplica):
        room.gate.borrow(room.need())


def test_the_views_that_are_shown_add_up(make_room: Any) -> None:
    room = make_room(replica_spec("a", 1))
    room.comes("1", "2")
    room.comes("3", call_class=LONG)
    assert room.gate.waiting() == {SHORT: 1, LONG: 1}
    (replica,) = room.model.pool
    status = replica.status()
    assert (status.inflight, status.cap, status.up, status.breaker, status.serves) == (
        1,
        1,
        True,
        "closed",
        (LONG, SHORT),
    )
    replica.breaker = Breaker(5, room.loop.time())
    assert (replica.status().up, replica.status().breaker) == (False, "open")

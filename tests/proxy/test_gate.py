"""The waiting room: who runs next, and that nobody is forgotten, whoever leaves when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.clock import LoopClock
from gateway.domain import (
    BreakerSpec,
    CallClass,
    Estimate,
    ModelSpec,
    Need,
    QueueSpec,
    RouteReason,
    RoutingSpec,
    Verdict,
)
from gateway.errors import ContextTooLong, GatewayError, ModelNotFound, NoReplica, QueueFull, QueueTimeout
from gateway.policy.health import Breaker, ProbeState
from gateway.proxy.gate import LIGHT_MAX, Gate, Grant, Waiter
from gateway.proxy.model import Model
from gateway.testing.loop import VirtualLoop
from tests.proxy.conftest import model_spec, replica_spec

SHORT, LONG = CallClass.SHORT, CallClass.LONG
ONLY_SHORT, ONLY_LONG = frozenset({SHORT}), frozenset({LONG})


class Room:
    """A model's gate, and calls by name that came to it."""

    def __init__(self, loop: VirtualLoop, spec: ModelSpec) -> None:
        self.loop = loop
        self.model = Model(spec, LoopClock(loop))
        self.gate: Gate = self.model.gate
        self.seated: dict[str, Grant] = {}
        self.refused: dict[str, GatewayError] = {}
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.nonce = 0

    def need(self, call_class: CallClass = SHORT, tokens: int = 100, answer: int = 0, **changes: Any) -> Need:
        self.nonce += 1
        return Need(call_class, Estimate(tokens, tokens, tokens), answer, self.nonce, **changes)

    def comes(self, *names: str, call_class: CallClass = SHORT, need: Need | None = None) -> None:
        for name in names:
            self.tasks[name] = self.loop.create_task(self._enter(name, need or self.need(call_class)))
            self.settle()

    async def _enter(self, name: str, need: Need) -> None:
        try:
            self.seated[name] = await self.gate.enter(need, "team")
            self.order.append(name)
        except GatewayError as error:
            self.refused[name] = error

    def settle(self, seconds: float = 0.0) -> None:
        async def turn() -> None:
            await asyncio.sleep(seconds)
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())

    def ends(self, *names: str) -> None:
        for name in names:
            self.seated.pop(name).permit.release()
        self.settle()

    def leaves(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        self.settle()

    def where(self, name: str) -> str:
        return self.seated[name].choice.replica

    def inflight(self) -> dict[str, int]:
        return {replica.spec.name: replica.inflight for replica in self.model.pool}

    def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.settle()
        for grant in self.seated.values():
            grant.permit.release()
        assert self.gate.depth == 0
        assert set(self.inflight().values()) <= {0}


@pytest.fixture
def make(loop: VirtualLoop) -> Any:
    rooms: list[Room] = []

    def build(*replicas: Any, **changes: Any) -> Room:
        rooms.append(Room(loop, model_spec(*replicas, **changes)))
        return rooms[-1]

    yield build
    for room in rooms:
        room.close()


def test_first_come_first_served(make: Any) -> None:
    room = make(replica_spec("a", 1))
    room.comes("1", "2", "3", "4")
    assert room.order == ["1"]
    for name in ("1", "2", "3"):
        room.ends(name)
    assert room.order == ["1", "2", "3", "4"]


def test_a_freed_permit_is_bound_late_to_whom_it_suits(make: Any) -> None:
    room = make(
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


def test_d7_a_waiting_long_prompt_does_not_keep_short_chats_from_running(make: Any) -> None:
    room = make(replica_spec("tp", 1, serves=ONLY_LONG), replica_spec("dp", 1, serves=ONLY_SHORT, context_tokens=8_000))
    big = [room.need(LONG, tokens=20_000) for _ in range(3)]
    for i, need in enumerate(big):
        room.comes(f"long{i}", need=need)
    for i in range(5):
        room.comes(f"short{i}")
        room.ends(f"short{i}")
    assert room.order == ["long0"] + [f"short{i}" for i in range(5)]


def test_d7_nor_is_it_starved_by_those_that_overflow(make: Any) -> None:
    room = make(replica_spec("tp", 1, serves=ONLY_LONG), replica_spec("dp", 1, serves=ONLY_SHORT, context_tokens=8_000))
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
def test_a4_a_waiter_that_leaves_never_blocks_those_behind_it(make: Any, gone: str) -> None:
    room = make(replica_spec("a", 1))
    room.comes("1", "2", "3", "4")
    room.leaves(gone)
    assert room.gate.depth == 2
    left = [name for name in ("2", "3", "4") if name != gone]
    room.ends("1")
    room.ends(left[0])
    assert room.order == ["1", *left]


@pytest.mark.parametrize("before", ["leave then free", "free then leave"])
def test_a4_a_grant_that_meets_a_just_cancelled_waiter_passes_on(make: Any, before: str) -> None:
    room = make(replica_spec("a", 1))
    room.comes("1", "2", "3")

    async def at_once() -> None:
        steps = [room.tasks["2"].cancel, room.seated.pop("1").permit.release]
        for step in steps if before == "leave then free" else reversed(steps):
            step()

    room.loop.run_until_complete(at_once())
    room.settle()
    assert room.order == ["1", "3"]
    assert room.inflight() == {"a": 1}


def test_a4_the_half_open_place_passes_on_with_it(make: Any) -> None:
    room = make(replica_spec("a", 2), breaker=BreakerSpec(failures=1, open_s=10.0))
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


def test_e1_half_open_lets_one_through_and_its_answer_lets_all_in(make: Any) -> None:
    room = make(replica_spec("a", 3), breaker=BreakerSpec(failures=1, open_s=10.0))
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


def test_e1_everybody_who_waits_is_seated_when_the_trial_is_answered(make: Any) -> None:
    room = make(replica_spec("a", 3), breaker=BreakerSpec(failures=1, open_s=10.0))
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


def test_e1_calls_from_before_it_opened_neither_close_nor_hold_the_breaker(make: Any) -> None:
    room = make(replica_spec("a", 9), breaker=BreakerSpec(failures=1, open_s=10.0))
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
def test_waits_are_bounded_by_class(make: Any, call_class: CallClass, wait_s: float) -> None:
    room = make(replica_spec("a", 1), queue=QueueSpec(depth=9, wait_short_s=3.0, wait_long_s=20.0))
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


def test_the_room_is_bounded(make: Any) -> None:
    room = make(replica_spec("a", 1), queue=QueueSpec(depth=2))
    room.comes("1", "2", "3", "4")
    assert isinstance(room.refused["4"], QueueFull)
    assert room.gate.depth == 2
    room.leaves("2")
    room.comes("5")
    assert room.gate.depth == 2


def test_a_room_of_no_places_still_serves_who_need_not_wait(make: Any) -> None:
    room = make(replica_spec("a", 1), queue=QueueSpec(depth=0))
    room.comes("1", "2")
    assert room.order == ["1"]
    assert isinstance(room.refused["2"], QueueFull)


def test_h2_none_up_is_no_replica_at_once(make: Any) -> None:
    room = make(replica_spec("a"), replica_spec("b"))
    for replica in room.model.pool:
        replica.probe = ProbeState(up=False)
    room.comes("1")
    assert isinstance(room.refused["1"], NoReplica)


def test_d3_what_fits_nowhere_is_refused_at_once_though_all_are_busy(make: Any) -> None:
    room = make(replica_spec("a", 1, context_tokens=1_000))
    room.comes("1")
    room.comes("2", need=room.need(tokens=900, answer=101))
    assert isinstance(room.refused["2"], ContextTooLong)
    assert "1,000 tokens" in room.refused["2"].message


def test_retries_keep_their_place(make: Any) -> None:
    room = make(replica_spec("a", 1), replica_spec("b", 1))
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


class TestReload:
    def test_e6_more_permits_seat_waiters(self, make: Any) -> None:
        room = make(replica_spec("a", 1))
        room.comes("1", "2", "3", "4")
        room.model.apply(model_spec(replica_spec("a", 3)))
        room.settle()
        assert room.order == ["1", "2", "3"]

    def test_e6_fewer_permits_are_reached_as_calls_end(self, make: Any) -> None:
        room = make(replica_spec("a", 3))
        room.comes("1", "2", "3", "4")
        room.model.apply(model_spec(replica_spec("a", 1)))
        room.ends("1", "2")
        assert room.order == ["1", "2", "3"]
        room.ends("3")
        assert room.order == ["1", "2", "3", "4"]
        assert room.inflight() == {"a": 1}

    def test_e6_a_new_replica_takes_waiters_and_a_removed_one_finishes(self, make: Any) -> None:
        room = make(replica_spec("a", 1))
        room.comes("1", "2", "3")
        room.model.apply(model_spec(replica_spec("b", 1)))
        room.settle()
        assert room.where("2") == "b"
        room.ends("1")
        assert room.order == ["1", "2"]  # a takes nobody any more
        assert room.gate.depth == 1

    def test_e6_waiters_share_new_replicas_evenly(self, make: Any) -> None:
        room = make(replica_spec("a", 1))
        room.comes(*map(str, range(7)))
        room.model.apply(model_spec(replica_spec("a", 1), replica_spec("b", 8), replica_spec("c", 8)))
        room.settle()
        assert room.inflight() == {"a": 1, "b": 3, "c": 3}

    def test_e6_after_a_reload_who_has_a_place_of_their_own_does_not_overflow(self, make: Any) -> None:
        tp, dp = replica_spec("tp", 1, serves=ONLY_LONG), replica_spec("dp", 1, serves=ONLY_SHORT)
        room = make(tp, dp)
        room.comes("l0", call_class=LONG)
        room.comes("s0", "s1")
        room.model.apply(model_spec(replace(tp, cap_max=2), replace(dp, cap_max=2)))
        room.settle()
        assert room.where("s1") == "dp"

    def test_e6_waiters_that_fit_no_more_are_turned_away(self, make: Any) -> None:
        room = make(replica_spec("a", 1, context_tokens=100_000))
        room.comes("1")
        room.comes("2", need=room.need(tokens=50_000))
        room.comes("3")
        room.model.apply(model_spec(replica_spec("a", 1, context_tokens=10_000)))
        room.settle()
        assert isinstance(room.refused["2"], ContextTooLong)
        assert room.gate.depth == 1

    def test_e6_waiters_of_a_removed_model_are_turned_away(self, make: Any) -> None:
        room = make(replica_spec("a", 1))
        room.comes("1", "2", "3")
        room.model.close(ModelNotFound("gone"))
        room.settle()
        assert {type(error) for error in room.refused.values()} == {ModelNotFound}
        assert room.gate.depth == 0
        room.ends("1")
        room.comes("4")
        assert isinstance(room.refused["4"], NoReplica)

    def test_a_replica_that_comes_back_keeps_its_permits(self, make: Any) -> None:
        a, b = replica_spec("a", 1), replica_spec("b", 1)
        room = make(a, b)
        room.comes("1", "2")
        room.model.apply(model_spec(b))
        room.model.apply(model_spec(a, b))
        room.comes("3")
        assert room.inflight() == {"a": 1, "b": 1}
        assert room.gate.depth == 1
        assert not any(replica.retired for replica in room.model.pool)

    def test_a_replica_renamed_or_trusted_otherwise_keeps_its_permits(self, make: Any) -> None:
        a = replica_spec("a", 1)
        room = make(a)
        room.comes("1", "2")
        room.model.apply(model_spec(replace(a, name="z", verify_tls=False)))
        room.settle()
        assert room.inflight() == {"z": 1}
        assert room.order == ["1"]


def test_the_order_is_a_seam_for_fairness(make: Any) -> None:
    def last_come(waiters: Any) -> Waiter:
        return max(waiters, key=lambda waiter: waiter.seq)

    room = make(replica_spec("a", 1))
    room.gate = Gate(room.model.pool, last_come)
    room.comes("1", "2", "3")
    room.ends("1")
    assert room.order == ["1", "3"]


def test_d5_a_burst_in_one_tick_spreads_evenly(make: Any) -> None:
    room = make(*(replica_spec(name, 64) for name in "abc"))
    for _ in range(50):
        room.seated[str(room.nonce)] = room.gate.try_enter(room.need())
    assert sorted(room.inflight().values()) == [16, 17, 17]


def test_small_calls_take_no_permit_but_are_bounded(make: Any) -> None:
    room = make(replica_spec("a", 1), replica_spec("b", 1))
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


def test_the_views_that_are_shown_add_up(make: Any) -> None:
    room = make(replica_spec("a", 1))
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

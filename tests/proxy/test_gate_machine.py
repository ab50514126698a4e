"""The waiting room under any order of events: caps hold, sums agree, and nobody waits beside a permit that suits."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.clock import LoopClock
from gateway.domain import BreakerSpec, CallClass, Choice, Estimate, ModelSpec, Need, QueueSpec, RoutingSpec
from gateway.errors import GatewayError
from gateway.policy import routing
from gateway.policy.health import CLOSED, ProbeState
from gateway.proxy.gate import Grant
from gateway.proxy.model import Model
from gateway.testing.loop import VirtualLoop
from tests.proxy.world import model_spec, replica_spec

NAMES = ("a", "b", "c")
CLASSES = st.sampled_from(CallClass)
REPLICAS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(1, 3),
        st.sets(CLASSES, min_size=1).map(frozenset),
        st.sampled_from([None, 1_000, 50_000]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda item: item[0],
)


def spec_of(replicas: Any, overflow: bool) -> ModelSpec:
    specs = (replica_spec(n, cap, serves=serves, context_tokens=context) for n, cap, serves, context in replicas)
    return model_spec(
        *specs,
        routing=RoutingSpec(overflow=overflow),
        queue=QueueSpec(depth=6, wait_short_s=20.0, wait_long_s=60.0),
        breaker=BreakerSpec(failures=1, open_s=5.0),
    )


class GateMachine(RuleBasedStateMachine):
    @initialize(replicas=REPLICAS, overflow=st.booleans())
    def begin(self, replicas: Any, overflow: bool) -> None:
        self.loop = VirtualLoop()
        self.model = Model(spec_of(replicas, overflow), LoopClock(self.loop))
        self.calls: dict[asyncio.Task[Grant], Need] = {}
        self.running: list[Grant] = []
        self.serial = 0
        self.before: dict[str, int] = {}  # in flight, by URL, after the last step

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(
        call_class=CLASSES, tokens=st.sampled_from([10, 900, 40_000]), tried=st.sets(st.sampled_from(NAMES), max_size=2)
    )
    def comes(self, call_class: CallClass, tokens: int, tried: set[str]) -> None:
        self.serial += 1
        need = Need(call_class, Estimate(tokens, tokens, tokens), 0, self.serial, frozenset(tried))
        self.calls[self.loop.create_task(self.model.gate.enter(need, "team"))] = need
        self.settle()

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(list(self.calls))).cancel()
        self.settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.sampled_from([None, None, False, True]))
    def ends(self, data: st.DataObject, failed: bool | None) -> None:
        self.end(data.draw(st.sampled_from(self.running)), failed)
        self.settle()

    @precondition(lambda self: self.running and self.calls)
    @rule(data=st.data())
    def ends_as_another_leaves(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.running)), None)
        data.draw(st.sampled_from(list(self.calls))).cancel()
        self.settle()

    @rule(replicas=REPLICAS, overflow=st.booleans())
    def reloads(self, replicas: Any, overflow: bool) -> None:
        self.model.apply(spec_of(replicas, overflow))
        self.settle()

    @rule(data=st.data(), up=st.sampled_from([None, True, False]))
    def probed(self, data: st.DataObject, up: bool | None) -> None:
        replica = data.draw(st.sampled_from(list(self.model.pool)))
        if up and replica.probe.up is False:
            replica.breaker = CLOSED
        replica.probe = ProbeState(up=up)
        self.model.gate.refresh()
        self.settle()

    @rule(seconds=st.sampled_from([0.1, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.settle(seconds)
        self.model.sweep(self.loop.time())
        self.settle()

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def the_sum_of_permits_is_what_is_in_flight(self) -> None:
        replicas = [*self.model.pool, *self.model.pool.retired]
        for replica in replicas:
            assert replica.inflight == sum(grant.permit.replica is replica for grant in self.running)
        assert sum(replica.inflight for replica in replicas) == len(self.running)

    @invariant()
    def no_cap_is_exceeded_but_by_those_there_before_it_shrank(self) -> None:
        for replica in self.model.pool:
            most = max(replica.spec.cap_max, self.before.get(replica.spec.url, 0))
            assert replica.inflight <= most
            self.before[replica.spec.url] = replica.inflight

    @invariant()
    def nobody_waits_beside_a_free_permit_that_suits(self) -> None:
        assert self.model.gate.depth == len(self.calls)
        for need in self.calls.values():
            found = routing.choose(need, self.model.pool.views(), self.model.spec.routing)
            assert not isinstance(found, Choice), (need, found)

    @invariant()
    def an_open_breaker_lets_one_through(self) -> None:
        for replica in self.model.pool:
            if replica.breaker.trying:
                assert replica.inflight > 0

    def end(self, grant: Grant, failed: bool | None) -> None:
        self.running.remove(grant)
        if failed is not None:
            grant.permit.told(failed=failed)
        grant.permit.release()

    def settle(self, seconds: float = 0.0) -> None:
        async def turn() -> None:
            await asyncio.sleep(seconds)
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        for task in [task for task in self.calls if task.done()]:
            del self.calls[task]
            if task.cancelled():
                continue
            if task.exception() is None:
                self.running.append(task.result())
            else:
                assert isinstance(task.exception(), GatewayError)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        for task in self.calls:
            task.cancel()
        self.settle()
        for grant in list(self.running):
            self.end(grant, None)
        self.settle()
        assert self.model.gate.depth == 0
        assert {r.inflight for r in (*self.model.pool, *self.model.pool.retired)} <= {0}
        assert not any(replica.breaker.trying for replica in self.model.pool)
        self.loop.close()
        assert self.loop.faults == []


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

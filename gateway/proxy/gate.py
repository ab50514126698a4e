"""The waiting room of one model: who runs next, and where. One decision, never split by an ``await``.

A call that finds a free permit takes it. Otherwise it waits, bounded in number and time, and a freed permit takes the
waiter it suits (late binding): first those the replica is native to, in order, then those that may overflow to it.
A long prompt at the head therefore never blocks short chats that fit elsewhere, and overflow never starves it.
``Order`` is the seam for fairness between teams: it names the next of those a permit suits.

Invariant: after each public call no waiter could run on a free permit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from gateway.domain import CallClass, Choice, Need, ReplicaView, RouteReason, Verdict
from gateway.errors import ContextTooLong, GatewayError, NoReplica, QueueFull, QueueTimeout
from gateway.policy import routing
from gateway.policy.admission import retry_after_s
from gateway.proxy.pool import Permit, Pool, Replica

LIGHT_MAX = 64  # calls without a permit under way on one replica


class Waiter:
    """A call in the waiting room. ``granted`` holds its permit once there is one."""

    __slots__ = ("granted", "native", "need", "only", "overflow", "seq", "team")

    def __init__(self, need: Need, team: str, seq: int, granted: asyncio.Future[Grant]) -> None:
        self.need = need
        self.team = team
        self.seq = seq
        self.granted = granted
        self.native: frozenset[str] = frozenset()
        self.overflow: frozenset[str] = frozenset()
        self.only = False


class Grant:
    """A permit and why its replica was chosen."""

    __slots__ = ("choice", "permit")

    def __init__(self, permit: Permit, choice: Choice) -> None:
        self.permit = permit
        self.choice = choice


Order = Callable[[Sequence[Waiter]], Waiter]


def first_come(waiters: Sequence[Waiter]) -> Waiter:
    """The order without fairness: whoever came first."""
    return min(waiters, key=lambda waiter: waiter.seq)


class Gate:
    """Caps and queue of one model's pool."""

    def __init__(self, pool: Pool, order: Order = first_come) -> None:
        self.pool = pool
        self._order = order
        self._seq = count()
        self._turn = 0
        self._waiters: dict[int, Waiter] = {}

    @property
    def depth(self) -> int:
        """Calls waiting."""
        return len(self._waiters)

    def waiting(self) -> dict[CallClass, int]:
        """Calls waiting, by class."""
        found = dict.fromkeys(CallClass, 0)
        for waiter in self._waiters.values():
            found[waiter.need.call_class] += 1
        return found

    def try_enter(self, need: Need) -> Grant | Verdict:
        """A permit at once, or why there is none."""
        found = routing.choose(need, self.pool.views(), self.pool.model.routing, self._turn)
        if isinstance(found, Verdict):
            return found
        return self._grant(self.pool.replicas[found.replica], found)

    def borrow(self, need: Need) -> Grant:
        """A place for work that does not touch the GPU (tokenizing): no permit, no queue, its own bound.

        Raises:
            NoReplica, QueueFull: none is up, or all are at ``LIGHT_MAX``.
        """
        up = self._up(need)
        if not up:
            raise self._why_not(Verdict.DOWN, need)
        least = min(up, key=lambda replica: replica.light)
        if least.light >= LIGHT_MAX:
            raise QueueFull(f"Model '{self.pool.model.name}' is busy with other small calls.", retry_after_s=1.0)
        return Grant(Permit(least, self._freed, light=True), Choice(least.spec.name, RouteReason.LEAST_INFLIGHT))

    async def enter(self, need: Need, team: str, seq: int | None = None) -> Grant:
        """A permit, now or after waiting. ``seq`` keeps the place of a call that was let in before (a retry).

        Raises:
            ContextTooLong: no replica could ever hold the call.
            NoReplica: none that could is up.
            QueueFull, QueueTimeout: the bounds of ``queue`` were met.
        """
        found = self.try_enter(need)
        if isinstance(found, Grant):
            return found
        if found is not Verdict.BUSY:
            raise self._why_not(found, need)
        spec = self.pool.model.queue
        if self.depth >= spec.depth:
            raise QueueFull(
                f"The waiting room of model '{self.pool.model.name}' is full ({spec.depth} calls).",
                retry_after_s=retry_after_s(self.depth, self._cap(), spec.wait_s(need.call_class)),
            )
        return await self._wait(need, team, seq)

    def next_seq(self) -> int:
        """A place in the order of arrival."""
        return next(self._seq)

    def could_take(self, need: Need, *, light: bool = False) -> bool:
        """Whether a replica that is up could take the call, at once or after waiting."""
        if light:
            return bool(self._up(need))
        return routing.choose(need, self.pool.views(), self.pool.model.routing) not in (Verdict.DOWN, Verdict.NEVER)

    def refresh(self) -> None:
        """Look again after a change of the pool: seat whoever can run, turn away whoever never will."""
        views = self.pool.views()
        for waiter in tuple(self._waiters.values()):
            self._sort(waiter, views)
            if not waiter.native and not waiter.overflow:
                found = routing.choose(waiter.need, views, self.pool.model.routing)
                self._turn_away(waiter, self._why_not(found, waiter.need))
        self._seat_all()

    def close(self, why: GatewayError) -> None:
        """Turn everybody away."""
        for waiter in tuple(self._waiters.values()):
            self._turn_away(waiter, why)

    def _up(self, need: Need) -> list[Replica]:
        return [replica for replica in self.pool if replica.available and replica.spec.name not in need.excluded]

    def _turn_away(self, waiter: Waiter, why: GatewayError) -> None:
        self._waiters.pop(id(waiter), None)
        if not waiter.granted.done():
            waiter.granted.set_exception(why)

    async def _wait(self, need: Need, team: str, seq: int | None) -> Grant:
        loop = asyncio.get_running_loop()
        place = self.next_seq() if seq is None else seq
        waiter = Waiter(need, team, place, loop.create_future())
        self._sort(waiter, self.pool.views())
        self._waiters[id(waiter)] = waiter
        wait_s = self.pool.model.queue.wait_s(need.call_class)
        timer = loop.call_later(wait_s, self._expire, waiter, wait_s)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            # The grant may have met the cancellation half-way: its permit goes to the next in line.
            if waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
                waiter.granted.result().permit.release()
            raise
        finally:
            timer.cancel()
            self._waiters.pop(id(waiter), None)

    def _expire(self, waiter: Waiter, wait_s: float) -> None:
        self._turn_away(
            waiter,
            QueueTimeout(
                f"No place came free for model '{self.pool.model.name}' within {wait_s:g} s.",
                retry_after_s=retry_after_s(self.depth, self._cap(), wait_s),
            ),
        )

    def _sort(self, waiter: Waiter, views: Sequence[ReplicaView]) -> None:
        """Note which replicas could take the waiter, so that a freed permit finds it without routing anew."""
        tiers = routing.tiers(waiter.need, views, self.pool.model.routing)
        waiter.only = tiers.only(len(views))
        waiter.native = frozenset(v.name for v in tiers.native) - waiter.need.excluded
        waiter.overflow = frozenset(v.name for v in tiers.overflow) - waiter.need.excluded

    def _seat_all(self) -> None:
        """Fill every free permit, the least busy replica first; nobody overflows who has a place of their own."""
        seated = bool(self._waiters)
        while seated:
            by_load = sorted(self.pool, key=lambda replica: replica.inflight)
            seated = any(self._seat(r, overflow=False) for r in by_load) or any(self._seat(r) for r in by_load)

    def _seat(self, replica: Replica, *, overflow: bool = True) -> bool:
        """Give one free permit of ``replica`` to the waiter it suits best."""
        name = replica.spec.name
        if not self._waiters or replica.inflight >= replica.spec.cap_max or not replica.available:
            return False
        waiting = [w for w in self._waiters.values() if not w.granted.done()]
        suited = [w for w in waiting if name in w.native] or [w for w in waiting if overflow and name in w.overflow]
        if not suited:
            return False
        waiter = self._order(suited)
        overflowing = name not in waiter.native
        why = routing.reason(waiter.need, self.pool.model.routing, overflowing=overflowing, only=waiter.only)
        del self._waiters[id(waiter)]
        waiter.granted.set_result(self._grant(replica, Choice(name, why)))
        return True

    def _grant(self, replica: Replica, choice: Choice) -> Grant:
        self._turn += 1
        return Grant(Permit(replica, self._freed), choice)

    def _freed(self, replica: Replica) -> None:
        while self._seat(replica):
            pass

    def _cap(self) -> int:
        return sum(replica.spec.cap_max for replica in self.pool)

    def _why_not(self, found: Choice | Verdict, need: Need) -> GatewayError:
        """The refusal of a call that waiting does not help."""
        model = self.pool.model
        if found is not Verdict.NEVER:
            return NoReplica(f"No replica of model '{model.name}' that can take this call is up.", retry_after_s=5.0)
        largest = max((view.context_tokens or 0 for view in self.pool.views()), default=0)
        return ContextTooLong(
            f"This request needs about {need.prompt.prompt + max(need.completion_tokens, 1):,} tokens "
            f"(prompt about {need.prompt.prompt:,}, answer up to {need.completion_tokens:,}), but the largest "
            f"context of model '{model.name}' is {largest:,} tokens.",
            param="messages",
        )

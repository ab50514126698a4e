"""Where a call runs: filter by what a replica can hold and serves, then pick among those with a free permit.

A filter looks only at what does not change by waiting (class and context); health and permits decide between now,
later and never. The tiers are *native* (the replica serves the call's class) and *overflow* (it serves the other one
and ``routing.overflow`` allows it). A call that no native replica could ever hold may go wherever it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from gateway.domain import CallClass, Choice, Estimate, Need, ReplicaView, RouteReason, RoutingSpec, Verdict


class Tiers(NamedTuple):
    """Replicas that can hold a call, by how willingly they take it. ``forced`` marks natives that merely fit."""

    native: Sequence[ReplicaView]
    overflow: Sequence[ReplicaView]
    forced: bool

    def only(self, replicas: int) -> bool:
        """Whether the call had no choice among the pool's ``replicas``."""
        return self.forced or (replicas > 1 and len(self.native) + len(self.overflow) == 1)


def classify(prompt: Estimate, spec: RoutingSpec) -> CallClass:
    """The class of a call with this prompt: ``long`` from ``routing.long_tokens`` on."""
    return CallClass.LONG if prompt.prompt >= spec.long_tokens else CallClass.SHORT


def fitting(need: Need, views: Sequence[ReplicaView]) -> Sequence[ReplicaView]:
    """Replicas whose context holds the call.

    The prompt's size is an estimate. Its upper bound decides, so that a call is not sent where the engine would refuse
    it; where only the lower bound fits, the largest replicas get it and the engine, which counts exactly, judges.
    """
    answer = need.completion_tokens or 1  # a prompt needs room for one token
    safe = _holding(need.prompt.high + answer, views)
    if safe:
        return safe
    possible = _holding(need.prompt.low + answer, views)
    largest = max((view.context_tokens or 0 for view in possible), default=0)
    return [view for view in possible if (view.context_tokens or 0) == largest]


def tiers(need: Need, views: Sequence[ReplicaView], spec: RoutingSpec) -> Tiers:
    """Sort the replicas that can hold ``need`` into tiers; both empty means never."""
    native: list[ReplicaView] = []
    others: list[ReplicaView] = []
    for view in fitting(need, views):
        (native if need.call_class in view.serves else others).append(view)
    if not native:
        return Tiers(native=others, overflow=(), forced=bool(others))
    return Tiers(native=native, overflow=others if spec.overflow else (), forced=False)


def choose(need: Need, views: Sequence[ReplicaView], spec: RoutingSpec, turn: int = 0) -> Choice | Verdict:
    """The replica ``need`` runs on now, or why there is none.

    ``turn`` counts the choices made so far (``round_robin`` goes by it). Ties are broken by the call's nonce, so equal
    replicas share a burst evenly and a decision can be repeated exactly.
    """
    tier = tiers(need, views, spec)
    if not tier.native and not tier.overflow:
        return Verdict.NEVER
    for group, overflowing in ((tier.native, False), (tier.overflow, True)):
        free = [v for v in group if v.available and v.inflight < v.cap and v.name not in need.excluded]
        if free:
            picked = _pick(free, spec, need.nonce, turn)
            return Choice(picked.name, reason(need, spec, overflowing=overflowing, only=tier.only(len(views))))
    may_come_free = any(v.available and v.name not in need.excluded for v in (*tier.native, *tier.overflow))
    return Verdict.BUSY if may_come_free else Verdict.DOWN


def reason(need: Need, spec: RoutingSpec, *, overflowing: bool, only: bool) -> RouteReason:
    """The word for a choice: ``only`` where there was no other replica to choose from."""
    if only:
        return RouteReason.ONLY_FIT
    if overflowing:
        return RouteReason.OVERFLOW
    if need.call_class is CallClass.LONG:
        return RouteReason.LONG
    return RouteReason.ROUND_ROBIN if spec.policy == "round_robin" else RouteReason.LEAST_INFLIGHT


def _holding(tokens: int, views: Sequence[ReplicaView]) -> list[ReplicaView]:
    """The replicas whose context takes ``tokens`` of prompt and answer (unknown: perhaps, so yes)."""
    return [view for view in views if view.context_tokens is None or tokens <= view.context_tokens]


def _pick(free: Sequence[ReplicaView], spec: RoutingSpec, nonce: int, turn: int) -> ReplicaView:
    if len(free) == 1:
        return free[0]
    if spec.policy == "round_robin":
        return free[turn % len(free)]
    least = min([view.inflight for view in free])
    tied = [view for view in free if view.inflight == least]
    if len(tied) > 1:  # whatever order they are configured in, the same call finds the same replica
        tied.sort(key=attrgetter("name"))
    return tied[nonce % len(tied)]

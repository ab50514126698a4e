"""Where a call runs, as tables and as properties of every fleet."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import CallClass, Choice, Estimate, Need, ReplicaView, RouteReason, RoutingSpec, Verdict
from gateway.policy.routing import choose, classify

SHORT, LONG = CallClass.SHORT, CallClass.LONG
BOTH = frozenset(CallClass)
GOLDEN = 0x9E3779B97F4A7C15


def view(name: str, inflight: int = 0, cap: int = 4, **changes: Any) -> ReplicaView:
    fields = {"serves": BOTH, "available": True, "context_tokens": None} | changes
    return ReplicaView(name=name, inflight=inflight, cap=cap, **fields)


def need(call_class: CallClass = SHORT, prompt: int = 100, **changes: Any) -> Need:
    fields = {"completion_tokens": 0, "nonce": 7} | changes
    return Need(call_class, Estimate(prompt, prompt, prompt), **fields)


VIEWS = st.lists(
    st.builds(
        ReplicaView,
        name=st.sampled_from("abcdef"),
        serves=st.sets(st.sampled_from(CallClass), min_size=1).map(frozenset),
        available=st.booleans(),
        inflight=st.integers(0, 5),
        cap=st.integers(0, 5),
        context_tokens=st.one_of(st.none(), st.sampled_from([500, 1_000, 10_000, 100_000])),
    ),
    max_size=6,
    unique_by=lambda v: v.name,
)
NEEDS = st.builds(
    lambda c, low, spread, high, answer, nonce, tried: Need(
        c, Estimate(low + spread, low, low + spread + high), answer, nonce, frozenset(tried)
    ),
    st.sampled_from(CallClass),
    st.integers(0, 120_000),
    st.integers(0, 2_000),
    st.integers(0, 2_000),
    st.sampled_from([0, 1, 400, 5_000]),
    st.integers(0, 2**64 - 1),
    st.sets(st.sampled_from("abcdef"), max_size=3),
)
SPECS = st.builds(RoutingSpec, policy=st.sampled_from(["least_inflight", "round_robin"]), overflow=st.booleans())


def could_hold(v: ReplicaView, n: Need) -> bool:
    return v.context_tokens is None or n.prompt.low + max(n.completion_tokens, 1) <= v.context_tokens


def surely_holds(v: ReplicaView, n: Need) -> bool:
    return v.context_tokens is None or n.prompt.high + max(n.completion_tokens, 1) <= v.context_tokens


@given(NEEDS, VIEWS, SPECS, st.integers(0, 1_000))
def test_d3_whoever_is_chosen_is_up_free_untried_and_holds_it(
    n: Need, views: list[ReplicaView], spec: RoutingSpec, turn: int
) -> None:
    found = choose(n, views, spec, turn)
    if not isinstance(found, Choice):
        return
    (chosen,) = [v for v in views if v.name == found.replica]
    assert chosen.available
    assert chosen.inflight < chosen.cap
    assert chosen.name not in n.excluded
    assert could_hold(chosen, n)
    if not surely_holds(chosen, n):
        assert not any(surely_holds(v, n) for v in views)
    if n.call_class not in chosen.serves:
        natives = [v for v in views if n.call_class in v.serves and surely_holds(v, n)]
        assert all(not v.available or v.free <= 0 or v.name in n.excluded for v in natives)
        assert spec.overflow or not natives


@given(NEEDS, VIEWS, SPECS)
def test_the_verdicts_mean_what_they_say(n: Need, views: list[ReplicaView], spec: RoutingSpec) -> None:
    found = choose(n, views, spec)
    assert (found is Verdict.NEVER) == (not any(could_hold(v, n) for v in views))
    idle = [v._replace(inflight=0, cap=1) for v in views]
    if found is Verdict.BUSY:
        assert isinstance(choose(n, idle, spec), Choice), "waiting would not help"
    if found is Verdict.DOWN:
        assert choose(n, idle, spec) is Verdict.DOWN
        up = [v._replace(available=True) for v in idle]
        assert isinstance(choose(n._replace(excluded=frozenset()), up, spec), Choice)


@given(NEEDS, VIEWS.flatmap(lambda views: st.tuples(st.just(views), st.permutations(views))), st.booleans())
def test_the_order_of_replicas_does_not_matter(
    n: Need, orders: tuple[list[ReplicaView], list[ReplicaView]], overflow: bool
) -> None:
    spec = RoutingSpec(overflow=overflow)
    assert choose(n, orders[0], spec) == choose(n, orders[1], spec)


def test_the_order_of_equal_replicas_does_not_matter_either() -> None:
    for nonce in range(12):
        orders = permutations([view("a"), view("b"), view("c"), view("d", 1)])
        assert len({choose(need(nonce=nonce), order, RoutingSpec()) for order in orders}) == 1


@pytest.mark.parametrize(("tokens", "expected"), [(0, SHORT), (15_999, SHORT), (16_000, LONG), (240_000, LONG)])
def test_the_class_goes_by_the_prompt(tokens: int, expected: CallClass) -> None:
    assert classify(Estimate(tokens, 0, 10**6), RoutingSpec()) is expected


ONLY_SHORT, ONLY_LONG = frozenset({SHORT}), frozenset({LONG})
TP, DP = view("tp", serves=ONLY_LONG), view("dp", serves=ONLY_SHORT)


def busy(v: ReplicaView) -> ReplicaView:
    return v._replace(inflight=v.cap)


def down(v: ReplicaView) -> ReplicaView:
    return v._replace(available=False)


@pytest.mark.parametrize(
    ("call_class", "views", "overflow", "expected"),
    [
        (SHORT, [TP, DP], True, ("dp", RouteReason.LEAST_INFLIGHT)),
        (LONG, [TP, DP], True, ("tp", RouteReason.LONG)),
        (SHORT, [TP, busy(DP)], True, ("tp", RouteReason.OVERFLOW)),
        (LONG, [busy(TP), DP], True, ("dp", RouteReason.OVERFLOW)),
        (SHORT, [TP, busy(DP)], False, Verdict.BUSY),
        (SHORT, [TP, down(DP)], True, ("tp", RouteReason.OVERFLOW)),
        (SHORT, [TP, down(DP)], False, Verdict.DOWN),
        (SHORT, [busy(TP), busy(DP)], True, Verdict.BUSY),
        (SHORT, [down(TP), busy(DP)], True, Verdict.BUSY),
        (SHORT, [busy(TP), down(DP)], True, Verdict.BUSY),
        (SHORT, [down(TP), down(DP)], True, Verdict.DOWN),
        (SHORT, [TP], False, ("tp", RouteReason.ONLY_FIT)),  # nobody serves the class: whoever fits does
        (SHORT, [], True, Verdict.NEVER),
        (SHORT, [view("one")], True, ("one", RouteReason.LEAST_INFLIGHT)),
    ],
)
def test_tiers(call_class: CallClass, views: list[ReplicaView], overflow: bool, expected: Any) -> None:
    found = choose(need(call_class), views, RoutingSpec(overflow=overflow))
    assert found == (expected if isinstance(expected, Verdict) else Choice(*expected))


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        (999, 0, "small"),
        (1_000, 0, "big"),  # no room for a single token of answer
        (900, 100, "small"),
        (900, 101, "big"),
        (9_999, 0, "big"),
        (10_000, 0, Verdict.NEVER),
    ],
)
def test_d3_prompt_and_answer_fit_the_context(prompt: int, answer: int, expected: Any) -> None:
    views = [view("small", context_tokens=1_000), view("big", 3, context_tokens=10_000)]
    found = choose(need(prompt=prompt, completion_tokens=answer), views, RoutingSpec())
    assert (found.replica if isinstance(found, Choice) else found) == expected


def test_d3_where_the_estimate_is_unsure_the_largest_replica_and_its_engine_decide() -> None:
    views = [view("a", context_tokens=1_000), view("b", 3, context_tokens=1_200)]
    unsure = Need(SHORT, Estimate(1_000, 900, 1_300), 0, 0)
    found = choose(unsure, views, RoutingSpec())
    assert isinstance(found, Choice)
    assert found.replica == "b"


def test_d3_an_unknown_context_may_be_tried() -> None:
    views = [view("known", context_tokens=100), view("unknown", context_tokens=None)]
    found = choose(need(prompt=240_000), views, RoutingSpec())
    assert isinstance(found, Choice)
    assert found.replica == "unknown"


def test_d7_a_call_that_fits_only_the_long_replica_goes_there_and_waits_only_there() -> None:
    views = [busy(view("tp", serves=ONLY_LONG)), view("dp", serves=ONLY_SHORT, context_tokens=8_000)]
    assert choose(need(LONG, 20_000), views, RoutingSpec()) is Verdict.BUSY
    assert isinstance(choose(need(SHORT), views, RoutingSpec()), Choice)


def test_round_robin_takes_turns_among_the_free() -> None:
    views = [view("a"), busy(view("b")), view("c")]
    spec = RoutingSpec(policy="round_robin")
    found = [choose(need(), views, spec, turn) for turn in range(4)]
    assert [f.replica for f in found if isinstance(f, Choice)] == ["a", "c", "a", "c"]
    assert all(isinstance(f, Choice) and f.reason is RouteReason.ROUND_ROBIN for f in found)


@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 7])
def test_d5_ties_are_spread_evenly_by_the_nonce(replicas: int) -> None:
    views = [view(f"r{i}") for i in range(replicas)]
    nonces = [(i * GOLDEN) & 0xFFFFFFFFFFFFFFFF for i in range(1_000)]
    found = Counter(str(choose(need(nonce=nonce), views, RoutingSpec())) for nonce in nonces)
    assert len(found) == replicas
    assert max(found.values()) < 1.2 * 1_000 / replicas
    assert min(found.values()) > 0.8 * 1_000 / replicas


def test_d2_the_least_busy_wins_whatever_the_nonce() -> None:
    for order in permutations([view("a", 3), view("b", 1), view("c", 2)]):
        for nonce in range(10):
            found = choose(need(nonce=nonce), order, RoutingSpec())
            assert isinstance(found, Choice)
            assert found.replica == "b"

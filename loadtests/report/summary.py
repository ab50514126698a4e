"""From calls to what is said of them: groups and fairness; the same for runs over sockets and in virtual time."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from loadtests.report.result import OK, UNFINISHED, Call, Fairness, Group, TeamShare
from loadtests.report.statistics import distribution, jain, quantile

LONG_TOKENS = 16_000
ALL = "all"


class Targets(NamedTuple):
    """What a good call keeps to. ``resolution_s`` is what times of the run are good to.

    Single gaps smaller than that cannot be told from none: if it is above ``gap_s``, nothing is said of them.
    """

    ttft_s: float = 2.0
    gap_s: float = 0.050
    resolution_s: float = 0.0


TARGETS = Targets()


class Gaps:
    """Token gaps by group, pooled over calls (seconds)."""

    def __init__(self) -> None:
        self._pools: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, call: Call, gaps: Sequence[float]) -> None:
        """Take the gaps of a finished call, and note their extent in it."""
        if not gaps:
            return
        ordered = sorted(gaps)
        call.gap_mean_s = sum(ordered) / len(ordered)
        call.gap_p99_s, call.gap_max_s = quantile(ordered, 0.99), ordered[-1]
        for name in groups_of(call):
            self._pools[name].extend(gaps)

    def of(self, group: str) -> Sequence[float]:
        """All gaps of ``group``."""
        return self._pools.get(group, ())


def groups_of(call: Call) -> tuple[str, ...]:
    """The groups ``call`` belongs to: all, its kind, its class (by the size of its prompt)."""
    return ALL, call.kind, "long" if call.asked_prompt >= LONG_TOKENS else "short"


def good(call: Call, targets: Targets, *, strict: bool = False) -> bool:
    """Whether ``call`` was answered whole and within the targets; ``strict``: its p99 gap and not just the mean."""
    gap_s = call.gap_p99_s if strict else call.gap_mean_s
    if call.outcome != OK or call.ttft_s is None:
        return False
    return call.ttft_s <= targets.ttft_s and (gap_s is None or gap_s <= targets.gap_s)


def groups(calls: Iterable[Call], gaps: Gaps, elapsed_s: float, targets: Targets = TARGETS) -> dict[str, Group]:
    """The calls by group."""
    members: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        for name in groups_of(call):
            members[name].append(call)
    return {name: _group(found, gaps.of(name), elapsed_s, targets) for name, found in members.items()}


def _group(calls: Sequence[Call], gaps: Sequence[float], elapsed_s: float, targets: Targets) -> Group:
    whole = [call for call in calls if call.outcome == OK]
    ended = [call for call in calls if call.outcome != UNFINISHED]
    kept = sum(good(call, targets) for call in ended)
    return Group(
        asked=len(calls),
        ok=len(whole),
        failures=dict(Counter(call.outcome for call in calls if call.outcome != OK).most_common()),
        ttft_s=distribution(call.ttft_s for call in whole if call.ttft_s is not None),
        gap_s=distribution(gaps),
        e2e_s=distribution(call.e2e_s for call in whole if call.e2e_s is not None),
        stream_tokens_per_s=distribution(rate for call in whole if (rate := _stream_rate(call)) is not None),
        good=kept / len(ended) if ended else None,
        strict=_strict(ended, targets),
        good_per_s=kept / elapsed_s if elapsed_s > 0 else None,
        completion_tokens=_total(call.completion_tokens for call in whole),
        prompt_tokens=_total(call.prompt_tokens for call in whole),
        cached_tokens=_total(call.cached_tokens for call in whole),
    )


def _strict(ended: Sequence[Call], targets: Targets) -> float | None:
    if not ended or targets.resolution_s > targets.gap_s:
        return None
    return sum(good(call, targets, strict=True) for call in ended) / len(ended)


def _stream_rate(call: Call) -> float | None:
    """Tokens per second after the first."""
    if call.first_s is None or call.ended_s is None or not call.completion_tokens or call.chunks < 2:
        return None
    span_s = call.ended_s - call.first_s
    return (call.completion_tokens - 1) / span_s if span_s > 0 else None


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum of what was counted; ``None`` if nothing was."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def fairness(calls: Iterable[Call], teams: Iterable[str], targets: Targets = TARGETS) -> Fairness:
    """What each team got. Teams that asked for nothing are left out."""
    by_team: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_team[call.team].append(call)
    shares = {team: _team(by_team[team], targets) for team in teams if team in by_team}
    total = sum(share.tokens for share in shares.values())
    for share in shares.values():
        share.share = share.tokens / total if total else None
    return Fairness(
        teams=shares,
        jain_tokens=jain([share.tokens for share in shares.values()]),
        jain_good=jain([share.good for share in shares.values() if share.good is not None]),
    )


def _team(calls: Sequence[Call], targets: Targets) -> TeamShare:
    ended = [call for call in calls if call.outcome != UNFINISHED]
    firsts = distribution(call.ttft_s for call in calls if call.outcome == OK and call.ttft_s is not None)
    return TeamShare(
        calls=len(calls),
        ok=sum(call.outcome == OK for call in calls),
        tokens=sum((call.prompt_tokens or 0) + (call.completion_tokens or 0) for call in calls),
        ttft_p95_s=firsts.p95 if firsts else None,
        good=sum(good(call, targets) for call in ended) / len(ended) if ended else None,
    )


def replica_calls(calls: Iterable[Call]) -> Mapping[str, int]:
    """Calls by the replica that their answers named."""
    return Counter(call.replica for call in calls if call.replica is not None)

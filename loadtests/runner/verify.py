"""The client's counts against the engines'. Whoever is wrong, a run whose two sides disagree proves nothing.

An answer that came whole must be in the engines' counters exactly as its usage says. One that failed or was cut may
have cost up to all it asked for without the client knowing, so it widens what is accepted; a refusal costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtests.report.result import OK, Call, Check, ReplicaShare

_COST_NOTHING = ("400", "401", "403", "404", "413", "422", "429", "503", "connection refused", "connection timed out")
_TOKENISERS_DIFFER = 2.0  # a prompt's tokens by a real tokeniser are at most this many times the workload's count


def verify(calls: Sequence[Call], replicas: Mapping[str, ReplicaShare]) -> list[Check]:
    """All checks that can be made; those that cannot say why."""
    return [
        _tokens(calls, replicas, "completion tokens"),
        _tokens(calls, replicas, "prompt tokens"),
        _lengths(calls),
        _chunks(calls),
        _caps(replicas),
    ]


def _tokens(calls: Sequence[Call], replicas: Mapping[str, ReplicaShare], name: str) -> Check:
    if not replicas:
        return Check(name, None, "no engine is known (--engine URL)")
    if unread := [replica for replica, share in replicas.items() if not share.reached]:
        return Check(name, None, f"counters could not be read: {', '.join(unread)}")
    whole = [call for call in calls if call.outcome == OK]
    if silent := sum(call.completion_tokens is None for call in whole):
        return Check(name, None, f"{silent} of {len(whole)} answers told no usage")
    output = name == "completion tokens"
    counted = sum(_seen(call, output=output) for call in calls)
    slack = sum(_slack(call, output=output) for call in calls if call.outcome != OK)
    engines = sum((share.generation_tokens if output else share.prompt_tokens) or 0.0 for share in replicas.values())
    said = f"client {counted:,}, engines {engines:,.0f}"
    if slack:
        said += f" (up to {slack:,} more in calls that failed or were cut)"
    return Check(name, counted <= engines <= counted + slack, said)


def _seen(call: Call, *, output: bool) -> int:
    """What the client knows to have been spent: its usage, or the tokens that arrived."""
    if output:
        return call.completion_tokens if call.completion_tokens is not None else call.chunks
    if call.prompt_tokens is not None:
        return call.prompt_tokens
    return call.asked_prompt if call.first_s is not None else 0


def _slack(call: Call, *, output: bool) -> int:
    """What may have been spent beyond that. Nothing where the answer told its usage or the call was refused."""
    if call.completion_tokens is not None or call.outcome.startswith(_COST_NOTHING):
        return 0
    return max(0, call.asked_output - call.chunks) if output else int(_TOKENISERS_DIFFER * call.asked_prompt)


def _lengths(calls: Sequence[Call]) -> Check:
    """Answers have the length that was asked for: otherwise two runs with one seed are not the same load."""
    whole = [call for call in calls if call.outcome == OK and call.completion_tokens is not None]
    other = [call for call in whole if call.completion_tokens != call.asked_output]
    if not whole:
        return Check("answer lengths", None, "no answer told its usage")
    said = f"{len(other)} of {len(whole)} answers are not as long as asked for (ignore_eos)"
    return Check("answer lengths", not other, said if other else f"all {len(whole)} as asked for")


def _chunks(calls: Sequence[Call]) -> Check:
    """No answer has more chunks with tokens than it has tokens, and none with tokens has no chunk."""
    told = [call for call in calls if call.outcome == OK and call.completion_tokens is not None]
    if not told:
        return Check("chunks", None, "no answer told its usage")
    odd = [call.id for call in told if not (call.chunks <= (call.completion_tokens or 0) and call.chunks)]
    chunks, tokens = sum(call.chunks for call in told), sum(call.completion_tokens or 0 for call in told)
    said = f"{chunks:,} chunks for {tokens:,} tokens"
    return Check("chunks", not odd, said + (f"; impossible in {', '.join(odd[:3])}" if odd else ""))


def _caps(replicas: Mapping[str, ReplicaShare]) -> Check:
    known = {name: share for name, share in replicas.items() if share.cap is not None}
    if not known:
        return Check("caps", None, "no cap is known (a target given by URL)")
    if unseen := [name for name, share in known.items() if share.inflight_max is None]:
        return Check("caps", None, f"not seen: {', '.join(unseen)}")
    over = [
        f"{name} held {share.inflight_max:g} with a cap of {share.cap}, over it for {share.over_cap_s or 0:.1f} s"
        for name, share in known.items()
        if (share.inflight_max or 0) > (share.cap or 0)
    ]
    most = ", ".join(f"{name} {share.inflight_max:g}/{share.cap}" for name, share in known.items())
    return Check("caps", not over, "; ".join(over) if over else f"most at once {most}")

"""What the replays saw, as tables, Markdown and JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from rich.table import Table

from loadtests.estimate.prompts import MIXED
from loadtests.estimate.replay import COLD, WARM, Fate, Seen, fate

_HEADER = (
    "tokenizer",
    "key",
    f"first {COLD}: mean",
    "p95",
    f"after {WARM}: mean",
    "p95",
    "bias",
    "within bounds",
    "bounds ±",
)
_FATES = ("tokenizer", "prompts near the limit", "mean error", "misplaced", "detoured", "refused", "judged by engine")
ERROR_GOAL = 0.10


class Errors(NamedTuple):
    """Relative errors of the estimates of some prompts."""

    prompts: int
    mean: float
    p95: float
    bias: float
    within_bounds: float
    spread: float


class Result(NamedTuple):
    """One tokenizer's replay: prompts of all sizes and those near the limit of a context."""

    tokenizer: str
    ordinary: Sequence[Seen]
    near: Sequence[Seen]


def errors(seen: Sequence[Seen]) -> Errors | None:
    """Mean absolute error, 95th percentile, signed mean, share within the bounds, the bounds' mean half width."""
    if not seen:
        return None
    off = sorted(abs(one.off) for one in seen)
    return Errors(
        len(off),
        _mean(off),
        off[min(len(off) - 1, int(0.95 * len(off)))],
        _mean([one.off for one in seen]),
        _mean([one.estimate.low <= one.actual <= one.estimate.high for one in seen]),
        _mean([(one.estimate.high - one.estimate.low) / 2 / one.estimate.prompt for one in seen]),
    )


def phases(result: Result) -> dict[str, dict[str, Errors | None]]:
    """Cold, warm and near-limit errors of each key, and of each kind that the mixing key sends."""
    kinds = dict.fromkeys(one.kind for one in result.ordinary)
    rows = [
        *((kind, kind, None) for kind in kinds),
        (MIXED, MIXED, None),
        *((f"{MIXED}: {k}", MIXED, k) for k in kinds),
    ]
    found = {}
    for name, key, kind in rows:
        ordinary = [one for one in result.ordinary if one.key == key and kind in (None, one.kind)]
        near = [one for one in result.near if one.key == key and kind in (None, one.kind)]
        found[name] = {
            "cold": errors([one for one in ordinary if one.nth <= COLD]),
            "warm": errors([one for one in ordinary if one.nth > WARM]),
            "near_limit": errors(near),
        }
    return found


def too_far_off(results: Sequence[Result]) -> list[str]:
    """Keys whose mean error is above the goal once warm."""
    return [
        f"{result.tokenizer}, {name}: {warm.mean:.1%}"
        for result in results
        for name, phase in phases(result).items()
        if ":" not in name and (warm := phase["warm"]) and warm.mean > ERROR_GOAL
    ]


def tables(results: Sequence[Result]) -> list[Table]:
    """For the terminal."""
    found = []
    for header, lines in ((_HEADER, _lines(results)), (_FATES, _fate_lines(results))):
        table = Table()
        for at, name in enumerate(header):
            table.add_column(name, justify="left" if at < 2 and header is _HEADER else "right")
        for line in lines:
            table.add_row(*line)
        found.append(table)
    return found


def markdown(results: Sequence[Result], about: Mapping[str, str]) -> str:
    """The same for a document."""
    remarks = "; ".join(f"{name} {value}" for name, value in about.items())
    far = too_far_off(results)
    verdict = (
        f"Above {ERROR_GOAL:.0%} once warm: {'; '.join(far)}."
        if far
        else f"No key's mean error is above {ERROR_GOAL:.0%} once warm."
    )
    return (
        f"Error of the estimate of prompt tokens, relative to what the tokenizer counts. {remarks}.\n\n"
        f"{_markdown(_HEADER, _lines(results))}\n\n{verdict}\n\n"
        "Prompts within 5 % of a context of 131,072 tokens, keys warm. *Misplaced*: beside a replica of twice the "
        "context, sent to the small one although too long for it. *Detoured*: sent to the large one although the small "
        "one could have held it. *Refused*: with the small one alone, refused by the gateway although it fits. *Judged "
        f"by engine*: with the small one alone, sent although too long.\n\n{_markdown(_FATES, _fate_lines(results))}\n"
    )


def as_json(results: Sequence[Result], about: Mapping[str, str]) -> bytes:
    """Every figure."""
    content: dict[str, Any] = {"about": about, "tokenizers": {}}
    for result in results:
        keys = {
            name: {phase: found._asdict() if found else None for phase, found in by_phase.items()}
            for name, by_phase in phases(result).items()
        }
        content["tokenizers"][result.tokenizer] = {"keys": keys, "near_limit": fate(result.near)._asdict()}
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def versions(packages: Mapping[str, str], seed: int, each: int) -> dict[str, str]:
    """What the figures depend on."""
    return {"Python": platform.python_version(), **packages, "seed": str(seed), "prompts a key": str(each)}


def _lines(results: Sequence[Result]) -> list[list[str]]:
    lines = []
    for result in results:
        for name, phase in phases(result).items():
            cold, warm = phase["cold"], phase["warm"]
            first = [f"{cold.mean:.1%}", f"{cold.p95:.1%}"] if cold else ["–", "–"]
            later = (
                [
                    f"{warm.mean:.1%}",
                    f"{warm.p95:.1%}",
                    f"{warm.bias:+.1%}",
                    f"{warm.within_bounds:.0%}",
                    f"{warm.spread:.0%}",
                ]
                if warm
                else ["–"] * 5
            )
            lines.append([result.tokenizer, name, *first, *later])
    return lines


def _fate_lines(results: Sequence[Result]) -> list[list[str]]:
    lines = []
    for result in results:
        found, off = fate(result.near), errors(result.near)
        lines.append([result.tokenizer, str(found.prompts), f"{off.mean:.1%}" if off else "–", *_shares(found)])
    return lines


def _shares(found: Fate) -> list[str]:
    return [f"{share:.1%}" for share in (found.misplaced, found.detoured, found.refused, found.judged)]


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

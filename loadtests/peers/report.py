"""Trials as one table, as Markdown and as JSON. Nothing appears here that was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
from rich.table import Table

from loadtests.peers.figures import ALL, KINDS
from loadtests.peers.race import Race, Trial, failures
from loadtests.report.table import NOTHING

_DOUBTFUL = "†"
_QUIET_CORES = 0.1


def rows(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """(kind, title) of every figure that any trial has, in their order."""
    found: dict[tuple[str, str], None] = {}
    for kind in (*KINDS, ALL):
        for trial in trials:
            found |= dict.fromkeys((kind, title) for title in trial.figures.get(kind, {}))
    return list(found)


def cell(trials: Sequence[Trial], peer: str, kind: str, title: str) -> str:
    """The mean over the seeds, with the least and the most; a dash for nothing."""
    mine = [trial for trial in trials if trial.peer == peer]
    values = [trial.figures[kind][title] for trial in mine if title in trial.figures.get(kind, {})]
    if not values:
        return NOTHING
    text = _number(fmean(values))
    if len(values) > 1 and max(values) > min(values):
        text += f" ({_number(min(values))}–{_number(max(values))})"
    return text + (_DOUBTFUL if any(trial.broken or trial.limits for trial in mine) else "")


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def lines(race: Race) -> list[list[str]]:
    """The table: kind, figure, then a cell for each peer that was measured or is named as absent."""
    names = [peer.name for peer in race.peers]
    found, last = [], ""
    for kind, title in rows(race.trials):
        cells = [cell(race.trials, name, kind, title) for name in names]
        found.append([kind if kind != last else "", title, *cells])
        last = kind
    return found


def notes(race: Race) -> list[str]:
    """What a reader must know beside the table."""
    found = [f"{name}: not measured: {reason}" for name, reason in race.absent.items()]
    for peer in race.peers:
        mine = [trial for trial in race.trials if trial.peer == peer.name]
        found += _notes_of(peer.name, mine)
    others = [trial.others_cores for trial in race.trials if trial.others_cores is not None]
    if others and max(others) > _QUIET_CORES:
        found.append(
            f"the machine was not quiet: others used {fmean(others):.2f} cores on average, {max(others):.2f} in one run"
        )
    return found


def _notes_of(name: str, trials: Sequence[Trial]) -> list[str]:
    found = []
    if trials:
        seeds = ", ".join(f"{trial.seed}" for trial in trials)
        speeds = ", ".join(dict.fromkeys(f"{trial.speed:g}" for trial in trials))
        found.append(f"{name}: seeds {seeds} at speed {speeds}")
    totals: dict[tuple[str, str], int] = {}
    for trial in trials:
        for kind in KINDS:
            for outcome, count in failures(trial, kind).items():
                totals[kind, outcome] = totals.get((kind, outcome), 0) + count
    found += [f"{name}: failed {kind} calls: {count} × {outcome}" for (kind, outcome), count in totals.items()]
    for trial in trials:
        found += [f"{_DOUBTFUL} {name}, seed {trial.seed}: counts disagree: {reason}" for reason in trial.broken]
        found += [f"{_DOUBTFUL} {name}, seed {trial.seed}: SATURATED: {limit}" for limit in trial.limits]
        if not trial.complete:
            found.append(f"{name}, seed {trial.seed}: broken off")
    return found


def table(race: Race) -> Table:
    """For the terminal."""
    found = Table(title="mean over the seeds (least–most)", title_justify="left")
    for number, name in enumerate(_header(race)):
        found.add_column(name, justify="left" if number < 2 else "right")
    for number, line in enumerate(lines(race)):
        if line[0] and number:
            found.add_section()
        found.add_row(*line)
    return found


def _header(race: Race) -> list[str]:
    return ["calls", "figure", *(peer.name for peer in race.peers)]


def markdown(race: Race, about: Mapping[str, Any]) -> str:
    """The same for a document, with what it was measured on."""
    header = _header(race)
    text = "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines(race)))
    said = "; ".join(f"{name} {value}" for name, value in about.items())
    remarks = "".join("\n* " + note.replace("\n", "\n  ") for note in notes(race))
    return f"Mean over the seeds (least–most). {said}.\n\n{text}\n{remarks}\n"


def as_json(race: Race, about: Mapping[str, Any], *, complete: bool) -> bytes:
    """Every figure of every trial."""
    content = {"about": about, "complete": complete, "absent": race.absent, "trials": race.trials}
    return msgspec.json.format(msgspec.json.encode(content), indent=1)

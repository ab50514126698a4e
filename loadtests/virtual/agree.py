"""Runs over sockets against the same load in virtual time.

Two runs of one load part ways after a while: milliseconds change who waits for whom, answers come at other times, and
users ask at other times. So virtual time is run several times (``draws``) with every ask up to ``JITTER_S`` late, as
over sockets, which shows how far apart two equal runs are; the calls of runs of one scenario and fleet are pooled, draw
by draw.

The p95 of all calls together often lies between two kinds, where a call more or less of one of them moves it far: it is
shown, but whether runs agree is decided by kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
from rich.table import Table

from gateway.domain import ServingSpec
from loadtests.report.result import OK, UNFINISHED, Call, Result, load
from loadtests.report.statistics import distribution
from loadtests.report.summary import groups_of
from loadtests.report.table import number, ordered
from loadtests.runner.fleet import profiles
from loadtests.virtual.run import Plan, run
from loadtests.virtual.settings import model_of, tree_of
from loadtests.workloads.ask import Kind
from loadtests.workloads.mix import Mix, build

WITHIN = 0.10
JITTER_S = 0.03  # a tick of the loops at either end and the work in between, at speed 5
KEEPALIVE_S = ServingSpec().keepalive_s  # real seconds, whatever the speed
_COLUMNS = ("calls", "figure", "sockets", "virtual", "least–most of the draws", "virtual ÷ sockets", "")


class Verdict(StrEnum):
    """Whether one figure agrees."""

    WITHIN = "within 10 %"
    DRAWS = "among the draws"  # further off than that, but no further than virtual runs are from one another
    OFF = "off"


class Line(msgspec.Struct, frozen=True):
    """One figure: that of the socket runs, and that of each draw."""

    group: str
    name: str
    sockets: float
    draws: tuple[float, ...]

    @property
    def virtual(self) -> float:
        """The mean of the draws."""
        return sum(self.draws) / len(self.draws)

    @property
    def verdict(self) -> Verdict:
        """See ``Verdict``."""
        if abs(self.virtual - self.sockets) <= WITHIN * self.sockets:
            return Verdict.WITHIN
        return Verdict.DRAWS if min(self.draws) <= self.sockets <= max(self.draws) else Verdict.OFF


class Agreement(msgspec.Struct, frozen=True):
    """All figures, and what makes the runs less than good."""

    runs: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether no kind's TTFT p95 is off."""
        firsts = [line for line in self.lines if line.name == "TTFT p95 s" and line.group in set(Kind)]
        return bool(firsts) and all(line.verdict is not Verdict.OFF for line in firsts)


def compared(paths: Sequence[Path], draws: int) -> list[Agreement]:
    """Run the load of every result again. Raises ``ValueError`` for one that cannot be, ``OSError``."""
    together: defaultdict[tuple[str, object], list[tuple[Path, Result]]] = defaultdict(list)
    for path in paths:
        result = load(path)
        together[result.scenario, result.parameters.get("fleet")].append((path, result))
    return [_compared(found, draws) for found in together.values()]


def _compared(found: Sequence[tuple[Path, Result]], draws: int) -> Agreement:
    results = [result for _, result in found]
    plans = [[plan_of(result, draw) for result in results] for draw in range(draws)]
    virtual = [[call for plan in of_draw for call in run(plan).calls] for of_draw in plans]
    sockets = [call for result in results for call in result.calls]
    notes = [f"{name}: {why}" for path, result in found for name, why in _doubts(path, result)]
    return Agreement(tuple(map(_named, results)), tuple(_lines(sockets, virtual)), tuple(notes))


def plan_of(result: Result, draw: int) -> Plan:
    """The same load, settings and servers. Raises ``ValueError`` if the result does not tell them."""
    fleet, mix = result.parameters.get("fleet"), result.parameters.get("workload")
    if not isinstance(fleet, str) or not isinstance(mix, dict) or "trace" in mix:
        raise ValueError("a result of a scenario with --fleet is needed: others say too little of what was run")
    names, config = profiles(fleet), result.parameters.get("config")
    try:
        workload = build(result.scenario, msgspec.convert(mix, Mix), seed=result.seed, seconds=result.seconds)
    except msgspec.ValidationError as error:
        raise ValueError(f"its workload is not one of today's: {error}") from None
    model = model_of(tree_of(fleet, names, Path(config) if config else None), names)
    return Plan(workload, model, names, jitter_s=JITTER_S, draw=draw, keepalive_s=KEEPALIVE_S * result.speed)


def shown(found: Agreement) -> Table:
    """For a terminal."""
    table = Table(*_COLUMNS, title=_title(found), title_justify="left")
    for cells in _cells(found):
        table.add_row(*cells)
    if found.notes:
        table.caption = "; ".join(found.notes)
    return table


def save(found: Sequence[Agreement], draws: int, path: Path) -> None:
    """Write ``path`` as Markdown and a .json beside it. Raises ``OSError``."""
    said = f"# Sockets and virtual time\n\nWritten by `python -m loadtests agree`, {draws} draws of each run.\n\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said + "\n".join(map(markdown, found)), encoding="utf-8")
    path.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def markdown(found: Agreement) -> str:
    """The same as a section of a page."""
    lines = [f"## {_title(found)}", "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += [f"| {' | '.join(cells)} |" for cells in _cells(found)]
    lines += ["", *(f"* {note}" for note in found.notes)]
    return "\n".join(lines) + "\n"


def _title(found: Agreement) -> str:
    return "; ".join(found.runs)


def _cells(found: Agreement) -> Iterator[tuple[str, ...]]:
    for line in found.lines:
        ratio = line.virtual / line.sockets if line.sockets else None
        spread = f"{number(min(line.draws), 3)}–{number(max(line.draws), 3)}"
        values = number(line.sockets, 3), number(line.virtual, 3), spread, number(ratio, 2)
        yield line.group, line.name, *values, str(line.verdict)


def _named(result: Result) -> str:
    fleet = result.parameters.get("fleet")
    return f"{result.scenario} on {fleet}, seed {result.seed}, {result.seconds:g} s at speed {result.speed:g}"


def _doubts(path: Path, result: Result) -> Iterator[tuple[str, str]]:
    yield from ((path.name, f"does not count: {fault}") for fault in result.failed)
    yield from ((path.name, f"saturated: {limit}") for limit in (result.effort.limits if result.effort else ()))
    if not result.complete:
        yield path.name, "broken off"


Figure = Callable[[Sequence[Call]], "float | None"]


def _of(point: str, value: Callable[[Call], float | None]) -> Figure:
    def figure(calls: Sequence[Call]) -> float | None:
        found = distribution(one for call in calls if call.outcome == OK and (one := value(call)) is not None)
        return getattr(found, point, None)

    return figure


def _lines(sockets: Sequence[Call], virtual: Sequence[Sequence[Call]]) -> Iterator[Line]:
    figures: tuple[tuple[str, Figure], ...] = (
        ("answered", lambda calls: float(sum(call.outcome == OK for call in calls))),
        ("failed", lambda calls: float(sum(call.outcome not in (OK, UNFINISHED) for call in calls))),
        ("TTFT p50 s", _of("p50", lambda call: call.ttft_s)),
        ("TTFT p95 s", _of("p95", lambda call: call.ttft_s)),
        ("e2e p50 s", _of("p50", lambda call: call.e2e_s)),
        ("e2e p95 s", _of("p95", lambda call: call.e2e_s)),
        ("mean gap p50 s", _of("p50", lambda call: call.gap_mean_s)),
        ("cached share", _cached),
    )
    names = ordered({name for call in sockets for name in groups_of(call)})
    for group in names:
        members = [call for call in sockets if group in groups_of(call)]
        drawn = [[call for call in calls if group in groups_of(call)] for calls in virtual]
        for name, figure in figures:
            measured, values = figure(members), [figure(calls) for calls in drawn]
            known = tuple(value for value in values if value is not None)
            if measured is not None and len(known) == len(values):
                yield Line(group, name, measured, known)


def _cached(calls: Sequence[Call]) -> float | None:
    prompt = sum(call.prompt_tokens or 0 for call in calls)
    return sum(call.cached_tokens or 0 for call in calls) / prompt if prompt else None

"""A run as it goes: a small table on a terminal, a line now and then in a log file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadtests.report.result import OK, UNFINISHED, Call
from loadtests.report.statistics import distribution
from loadtests.report.table import number, ordered
from loadtests.runner.run import Scene, Watch

_LOG_EVERY = 10  # calls of the watch, which come once a second
_RECENT = 200  # calls of a kind that the shown percentiles are of


@contextmanager
def shown(console: Console) -> Iterator[Watch]:
    """A watch that shows the run on ``console``."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda scene: live.update(table(scene), refresh=True)
    else:
        looks = iter(range(1 << 40))

        def say(scene: Scene) -> None:
            if next(looks) % _LOG_EVERY == 0:
                console.print(line(scene), style="dim", highlight=False, markup=False)

        yield say


def line(scene: Scene) -> str:
    """The run in one line."""
    calls, workload = scene.drive.calls, scene.plan.workload
    outcomes = Counter(call.outcome for call in calls)
    failed = sum(count for outcome, count in outcomes.items() if outcome not in (OK, UNFINISHED))
    under_way = len(scene.drive.open)
    return (
        f"{scene.drive.now_s:,.0f} of {workload.seconds:,.0f} s: {len(calls)} asked, {outcomes[OK]} answered, "
        f"{under_way} under way, {failed} failed"
    )


def table(scene: Scene) -> Table:
    """The run as a table."""
    found = Table(title=f"{scene.plan.workload.name}: {line(scene)}", title_justify="left")
    found.add_column("calls")
    for name in ("under way", "answered", "TTFT p50 s", "p95", "failed"):
        found.add_column(name, justify="right")
    by_kind: defaultdict[str, list[Call]] = defaultdict(list)
    for call in scene.drive.calls:
        by_kind[call.kind].append(call)
    for kind in ordered(by_kind):
        calls = by_kind[kind]
        recent = [call.ttft_s for call in calls[-_RECENT:] if call.outcome == OK and call.ttft_s is not None]
        first = distribution(recent)
        ended = Counter(call.outcome for call in calls)
        found.add_row(
            kind,
            f"{sum(call.kind == kind for call in scene.drive.open.values())}",
            f"{ended[OK]}",
            number(first.p50 if first else None),
            number(first.p95 if first else None),
            f"{len(calls) - ended[OK] - ended[UNFINISHED]}",
        )
    if scene.samples:
        last = scene.samples[-1]
        caps = {replica.name: replica.cap for replica in scene.plan.replicas}
        load = "   ".join(f"{name} {count:g}/{caps.get(name) or '–'}" for name, count in last.inflight.items())
        found.caption = f"in flight: {load or '–'}   waiting in the gateway: {number(last.queued, 0)}"
    return found

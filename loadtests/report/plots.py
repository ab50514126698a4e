"""The pictures of a result, as SVG text. Without matplotlib (extra ``loadtests``) there are none: see ``AVAILABLE``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from loadtests.report.result import OK, UNFINISHED, Result, Sample
from loadtests.report.statistics import CURVE_STEPS, Distribution
from loadtests.report.summary import ALL

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = "no plots: matplotlib is not installed (pip install 'gateway[loadtests]', or 'matplotlib>=3.9,<4')"
_SIZE_IN = (9.0, 3.4)
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "loadtests",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_CLASSES = ("short", "long", ALL)
Draw = Callable[["Axes"], None]


def pictures(result: Result) -> Iterator[tuple[str, str]]:
    """(title, SVG) of every picture there is data for. Raises ``RuntimeError`` without matplotlib."""
    if not AVAILABLE:
        raise RuntimeError(MISSING)
    kinds = [name for name in result.groups if name not in _CLASSES]
    if any(call.first_s is not None for call in result.calls):
        yield "Time to the first token, by the time a call was sent", svg(lambda axes: _over_time(axes, result, kinds))
    firsts = {kind: found for kind in kinds if (found := result.groups[kind].ttft_s)}
    if firsts:
        yield "Time to the first token: share of calls below", svg(lambda axes: _cdf(axes, firsts, "seconds"))
    gaps = {kind: found for kind in kinds if (found := result.groups[kind].gap_s)}
    if gaps:
        yield "Gap between tokens: share of gaps below", svg(lambda axes: _cdf(axes, gaps, "seconds"))
    if any(sample.inflight for sample in result.samples):
        yield "Calls on each replica (dashed: its cap)", svg(lambda axes: _load(axes, result))
    if any(sample.waiting or sample.queued is not None for sample in result.samples):
        yield "Calls waiting, in the gateway and in the engines", svg(lambda axes: _queue(axes, result))


def svg(draw: Draw) -> str:
    """What ``draw`` puts on one pair of axes. Raises ``RuntimeError`` without matplotlib."""
    if not AVAILABLE:
        raise RuntimeError(MISSING)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE_IN, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _over_time(axes: Axes, result: Result, kinds: list[str]) -> None:
    for kind in kinds:
        points = [
            (call.sent_s, call.ttft_s)
            for call in result.calls
            if call.kind == kind and call.outcome == OK and call.ttft_s is not None
        ]
        if points:
            sent, firsts = zip(*points, strict=True)
            axes.scatter(sent, firsts, s=8, label=kind, alpha=0.7)
    lost = [call.sent_s for call in result.calls if call.outcome not in (OK, UNFINISHED)]
    axes.set_yscale("log")
    if lost:  # at the lower edge: they had no first token
        edge = axes.get_xaxis_transform()
        axes.scatter(lost, [0.02] * len(lost), s=14, marker="x", color="black", label="failed", transform=edge)
    axes.set(xlabel="seconds", ylabel="TTFT, seconds")


def _cdf(axes: Axes, found: dict[str, Distribution], unit: str) -> None:
    shares = [step / CURVE_STEPS for step in range(CURVE_STEPS + 1)]
    for kind, one in found.items():
        axes.plot([max(value, 1e-4) for value in one.curve], shares, label=f"{kind} ({one.count:,})")
    axes.set_xscale("log")
    axes.set(xlabel=unit, ylabel="share", ylim=(0, 1.01))


def _load(axes: Axes, result: Result) -> None:
    for number, (name, replica) in enumerate(result.replicas.items()):
        points = [(sample.at_s, sample.inflight[name]) for sample in result.samples if name in sample.inflight]
        if points:
            axes.step(*zip(*points, strict=True), where="post", label=name, color=f"C{number}", linewidth=1)
        if replica.cap is not None:
            axes.axhline(replica.cap, linestyle="--", linewidth=0.8, color=f"C{number}")
    axes.set(xlabel="seconds", ylabel="calls", ylim=(0, None))


def _queue(axes: Axes, result: Result) -> None:
    def curve(label: str, value: Callable[[Sample], float | None]) -> None:
        points = [(sample.at_s, found) for sample in result.samples if (found := value(sample)) is not None]
        if points:
            axes.step(*zip(*points, strict=True), where="post", label=label, linewidth=1)

    curve("gateway", lambda sample: sample.queued)
    for name in result.replicas:
        curve(f"in {name}", lambda sample, name=name: sample.waiting.get(name))  # type: ignore[misc]
    axes.set(xlabel="seconds", ylabel="calls", ylim=(0, None))

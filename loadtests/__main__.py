"""``python -m loadtests``: what the gateway is measured with."""

from __future__ import annotations

import typer

from loadtests.bench.command import bench
from loadtests.calibrate.command import calibrate
from loadtests.estimate.command import estimate
from loadtests.peers.command import peers
from loadtests.report.compare import compare
from loadtests.runner.command import convert, run
from loadtests.virtual.command import agree, sweep, virtual

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(bench)
app.command()(calibrate)
app.command()(estimate)
app.command()(peers)
app.command()(run)
app.command()(compare)
app.command()(convert)
app.command()(virtual)
app.command()(sweep)
app.command()(agree)


@app.callback()
def loadtests() -> None:
    """Measurements of the gateway."""


if __name__ == "__main__":
    app()

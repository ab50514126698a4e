"""``python -m loadtests bench`` and ``estimate``: what the gateway is measured with."""

from __future__ import annotations

import typer

from loadtests.bench.command import bench
from loadtests.estimate.command import estimate

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(bench)
app.command()(estimate)


@app.callback()
def loadtests() -> None:
    """Measurements of the gateway."""


if __name__ == "__main__":
    app()

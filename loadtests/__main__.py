"""``python -m loadtests bench`` and whatever else puts a load on the gateway."""

from __future__ import annotations

import typer

from loadtests.bench.command import bench

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(bench)


@app.callback()
def loadtests() -> None:
    """Load tests of the gateway."""


if __name__ == "__main__":
    app()

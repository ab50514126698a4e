"""The ``gateway`` command: one file a command, loaded only when it is the one asked for.

``serve`` and the simulator pull in whole servers, so that ``gateway --help`` and typing errors would wait for them;
``build`` therefore imports the wanted command and lists the others by their table row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, NamedTuple

import typer

from gateway import __version__
from gateway.settings import SettingsError


class Command(NamedTuple):
    """A command's name, the module that holds it (a function, or a Typer group called ``app``), and its help line."""

    name: str
    module: str
    help: str
    group: bool = False


COMMANDS = (
    Command("serve", "gateway.cli.serve", "Run the gateway."),
    Command("demo", "gateway.cli.demo", "A simulated fleet, the gateway and a key: nothing else needed."),
    Command("sim", "gateway.cli.sim", "One simulated vLLM server."),
    Command("check", "gateway.cli.check", "Validate a settings file, probe its replicas, print what was understood."),
    Command("keys", "gateway.cli.keys", "Make keys for team members.", group=True),
)


def build(wanted: str | None = None) -> typer.Typer:
    """The command line with ``wanted`` ready to run and every other command only named."""
    app = typer.Typer(
        name="gateway",
        help="One OpenAI-compatible endpoint in front of your own vLLM servers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in COMMANDS:
        _register(app, command, loaded=command.name == wanted)
    return app


def main() -> None:
    """Run the command line; ends the process with the command's exit code.

    Faults in the settings are one line each on stderr and exit code 1, Ctrl-C is exit code 130.
    """
    _open_standard_streams()
    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    sys.exit(run(build(wanted), sys.argv[1:]))


def _open_standard_streams() -> None:
    """Point those that came closed to nowhere: else a client's socket could become descriptor 2, and get the log."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - lowest free descriptor, until the end


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """The exit code of ``app`` called with ``arguments``."""
    try:
        app(list(arguments), prog_name="gateway")
    except SettingsError as error:
        for line in error.faults:
            sys.stderr.write(line + "\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def _register(app: typer.Typer, command: Command, *, loaded: bool) -> None:
    if command.group:
        group = import_module(command.module).app if loaded else typer.Typer()
        app.add_typer(group, name=command.name, help=command.help)
    else:
        function = getattr(import_module(command.module), command.name) if loaded else _not_loaded
        app.command(command.name, help=command.help)(function)


def _not_loaded() -> None:
    raise AssertionError("a command runs only when it is the one that was asked for")


def _print_version(wanted: bool) -> None:
    if wanted:
        spec = find_spec("gateway.proxy.exchange")
        compiled = spec is not None and not str(spec.origin).endswith(".py")
        typer.echo(f"gateway {__version__}" + (" (compiled)" if compiled else ""))
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """One OpenAI-compatible endpoint in front of your own vLLM servers."""

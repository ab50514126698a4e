"""The ``gateway`` command itself: help, version, what is loaded, exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from gateway import __version__
from gateway.cli import COMMANDS, build, run
from gateway.settings import SettingsError


def test_help_names_every_command_and_loads_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"│ {command.name} " in shown for command in COMMANDS)


def test_help_does_not_wait_for_servers_and_clients() -> None:
    code = (
        "import sys; from gateway.cli import build, run; run(build(), ['--help']); "
        "print(*sorted({'uvicorn', 'fastapi', 'httpx', 'uvloop', 'httptools'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_loads_and_has_help(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    name, module = command.name, command.module  # type: ignore[attr-defined]
    assert import_module(module)
    assert run(build(name), [name, "--help"]) == 0
    assert f"gateway {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(), ["--version"]) == 0
    assert capsys.readouterr().out == f"gateway {__version__}\n"


@pytest.mark.parametrize("arguments", [["frobnicate"], ["--frobnicate"], ["check"], ["check", "--frobnicate"], []])
def test_wrong_use_is_exit_2_without_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build(arguments[0] if arguments else None), arguments) == 2
    shown = capsys.readouterr()
    assert "Usage: gateway" in shown.out + shown.err
    assert "Traceback" not in shown.out + shown.err


def test_settings_faults_are_their_lines_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_app_raising(SettingsError(["f.yaml:1: a: b", "f.yaml:2: c: d"])), []) == 1
    assert capsys.readouterr().err == "f.yaml:1: a: b\nf.yaml:2: c: d\n"


def test_ctrl_c_is_exit_130_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_app_raising(KeyboardInterrupt()), []) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (3, 3), ("a message", 1)])
def test_a_command_that_exits_by_itself_keeps_its_code(code: int | str | None, expected: int) -> None:
    assert run(_app_raising(SystemExit(code)), []) == expected


def test_python_m_gateway_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "check", "--config", str(tmp_path / "no.yaml")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{tmp_path}/no.yaml: no such file\n"


def _app_raising(error: BaseException) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        raise error

    return app

"""The README names everything that others rely on, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway import errors
from gateway.cli import COMMANDS
from gateway.domain import Outcome, RouteReason
from gateway.settings.sections import Sections
from gateway.telemetry.metrics import Metrics
from gateway.testing.fleet import FakeFleet
from gateway.wire.endpoints import ROUTES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EXAMPLE = (ROOT / "config" / "gateway.example.yaml").read_text()


def _errors(base: type[errors.GatewayError] = errors.GatewayError) -> Iterator[type[errors.GatewayError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _errors(child)


def _settings(spec: type[BaseModel] = Sections) -> Iterator[str]:
    for name, field in spec.model_fields.items():
        yield name
        for inner in re.findall(r"\w+Settings", repr(field.annotation)):
            for cls in _all_specs():
                if cls.__name__ == inner:
                    yield from _settings(cls)


def _all_specs() -> Iterator[type[BaseModel]]:
    todo = [Sections.__mro__[1]]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if issubclass(cls, BaseModel):
            yield cls


def _metrics() -> set[str]:
    metrics = Metrics(["m"], ["t"])
    metrics.watch(FakeFleet())
    page = b"".join(metrics.page()).decode()
    return set(re.findall(r"^# TYPE (gateway_\w+)", page, re.MULTILINE))


@pytest.mark.parametrize("code", sorted({error.code for error in _errors() if error is not errors.Unavailable}))
def test_every_error_code_is_explained(code: str) -> None:
    assert f"`{code}`" in README


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_is_explained(command: str) -> None:
    assert f"`gateway {command}" in README


@pytest.mark.parametrize("name", sorted(set(_settings())))
def test_every_setting_is_in_the_commented_example(name: str) -> None:
    assert re.search(rf"\b{name}:", EXAMPLE)


@pytest.mark.parametrize("name", sorted(_metrics()))
def test_every_metric_is_in_the_table(name: str) -> None:
    assert f"`{name}" in README


def test_no_metric_is_invented() -> None:
    named = {match.rstrip("_") for match in re.findall(r"`(gateway_[a-z0-9_]+)", README)}
    known = _metrics() | {f"{name}_total" for name in _metrics()}
    assert {name for name in named if name not in known} == set()


@pytest.mark.parametrize("path", sorted(ROUTES), ids=lambda path: path.decode())
def test_every_data_path_is_listed(path: bytes) -> None:
    assert f"`{path.decode()}`" in README


@pytest.mark.parametrize("word", [*Outcome, *RouteReason])
def test_every_outcome_and_route_reason_is_explained(word: str) -> None:
    assert f"`{word}`" in README


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
def test_every_make_target_is_named(target: str) -> None:
    assert f"make {target}" in README


def test_every_linked_file_exists() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    assert [name for name in linked if not (ROOT / name).exists()] == []
    assert linked

"""Settings: one YAML file, ``${ENV}`` filled in, checked whole, compiled to the domain's values.

``load`` either returns settings that can run or raises ``SettingsError`` with one line per fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway import domain
from gateway.settings import checks
from gateway.settings.document import Document, read
from gateway.settings.faults import Fault, SettingsError, dotted
from gateway.settings.fields import Spec
from gateway.settings.sections import AuthSettings, Sections, ServerSettings

__all__ = ["AuthSettings", "Compiled", "ServerSettings", "Settings", "SettingsError", "load"]

_WORDS = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of sane size",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string (quote it if it looks like something else)",
    "greater_than": "must be > {gt:.16g}",
    "greater_than_equal": "must be >= {ge:.16g}",
    "less_than_equal": "must be <= {le:.16g}",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "fault": "{message}",
}
"""Pydantic's error types in the words of the file. None of them quotes the value."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the running gateway is built from.

    ``teams`` are all that a call may be charged to; with ``auth.required: false`` that includes ``anonymous``.
    """

    server: ServerSettings
    auth: AuthSettings
    models: tuple[domain.ModelSpec, ...]
    teams: tuple[domain.Team, ...]
    keys: tuple[domain.Key, ...]
    anonymous: domain.Team | None = None


class Settings(Sections):
    """A whole, usable settings file."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each thing that is allowed but hardly wanted, or read and not enforced yet."""
        return tuple(checks.warnings(self))

    def compile(self) -> Compiled:
        """The same, as the domain's values."""
        teams = {team.name: team.compile() for team in self.teams}
        keys = tuple(key.compile(teams[team.name]) for team in self.teams for key in team.keys)
        anonymous = None if self.auth.required else domain.Team(checks.ANONYMOUS)
        return Compiled(
            server=self.server,
            auth=self.auth,
            models=tuple(model.compile() for model in self.models),
            teams=(*teams.values(), *((anonymous,) if anonymous else ())),
            keys=keys,
            anonymous=anonymous,
        )


def load(path: Path, env: Mapping[str, str]) -> Settings:
    """The settings at ``path``, with ``${NAME}`` taken from ``env``.

    Raises ``SettingsError`` (``faults``: one line each, with file, line and key).
    """
    document, faults = read(path, env)
    if faults:
        raise _error(document, faults)
    try:
        settings = Settings.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _error(document, [_fault(detail) for detail in details]) from None
    if faults := list(checks.faults(settings)):
        raise _error(document, faults)
    return settings


def _error(document: Document, faults: list[Fault]) -> SettingsError:
    placed = sorted({(document.line_of(where), dotted(where), message) for where, message in faults})
    return SettingsError([f"{document.name}:{line}: {key}: {message}" for line, key, message in placed])


def _fault(detail: ErrorDetails) -> Fault:
    where = detail["loc"]
    if detail["type"] == "extra_forbidden":
        return Fault(where, "unknown key" + _did_you_mean(str(where[-1])))
    context: dict[str, Any] = detail.get("ctx", {})
    wording = _WORDS.get(detail["type"])
    return Fault(where, wording.format(**context) if wording else detail["msg"])


def _did_you_mean(key: str) -> str:
    known = {name for spec in _specs(Spec) for name in spec.model_fields} - {key}
    close = get_close_matches(key, sorted(known), n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""


def _specs(base: type[Spec]) -> list[type[Spec]]:
    return [found for direct in base.__subclasses__() for found in (direct, *_specs(direct))]

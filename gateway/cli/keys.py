"""``gateway keys``: secrets for team members. Nothing is stored; the settings file holds only the hash."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import typer
from pydantic import ValidationError

from gateway.settings import SettingsError
from gateway.settings.sections import KeySettings

SECRET_PREFIX = "gk-"  # noqa: S105  (what a scanner of leaked secrets can look for)
SECRET_BYTES = 32  # 43 URL-safe characters

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """Make keys for team members."""


@app.command("new")
def new(
    key_id: Annotated[str, typer.Option("--id", help="Whose key it is; unique among all teams.")] = "",
) -> None:
    """Print a new secret, once, and the line for its team's `keys:` in the settings file."""
    secret = new_secret()
    line = yaml_line(key_id or f"key-{secrets.token_hex(4)}", secret)
    typer.echo(f"secret (shown only now, give it to its user):\n  {secret}")
    typer.echo(f"line to put under `keys:` of a team in the settings file, indented as here:\n      {line}")


def new_secret() -> str:
    """A fresh secret with 256 bits of the system's randomness."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def yaml_line(key_id: str, secret: str) -> str:
    """The list entry that lets ``secret`` in.

    Raises ``SettingsError`` where ``key_id`` is no name the settings would take.
    """
    digest = hashlib.sha256(secret.encode()).hexdigest()
    try:
        KeySettings(id=key_id, sha256=digest)
    except ValidationError as error:
        raise SettingsError([f"--id: {error.errors(include_input=False)[0]['msg']}"]) from None
    return f'- {{id: {_scalar(key_id)}, sha256: "{digest}"}}'


def _scalar(name: str) -> str:
    """``name`` for YAML, quoted where it would otherwise read as a number, a date, a boolean or null."""
    plain = name[0].isalpha() and name.lower() not in {"true", "false", "null"}
    return name if plain else f'"{name}"'

"""What can be wrong with a settings file, as lines an administrator can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Where = tuple[str | int, ...]
"""Path of a value in the file: ``("models", 0, "name")`` is written ``models[0].name``."""


class Fault(NamedTuple):
    """One thing wrong at one place."""

    where: Where
    message: str


class SettingsError(Exception):
    """The settings cannot be used. ``faults`` holds one ready line each: ``file:line: key: what is wrong``.

    No line quotes a value that may be a secret.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


def dotted(where: Where) -> str:
    """``where`` as the reader of the file would write it, e.g. ``models[0].replicas[1].url``."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{word(step)}" if text else word(step)
    return text


def word(text: str, longest: int = 60) -> str:
    """``text`` fit for one line of a terminal: no control characters, bounded length."""
    if not text.isprintable() or not text:
        text = ascii(text)
    return text if len(text) <= longest else text[:longest] + "…"

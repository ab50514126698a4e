"""A virtual environment of a peer's own: nothing that it needs comes near the gateway's."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.processes import ROOT

_STAMP = "requirements-installed"
_INSTALL_S_MAX = 900.0


class NotInstalled(Exception):
    """A peer cannot be installed; the message ends with pip's last line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """``.venv-peer-<name>`` in the project's folder, with ``requirements`` (arguments of ``pip install``)."""

    name: str
    requirements: tuple[str, ...]
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.root / f".venv-peer-{self.name}"

    def program(self, name: str) -> Path:
        """A command that it has once it is made."""
        return self.folder / "bin" / name

    @property
    def ready(self) -> bool:
        """Whether exactly these requirements were installed to the end."""
        stamp = self.folder / _STAMP
        return stamp.exists() and stamp.read_text() == self._wanted()

    def make(self) -> None:
        """Create it and install, unless that was done. Raises ``NotInstalled``."""
        if self.ready:
            return
        self._run([sys.executable, "-m", "venv", str(self.folder)])
        pip = [str(self.program("python")), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        self._run([*pip, *self.requirements])
        (self.folder / _STAMP).write_text(self._wanted())

    def version(self, distribution: str) -> str | None:
        """The version that is installed of ``distribution``."""
        name = distribution.replace("-", "_")
        found = sorted(self.folder.glob(f"lib/python3*/site-packages/{name}-*.dist-info"))
        return found[0].name.removesuffix(".dist-info").partition("-")[2] if found else None

    def _wanted(self) -> str:
        """The requirements, and what the files among them say."""
        files = [path for word in self.requirements if (path := Path(word)).is_file()]
        words = [*self.requirements, *(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)]
        return "\n".join(words) + "\n"

    @staticmethod
    def _run(command: Sequence[str]) -> None:
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=_INSTALL_S_MAX)
        except subprocess.TimeoutExpired:
            raise NotInstalled(f"not installed in {_INSTALL_S_MAX:.0f} s") from None
        except OSError as error:
            raise NotInstalled(str(error)) from None
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise NotInstalled(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")

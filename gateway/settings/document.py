"""The YAML file as plain values, each with the line it stands on and ``${ENV}`` filled in.

YAML 1.2 as ruamel reads it, but only its plain part: mappings with string keys, lists, strings, numbers, booleans and
null, with anchors and aliases. Tags, merge keys and duplicate keys are faults. Timestamps stay strings.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError, YAMLWarning
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.reader import ReaderError

from gateway.settings.faults import Fault, SettingsError, Where, word

FILE_BYTES_MAX = 4_194_304
NODES_MAX = 200_000  # aliases are copied out, so a small file could otherwise grow without bound

_TAG = "tag:yaml.org,2002:"
_AS_TEXT = frozenset({_TAG + "str", _TAG + "timestamp"})
_KNOWN = _AS_TEXT | {_TAG + name for name in ("int", "float", "bool", "null", "map", "seq")}
_REFERENCE = re.compile(r"\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|)")


class Document(NamedTuple):
    """A settings file read but not yet understood; ``line_of`` knows every value's line (1-based)."""

    name: str
    value: object
    lines: Mapping[Where, int]

    def line_of(self, where: Where) -> int:
        """The line of ``where``, or of the nearest place around it that is in the file."""
        for end in range(len(where), 0, -1):
            if where[:end] in self.lines:
                return self.lines[where[:end]]
        return 1


def read(path: Path, env: Mapping[str, str]) -> tuple[Document, list[Fault]]:
    """The document at ``path``, and what is wrong with its values.

    Raises ``SettingsError`` where the file cannot be read or is no YAML.
    """
    text = _text(path)
    root = _compose(text, str(path))
    reader = _Reader(str(path), env)
    try:
        value = reader.value(root, ())
    except RecursionError:
        raise SettingsError([f"{path}: nested too deeply"]) from None
    return Document(str(path), value, reader.lines), reader.faults


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise SettingsError([f"{path}: no such file"]) from None
    except IsADirectoryError:
        raise SettingsError([f"{path}: is a directory, not a settings file"]) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable file name"
        raise SettingsError([f"{word(str(path), 200)}: cannot be read: {reason}"]) from None
    if len(raw) > FILE_BYTES_MAX:
        raise SettingsError([f"{path}: larger than {FILE_BYTES_MAX} bytes"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SettingsError([f"{path}:{line}: not UTF-8 text"]) from None


def _compose(text: str, name: str) -> Node:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", YAMLWarning)
            root = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, YAMLWarning) as error:
        raise SettingsError([_syntax_line(error, text, name)]) from None
    except RecursionError:
        raise SettingsError([f"{name}: nested too deeply"]) from None
    except (ValueError, OverflowError, LookupError, AssertionError, TypeError, AttributeError):
        # ruamel trips over some malformed directives and escapes instead of reporting them
        raise SettingsError([f"{name}: not valid YAML"]) from None
    if root is None:
        raise SettingsError([f"{name}: is empty"])
    if not isinstance(root, MappingNode):
        raise SettingsError([f"{name}:{root.start_mark.line + 1}: must be a mapping with the sections of the settings"])
    return cast(Node, root)


def _syntax_line(error: YAMLError | YAMLWarning, text: str, name: str) -> str:
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{name}:{line}: not valid YAML: character U+{ord(text[error.position]):04X} is not allowed"
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    if not isinstance(error, MarkedYAMLError) or mark is None:
        return f"{name}: not valid YAML: {word(next(filter(None, str(error).splitlines()), ''), 200)}"
    lines = text.splitlines()
    source = lines[mark.line] if mark.line < len(lines) else ""
    message = " ".join(part for part in (error.context, error.problem) if part)
    if "\\t" in message:
        message = "tab used for indentation (YAML wants spaces)"
    elif "'{'" in message and "${" in source:
        message += ' (quote strings that hold ${…}: "${NAME}")'
    return f"{name}:{mark.line + 1}: not valid YAML: {word(message, 300)}"


class _Reader:
    """Turns nodes into values and notes lines and faults on the way."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.lines: dict[Where, int] = {}
        self.faults: list[Fault] = []
        self._name = name
        self._constructor = YAML(typ="safe", pure=True).constructor
        self._env = env
        self._around: set[int] = set()  # nodes being read, to notice an alias to its own parent
        self._nodes = 0

    def value(self, node: Node, where: Where) -> object:
        """The plain value of ``node``, which stands at ``where``."""
        self.lines.setdefault(where, node.start_mark.line + 1)
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise SettingsError([f"{self._name}: more than {NODES_MAX} values (aliases are copied out)"])
        if id(node) in self._around:
            return self._fault(where, "an alias to a place around itself")
        if node.tag not in _KNOWN:
            return self._fault(where, f"tag {word(str(node.tag))} is not supported")
        if isinstance(node, ScalarNode):
            return self._scalar(node, where)
        self._around.add(id(node))
        try:
            return self._mapping(node, where) if isinstance(node, MappingNode) else self._sequence(node.value, where)
        finally:
            self._around.discard(id(node))

    def _mapping(self, node: MappingNode, where: Where) -> object:
        values: dict[str, object] = {}
        for key, item in node.value:
            name = key.value if isinstance(key, ScalarNode) else None
            here = (*where, name if isinstance(name, str) else "?")
            if key.tag != _TAG + "str":
                self.lines.setdefault(here, key.start_mark.line + 1)
                self._fault(here, "keys must be plain strings")
            elif here[-1] in values:
                first, self.lines[here] = self.lines[here], key.start_mark.line + 1
                self._fault(here, f"duplicate key (first on line {first})")
            else:
                self.lines[here] = key.start_mark.line + 1
                values[str(name)] = self.value(item, here)
        return values

    def _sequence(self, items: list[Node], where: Where) -> object:
        return [self.value(item, (*where, index)) for index, item in enumerate(items)]

    def _scalar(self, node: ScalarNode, where: Where) -> object:
        if node.tag in _AS_TEXT:
            return self._filled(node.value, where)
        try:
            return self._constructor.construct_object(node)
        except (ValueError, OverflowError, LookupError, YAMLError):
            return self._fault(where, f"is no {str(node.tag).removeprefix(_TAG)}")

    def _filled(self, text: str, where: Where) -> str:
        def fill(reference: re.Match[str]) -> str:
            name, default = reference.groups()
            if name is None:
                self._fault(where, "malformed ${…}: write ${NAME} or ${NAME:-default}")
                return ""
            value = self._env.get(name)
            if default is not None:
                return value or default
            if value is None:
                self._fault(where, f"environment variable {name} is not set (${{{name}:-…}} would give a default)")
            return value or ""

        return _REFERENCE.sub(fill, text)

    def _fault(self, where: Where, message: str) -> object:
        self.faults.append(Fault(where, message))
        return None

"""Form uploads (RFC 7578), read as the engine's own parser (python-multipart under Starlette) reads them.

A delimiter counts only where ``CRLF`` or ``--`` follows it, parameters are read by ``email.message`` (the last of a
name wins, ``name*=`` is decoded) and of two fields of one name the last wins: so both see the same model. Only small
fields are copied; a file is skipped by one search for the next delimiter.
"""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from typing import Final, NamedTuple

from gateway.errors import InvalidRequest

_PARTS_MAX: Final = 1_000  # Starlette's own limit on fields
_PART_HEAD_BYTES_MAX: Final = 8_192
_VALUE_BYTES_MAX: Final = 65_536
_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii", "iso-8859-1"})  # ASCII, which names are, is itself in each


class _Part(NamedTuple):
    """A part's name, whether it is a file, and where its value lies in the body."""

    name: str
    is_file: bool
    start: int
    end: int


def fields(body: bytes, content_type: bytes) -> dict[str, str]:
    """Return the plain fields of a form (files and values over 64 KiB left out), the last of each name.

    Raises ``InvalidRequest`` if ``body`` is no well-formed ``multipart/form-data``.
    """
    return {
        part.name: body[part.start : part.end].decode("utf-8", "replace")
        for part in _parts(body, content_type)
        if not part.is_file and part.end - part.start <= _VALUE_BYTES_MAX
    }


def replace(body: bytes, content_type: bytes, name: str, value: bytes) -> bytes:
    """Return ``body`` with every plain field ``name`` holding ``value``; raises as ``fields`` does."""
    pieces: list[bytes] = []
    done = 0
    for part in _parts(body, content_type):
        if part.name == name and not part.is_file:
            pieces += (body[done : part.start], value)
            done = part.end
    pieces.append(body[done:])
    return b"".join(pieces)


def _parts(body: bytes, content_type: bytes) -> Iterator[_Part]:
    delimiter = b"\r\n--" + _boundary(content_type)
    start = _after_first(body, delimiter)
    for _ in range(_PARTS_MAX):
        end = _next(body, delimiter, start)
        yield _part(body, start, end)
        after = end + len(delimiter) + 2
        if body[after - 2 : after] == b"--":
            return
        start = after
    raise InvalidRequest("The form has too many parts.")


def _boundary(content_type: bytes) -> bytes:
    kind, params = _options(content_type)
    boundary = params.get("boundary")
    if kind != "multipart/form-data" or not boundary:
        raise InvalidRequest("This endpoint takes multipart/form-data with a boundary.")
    if params.get("charset", "utf-8").lower() not in _CHARSETS:  # the engine would read other names and values
        raise InvalidRequest("The only character set understood in forms is UTF-8.")
    return boundary.encode("latin-1", "replace")


def _after_first(body: bytes, delimiter: bytes) -> int:
    """Return where the first part starts. Line ends may come before the first delimiter, nothing else."""
    opening = delimiter[2:] + b"\r\n"
    at = body.find(opening, 0, _PART_HEAD_BYTES_MAX)
    if at < 0 or body[:at].strip(b"\r\n"):
        raise InvalidRequest("The form does not start with its boundary.")
    return at + len(opening)


def _next(body: bytes, delimiter: bytes, start: int) -> int:
    """Return where the next true delimiter starts; it may begin with the very line end that closed the last one."""
    at = body.find(delimiter, start - 2)
    while at >= 0:
        after = at + len(delimiter)
        if body[after : after + 2] in (b"\r\n", b"--"):
            return at
        at = body.find(delimiter, at + 1)
    raise InvalidRequest("The form ends without its closing boundary.")


def _part(body: bytes, start: int, end: int) -> _Part:
    blank = body.find(b"\r\n\r\n", start, min(end, start + _PART_HEAD_BYTES_MAX))
    if blank < 0:
        raise InvalidRequest("A part of the form has no headers, or too long ones.")
    disposition = b""
    for line in body[start:blank].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            disposition = value
    _, params = _options(disposition)
    return _Part(params.get("name", ""), "filename" in params, blank + 4, end)


def _options(value: bytes) -> tuple[str, dict[str, str]]:
    """Return the lower-case main value and the parameters of a header value."""
    message = Message()
    message["content-type"] = value.decode("latin-1").strip().replace("\r", " ").replace("\n", " ")
    (kind, _), *params = message.get_params(failobj=[("", "")])
    return kind.lower(), {key.lower(): param[-1] if isinstance(param, tuple) else param for key, param in params}

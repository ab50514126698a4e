"""Watching a server-sent-event stream go by.

Rules
    Bytes go out as they came in, at once. The watcher keeps its own copy of the event that is still open, to read it
    when it is whole.
    Only with ``strip_usage`` is something held back: the open event, because it may turn out to be the usage-only
    chunk that the client did not ask for. Past 4 KiB it cannot, and goes out.
    An event ends at a blank line (``LF LF`` or ``LF CR LF``). Of an event over 1 MiB only the end is kept: it counts
    as one with tokens, and its usage is looked for there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gateway.wire.facts import Facts
from gateway.wire.usage import last_usage

EVENT_BYTES_MAX: Final = 1 << 20
TAIL_BYTES: Final = 1 << 16
HELD_BYTES_MAX: Final = 4_096

_EVENT_END: Final = re.compile(rb"\n\r?\n")

Reader = Callable[[Facts, bytes], bool]
TailReader = Callable[[Facts, bytes], None]


class SseWatcher(Facts):
    """A ``Watcher`` of one stream. ``read`` knows the family's events, ``read_tail`` the end of an oversized one."""

    __slots__ = ("_cut", "_open", "_passed", "_read", "_read_tail", "_strip")

    def __init__(self, read: Reader, read_tail: TailReader | None = None, *, strip_usage: bool = False) -> None:
        super().__init__()
        self._read = read
        self._read_tail = read_tail
        self._strip = strip_usage
        self._open = bytearray()  # the event not ended yet
        self._passed = False  # its bytes so far went out
        self._cut = False  # its start was let go

    def feed(self, data: bytes) -> bytes:
        """Take the upstream's next bytes; return those to forward now."""
        if not self._open:
            payload = _only_line(data)  # the usual case: exactly one event, whole
            if payload is not None:
                return b"" if self._read(self, payload) and self._strip else data
        return self._feed_piecewise(data)

    def finish(self) -> bytes:
        """Take note that the body ended cleanly; return any bytes still held."""
        held, dropped = bytes(self._open), self._end_event(bytes(self._open))
        passed, self._passed = self._passed, False
        self._open.clear()
        return b"" if dropped or passed or not self._strip else held

    def _feed_piecewise(self, data: bytes) -> bytes:
        """Take bytes that begin or end inside events."""
        events = self._open
        known = len(events)
        events += data
        passed = known if self._passed or not self._strip else 0  # bytes of the open event that went out
        out: list[bytes] = []
        start, search = 0, max(0, known - 2)
        while match := _EVENT_END.search(events, search):
            event = bytes(events[start : match.end()])
            if not self._end_event(event) or passed:
                out.append(event[passed:] if passed else event)
            start = search = match.end()
            passed = 0
            self._passed = False
        if not self._strip:
            self._keep(start)
            return data
        if len(events) - start > HELD_BYTES_MAX or self._passed:
            out.append(bytes(events[start + passed :]))
            self._passed = len(events) > start
        self._keep(start)
        return b"".join(out)

    def _keep(self, start: int) -> None:
        """Keep the open event from ``start`` on, or only its end if it has grown too large."""
        events = self._open
        if start:
            del events[:start]
        if len(events) > EVENT_BYTES_MAX or (self._cut and len(events) > 2 * TAIL_BYTES):
            del events[:-TAIL_BYTES]
            self._cut = True

    def _end_event(self, event: bytes) -> bool:
        """Read a whole event; return whether it must not reach the client."""
        if self._cut or len(event) > EVENT_BYTES_MAX:
            self._cut = False
            self._read_large(event[-TAIL_BYTES:])
            return False
        payload = _payload(event)
        return payload is not None and self._read(self, payload) and self._strip

    def _read_large(self, tail: bytes) -> None:
        self.saw_token(visible=True)
        self.saw_usage(last_usage(tail))
        if self._read_tail is not None:
            self._read_tail(self, tail)


def _only_line(event: bytes) -> bytes | None:
    """Return the payload of one whole event with one data line (after an event line or none), else ``None``."""
    start = event.find(b"\n") + 1 if event[:7] == b"event: " else 0
    if event[start : start + 6] == b"data: " and event[-2:] == b"\n\n" and event.find(b"\n", start) == len(event) - 2:
        return event[start + 6 : -2]
    return None


def _payload(event: bytes) -> bytes | None:
    """Return the data of an event, its lines joined, or ``None`` if it has none (a comment)."""
    payload = _only_line(event)
    if payload is not None:
        return payload
    values = [line[6:] if line[5:6] == b" " else line[5:] for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(values) if values else None

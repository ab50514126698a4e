"""Lines to a file descriptor from a thread of their own, so that a full pipe never stops the event loop.

``put`` only appends to a buffer. The thread writes what has gathered in pieces of at most ``PIPE_BUF`` bytes, which a
pipe takes whole, so that the lines of several workers do not mix. When nobody reads, the buffer fills and further lines
are lost; the next one that gets through says how many.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable, Iterator

import msgspec

LINGER_S = 0.02  # time for lines to gather: fifty wake-ups a second at most, none while nothing happens


class LineWriter:
    """Writes lines to ``fd`` in the order of ``put``. At most ``buffer_bytes_max`` wait (twice that while writing)."""

    def __init__(self, fd: int = 2, *, buffer_bytes_max: int = 4_194_304) -> None:
        self._fd = fd
        self._buffer_bytes_max = buffer_bytes_max
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Keep ``line`` (without its newline) for writing, or count it as lost. Never blocks."""
        with self._lock:
            if self._bytes + len(line) > self._buffer_bytes_max or self._closing.is_set():
                self._lost += 1
                return
            self._lines.append(line)
            self._bytes += len(line) + 1
        if not self._wake.is_set():
            self._wake.set()

    @property
    def lost(self) -> int:
        """Lines lost and not yet reported."""
        return self._lost

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is left, for at most ``timeout_s``; then leave a blocked thread behind (it is a daemon)."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(LINGER_S)
            self._wake.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines, self._bytes = self._lines, [], 0
            lost, self._lost = self._lost, 0
        if lost:
            lines.insert(0, _lost_line(lost))
        unwritten = len(lines)
        try:
            for piece, count in _pieces(lines):
                self._write(piece)
                unwritten -= count
        except OSError:  # nobody reads this descriptor, or not for now: the lines are gone, the gateway is not
            told = unwritten < len(lines)  # the first piece starts with the line that says how many are lost
            with self._lock:
                self._lost += unwritten if told or not lost else lost + unwritten - 1

    def _write(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # somebody made a shared terminal or pipe non-blocking
                select.select((), (self._fd,), (), 1.0)


def _pieces(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Whole lines joined up to ``PIPE_BUF`` bytes, with their number; a longer line goes alone."""
    gathered: list[bytes] = []
    size = 0
    for line in lines:
        if gathered and size + len(line) + 1 > select.PIPE_BUF:
            yield b"\n".join(gathered) + b"\n", len(gathered)
            gathered, size = [], 0
        gathered.append(line)
        size += len(line) + 1
    if gathered:
        yield b"\n".join(gathered) + b"\n", len(gathered)


def _lost_line(lost: int) -> bytes:
    return msgspec.json.encode({"level": "warning", "event": "log_lines_lost", "lost": lost})

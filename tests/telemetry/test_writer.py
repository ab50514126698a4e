"""Lines reach their descriptor, in order and whole, and a reader that sleeps harms nobody."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator

import pytest

from gateway.telemetry.writer import LineWriter


class Pipe:
    """A pipe and everything read from it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.data = bytearray()
        self._open = {self.reading, self.writing}
        self._thread: threading.Thread | None = None

    def start_reading(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while piece := os.read(self.reading, 65_536):
            self.data += piece

    def close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)

    def lines(self) -> list[bytes]:
        """Close the writing end and return what came through."""
        self.close(self.writing)
        if self._thread is None:
            self.start_reading()
        assert self._thread is not None
        self._thread.join(10)
        return bytes(self.data).splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close(pipe.writing)
    pipe.close(pipe.reading)


def lost_in(lines: list[bytes]) -> int:
    return sum(json.loads(line)["lost"] for line in lines if b"log_lines_lost" in line)


def test_close_writes_everything_in_order(pipe: Pipe) -> None:
    pipe.start_reading()
    writer = LineWriter(pipe.writing)
    lines = [b"line %d " % i + b"x" * (i % 300) for i in range(5_000)]
    for line in lines:
        writer.put(line)
    writer.close()
    assert pipe.lines() == lines


def test_a_line_comes_out_without_waiting_for_more(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writing)
    writer.put(b"alone")
    assert os.read(pipe.reading, 100) == b"alone\n"
    writer.put(b"again")
    assert os.read(pipe.reading, 100) == b"again\n"
    writer.close()


def test_lines_longer_than_a_pipe_takes_at_once(pipe: Pipe) -> None:
    pipe.start_reading()
    writer = LineWriter(pipe.writing)
    lines = [b"short", b"x" * 200_000, b"short again"]
    for line in lines:
        writer.put(line)
    writer.close()
    assert pipe.lines() == lines


def test_a6_a_reader_that_sleeps_blocks_nobody_and_lost_lines_are_told(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writing, buffer_bytes_max=100_000)
    slowest = 0.0
    for i in range(20_000):  # 2 MB into a 64 KB pipe
        before = time.perf_counter()
        writer.put(b"%099d" % i)
        slowest = max(slowest, time.perf_counter() - before)
    assert slowest < 0.5  # never for the reader, who is still asleep; the bound is for a busy machine
    pipe.start_reading()
    writer.put(b"the next one, lost as well while the buffer is full")
    writer.close()
    lines = pipe.lines()
    kept = [line for line in lines if b"log_lines_lost" not in line]
    assert kept[0] == b"%099d" % 0
    assert lost_in(lines) > 10_000
    assert len(kept) + lost_in(lines) == 20_001


def test_the_buffer_takes_lines_again_when_the_reader_wakes(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writing, buffer_bytes_max=1_000)
    while writer.lost == 0:
        writer.put(b"x" * 500)
    pipe.start_reading()
    deadline = time.monotonic() + 10
    while b"log_lines_lost" not in pipe.data and time.monotonic() < deadline:
        time.sleep(0.01)
        writer.put(b"awake")
    writer.close()
    assert b"awake" in pipe.lines()


def test_close_is_bounded_when_nobody_reads(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writing)
    for _ in range(2_000):
        writer.put(b"x" * 1_000)
    before = time.perf_counter()
    writer.close(timeout_s=0.2)
    assert 0.1 < time.perf_counter() - before < 2
    pipe.close(pipe.reading)  # lets the thread go


def test_a_closed_reader_loses_lines_and_nothing_else(pipe: Pipe) -> None:
    pipe.close(pipe.reading)
    writer = LineWriter(pipe.writing)
    writer.put(b"one")
    writer.put(b"two")
    deadline = time.monotonic() + 10
    while writer.lost < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert writer.lost == 2
    writer.put(b"three")
    writer.close()
    assert writer.lost == 3


def test_a_nonblocking_descriptor_gets_everything(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    writer = LineWriter(pipe.writing)
    lines = [b"%0999d" % i for i in range(500)]
    for line in lines:
        writer.put(line)
    time.sleep(0.1)  # the pipe is full by now
    pipe.start_reading()
    writer.close(timeout_s=10)
    assert pipe.lines() == lines


def test_after_close_lines_are_lost(pipe: Pipe) -> None:
    writer = LineWriter(pipe.writing)
    writer.close()
    writer.put(b"late")
    assert writer.lost == 1
    assert pipe.lines() == []

"""A client that is what a test says it is."""

from __future__ import annotations

from gateway.wire.headers import Headers


class FakeDownlink:
    """A ``ports.Downlink`` that keeps what it was given and fails a test where the order of calls is broken.

    ``behind`` makes every write ask for a pause.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.length: int | None = None
        self.pieces: list[bytes] = []
        self.started = self.finished = self.aborted = False
        self.behind = False

    @property
    def body(self) -> bytes:
        """Everything written so far."""
        return b"".join(self.pieces)

    @property
    def over(self) -> bool:
        """Whether the answer has ended, cleanly or not."""
        return self.finished or self.aborted

    def header(self, name: bytes) -> bytes | None:
        """The first header called ``name`` (lower case)."""
        return next((value for key, value in self.headers if key == name), None)

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Keep the head."""
        assert not self.started, "a second head"
        assert not self.over, "a head after the end"
        self.started = True
        self.status, self.headers, self.length = status, list(headers), length

    def write(self, data: bytes) -> bool:
        """Keep body bytes; ``False`` while ``behind``."""
        assert self.started, "a body before its head"
        assert not self.over, "bytes after the end"
        self.pieces.append(data)
        return not self.behind

    def finish(self) -> None:
        """Note the clean end."""
        assert self.started, "an end before the head"
        assert not self.over, "a second end"
        assert self.length in (None, len(self.body)), "not as many bytes as promised"
        self.finished = True

    def abort(self) -> None:
        """Note the cut."""
        assert not self.over, "a second end"
        self.aborted = True

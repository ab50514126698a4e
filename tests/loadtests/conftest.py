"""What tests of whole runs share."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What still runs of all that was started in the test (it all inherits a mark in its environment)."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("LOADTESTS_MARK", mark)

    def running() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
        return found

    return running

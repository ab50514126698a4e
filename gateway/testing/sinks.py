"""Sinks that keep what they are given."""

from __future__ import annotations

from gateway.ports import CallRecord


class FakeRecords:
    """A ``ports.RecordSink`` that keeps every record."""

    def __init__(self) -> None:
        self.kept: list[CallRecord] = []

    def write(self, record: CallRecord) -> None:
        """Keep ``record``."""
        self.kept.append(record)


class FakeEvents:
    """A ``ports.Events`` that keeps every event."""

    def __init__(self) -> None:
        self.retries: list[str] = []
        self.rejections: list[str] = []
        self.lags_s: list[float] = []

    def retried(self, reason: str) -> None:
        """Keep ``reason``."""
        self.retries.append(reason)

    def rejected(self, reason: str) -> None:
        """Keep ``reason``."""
        self.rejections.append(reason)

    def lagged(self, seconds: float) -> None:
        """Keep ``seconds``."""
        self.lags_s.append(seconds)

"""What an answer says of itself while it passes by."""

from __future__ import annotations

from typing import Protocol

from gateway.domain import Usage
from gateway.wire.usage import UsageReport


class Facts:
    """What was seen of an answer so far.

    ``tokens`` counts events that carry text, reasoning or a tool call (in a whole JSON body: the completion tokens);
    ``first_token`` is set by the first of them, never by the role chunk or a comment. ``has_content`` means visible
    text or a tool call, not reasoning. ``failed`` is the engine's own error passing by; ``completed`` the answer's own
    end (``[DONE]``, ``message_stop``, ``response.completed`` …, a whole JSON body).
    """

    __slots__ = (
        "completed",
        "failed",
        "finish_reason",
        "first_token",
        "has_content",
        "response_id",
        "tokens",
        "usage",
    )

    def __init__(self) -> None:
        self.tokens: int = 0
        self.first_token: bool = False
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.failed: bool = False
        self.completed: bool = False
        self.response_id: str | None = None
        self.has_content: bool = False

    def saw_token(self, *, visible: bool) -> None:
        """Note one event with tokens in it; ``visible`` if they are more than reasoning."""
        self.tokens += 1
        self.first_token = True
        if visible:
            self.has_content = True

    def saw_usage(self, report: UsageReport | None) -> None:
        """Note a usage report. Reports are running totals and may be partial: the larger number of each kind stays."""
        if report is not None:
            usage = report.usage()
            self.usage = usage if self.usage is None else Usage(*map(max, self.usage, usage))


class Watcher(Protocol):
    """Sees an answer's bytes pass by and tells what they said (see ``Facts``)."""

    tokens: int
    first_token: bool
    usage: Usage | None
    finish_reason: str | None
    failed: bool
    completed: bool
    response_id: str | None
    has_content: bool

    def feed(self, data: bytes) -> bytes:
        """Take the upstream's next bytes; return those to forward now."""
        ...

    def finish(self) -> bytes:
        """Take note that the body ended cleanly; return any bytes still held."""
        ...

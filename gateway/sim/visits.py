"""The upstream's side of the story: who is in flight, the most there ever were, how each request ended."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.sim.http import HttpRequest

KEPT = 1_000
BODIES_KEPT = 64


class Ending(StrEnum):
    """What became of a request."""

    OPEN = "open"
    DONE = "done"  # answered in full, errors included
    ABORTED = "aborted"  # the client left
    BROKEN = "broken"  # by a fault that was asked for


@dataclass(slots=True, eq=False)
class Visit:
    """One request to a model endpoint, as it came in. ``id`` is the client's ``X-Request-Id`` or the server's own."""

    id: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    ending: Ending = Ending.OPEN
    status: int | None = None
    tokens: int = 0


class Visits:
    """Counts visits and remembers the last ``KEPT`` (their bodies for the last ``BODIES_KEPT``)."""

    def __init__(self) -> None:
        self.inflight = 0
        self.inflight_max = 0
        self.endings: Counter[Ending] = Counter()
        self.opened = 0
        self._kept: deque[Visit] = deque(maxlen=KEPT)
        self._bodies: deque[Visit] = deque()

    def open(self, request_id: str, request: HttpRequest) -> Visit:
        """A request has arrived."""
        visit = Visit(request_id, request.path, request.headers, request.body)
        self._kept.append(visit)
        self._bodies.append(visit)
        if len(self._bodies) > BODIES_KEPT:
            self._bodies.popleft().body = b""
        self.opened += 1
        self.inflight += 1
        self.inflight_max = max(self.inflight_max, self.inflight)
        return visit

    def close(self, visit: Visit, ending: Ending) -> None:
        """It is over."""
        visit.ending = ending
        self.endings[ending] += 1
        self.inflight -= 1

    def latest(self) -> list[Visit]:
        """The remembered visits, oldest first."""
        return list(self._kept)

    def find(self, request_id: str) -> Visit | None:
        """The newest remembered visit of that id."""
        return next((visit for visit in reversed(self._kept) if visit.id == request_id), None)

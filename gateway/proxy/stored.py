"""Where stored responses live: vLLM keeps each on the replica that made it, so a follow-up must go back there."""

from __future__ import annotations

from typing import NamedTuple

RESPONSES_MAX = 16_384


class Stored(NamedTuple):
    """A response's whereabouts, and whose it is."""

    team: str
    model: str
    replica: str


class StoredResponses:
    """The most recent responses by id; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._known: dict[str, Stored] = {}

    def put(self, response_id: str, stored: Stored) -> None:
        """Remember a response. One that is another team's stays so: engines let clients choose the id."""
        if self.is_foreign(response_id, stored.team):
            return
        self._known[response_id] = stored
        if len(self._known) > RESPONSES_MAX:
            del self._known[next(iter(self._known))]

    def find(self, response_id: str | None, team: str) -> Stored | None:
        """Where the response is, if it is known and the team's own."""
        stored = self._known.get(response_id) if response_id is not None else None
        return stored if stored is not None and stored.team == team else None

    def is_foreign(self, response_id: str | None, team: str) -> bool:
        """Whether the response is known to be another team's."""
        stored = self._known.get(response_id) if response_id is not None else None
        return stored is not None and stored.team != team

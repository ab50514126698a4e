"""What a workload and its driver say to each other: an ask that is due, the reply it got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from loadtests.workloads.prompt import Prompt, Segment, blocks, prompt_tokens


class Kind(StrEnum):
    """What an ask is for."""

    CHAT = "chat"
    AGENT = "agent"
    DOCUMENT = "document"
    BATCH = "batch"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Its answer is to be exactly ``output_tokens`` long (``ignore_eos``).

    ``patience_s`` is how long the client waits for the first token (not streamed: for the answer) before it leaves.
    ``answer_seed`` names the answer's text where there is none (virtual time).
    """

    id: str
    user: str
    team: str
    kind: Kind
    prompt: Prompt
    output_tokens: int
    answer_seed: int
    patience_s: float = 900.0
    stream: bool = True

    @property
    def prompt_tokens(self) -> int:
        """See ``prompt.prompt_tokens``."""
        return prompt_tokens(self.prompt)

    def answer(self, tokens: int, text: str | None = None) -> Segment:
        """The answer as a part of later prompts."""
        return Segment("assistant", self.answer_seed, tokens, text)

    def blocks(self) -> list[int]:
        """Block hashes of prompt and whole answer: what ``gateway.sim.engine.EngineRequest`` takes."""
        return blocks(self.prompt, self.answer(self.output_tokens))


class Reply(NamedTuple):
    """How an ask ended: ``tokens`` of answer, and its ``text`` where there is one.

    A failed one (refused, broken, or the client left) may say after how many seconds to try again.
    """

    ok: bool
    tokens: int = 0
    text: str | None = None
    retry_after_s: float | None = None


class Due(NamedTuple):
    """An ask and when to send it."""

    at_s: float
    ask: Ask


class User(Protocol):
    """Asks, reads, thinks, asks again. Ends on its own: after so many asks, or at the workload's end."""

    name: str

    def first(self) -> Due | None:
        """The first ask."""
        ...

    def then(self, now_s: float, reply: Reply) -> Due | None:
        """The ask after ``reply`` to the last one, which ended at ``now_s``; ``None``: no more."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """Everybody's traffic over ``seconds``: users, and arrivals in the order of time; good for one run only.

    Nothing is due at ``seconds`` or later, and there are never more than ``asks_max`` asks.
    """

    name: str
    seed: int
    seconds: float
    teams: tuple[str, ...]
    users: tuple[User, ...]
    arrivals: tuple[Iterable[Due], ...]
    asks_max: int

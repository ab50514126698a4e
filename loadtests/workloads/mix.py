"""Who is there: a mix of users and documents. A scenario is a mix with a name; every number of it can be set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadtests.workloads.arrivals import Documents, documents
from loadtests.workloads.ask import Kind, Workload
from loadtests.workloads.users import Conversant, Habit

_CHAT = Habit(
    think_s=25.0,
    system_tokens=1_500,
    opening_tokens=(30, 1_200),
    message_tokens=(20, 300),
    output_tokens=(80, 500),
    turns=(3, 12),
)
_AGENT = Habit(
    think_s=3.0,
    system_tokens=6_000,
    opening_tokens=(8_000, 40_000),
    message_tokens=(200, 4_000),
    output_tokens=(60, 500),
    turns=(15, 60),
    context_tokens=110_000,
)
_BATCH = Habit(think_s=0.0, opening_tokens=(600, 4_000), output_tokens=(150, 500), system_tokens=300)
_IMPATIENT = msgspec.structs.replace(_CHAT, think_s=8.0, patience_s=4.0, retries=8, retry_s=0.2)


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers and habits. Chat users are spread over ``chat_teams``, agents over ``agent_teams`` (see ``teams``)."""

    chat_users: int = 0
    chat_teams: int = 4
    chat: Habit = _CHAT
    agents: int = 0
    agent_teams: int = 2
    agent: Habit = _AGENT
    batch_workers: int = 0
    batch: Habit = _BATCH
    documents: Documents = Documents()

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for numbers that make no sense or no bound."""
        if not all(0 <= count <= 10_000 for count in (self.chat_users, self.agents, self.batch_workers)):
            raise ValueError("numbers of users are 0 to 10000")
        if not (1 <= self.chat_teams <= 100 and 1 <= self.agent_teams <= 100):
            raise ValueError("numbers of teams are 1 to 100")


SCENARIOS: Mapping[str, tuple[str, Mix]] = {
    "department_day": (
        "40 chat users in teams, 8 coding agents, long documents at random",
        Mix(chat_users=40, agents=8, documents=Documents(per_minute=1.0)),
    ),
    "ordinary_day": (
        "20 chat users, 3 agents, a long document a minute",
        Mix(chat_users=20, agents=3, documents=Documents(per_minute=1.0)),
    ),
    "chat_only": ("40 chat users and nothing else", Mix(chat_users=40)),
    "giant_prompt": (
        "one prompt of 240K into a calm fleet of 12 chat users",
        Mix(chat_users=12, documents=Documents(giants=((0.25, 240_000),))),
    ),
    "retry_storm": (
        "120 chat users who leave after 4 s without a token and try again at once",
        Mix(chat_users=120, chat=_IMPATIENT, documents=Documents(per_minute=2.0)),
    ),
    "batch_job": (
        "96 workers of one team without pauses against 20 chat users and 3 agents of other teams",
        Mix(chat_users=20, agents=3, batch_workers=96),
    ),
}


def changed(mix: Mix, settings: Mapping[str, Any]) -> Mix:
    """``mix`` with some numbers set, by dotted name (``chat.think_s``). Raises ``ValueError`` saying what is wrong."""
    tree = msgspec.to_builtins(mix)
    for name, value in settings.items():
        *path, last = name.split(".")
        inner = tree
        for step in path:
            inner = inner.get(step) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last not in inner:
            raise ValueError(f"{name}: no such setting; there are {', '.join(_names(msgspec.to_builtins(mix)))}")
        inner[last] = value
    try:
        return msgspec.convert(tree, Mix)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def build(name: str, mix: Mix, *, seed: int, seconds: float) -> Workload:
    """The workload of ``mix`` over ``seconds``. Raises ``ValueError`` for a length that is no bound."""
    if not 0 < seconds <= 86_400:
        raise ValueError("a workload lasts more than 0 and at most 86400 seconds")
    users = tuple(_users(mix, seed, seconds))
    long = mix.documents.per_minute or mix.documents.giants
    teams = dict.fromkeys(team for _, team, _, _ in _people(mix)) | ({"documents": None} if long else {})
    asks_max = sum(habit.asks_max for _, _, _, habit in _people(mix)) + (mix.documents.count_max if long else 0)
    arrivals = (documents(mix.documents, "documents", seed=seed, seconds=seconds),) if long else ()
    return Workload(name, seed, seconds, tuple(teams), users, arrivals, asks_max)


def scenario(name: str, *, seed: int, seconds: float, settings: Mapping[str, Any] | None = None) -> Workload:
    """The scenario called ``name``. Raises ``ValueError`` for an unknown name or setting."""
    if name not in SCENARIOS:
        raise ValueError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return build(name, changed(SCENARIOS[name][1], settings or {}), seed=seed, seconds=seconds)


def _people(mix: Mix) -> Iterator[tuple[str, str, Kind, Habit]]:
    """Name, team, kind and habit of every user."""
    for number in range(mix.chat_users):
        yield f"chat-{number + 1}", f"chat-team-{number % mix.chat_teams + 1}", Kind.CHAT, mix.chat
    for number in range(mix.agents):
        yield f"agent-{number + 1}", f"code-team-{number % mix.agent_teams + 1}", Kind.AGENT, mix.agent
    for number in range(mix.batch_workers):
        yield f"batch-{number + 1}", "batch-team", Kind.BATCH, mix.batch


def _users(mix: Mix, seed: int, seconds: float) -> Iterator[Conversant]:
    for name, team, kind, habit in _people(mix):
        yield Conversant(name, team, kind, habit, seed=seed, seconds=seconds)


def _names(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _names(value, f"{before}{name}.")
        else:
            yield before + name

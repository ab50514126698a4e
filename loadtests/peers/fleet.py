"""The simulated servers of one run. ``D5@0.5`` is one at half the pace: a fleet of unlike GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.sim.profiles import PROFILES
from loadtests.runner import fleet as fleets


@dataclass(frozen=True, slots=True)
class Server:
    """One server: its profile, and how fast it is compared with that."""

    profile: str
    pace: float = 1.0

    @property
    def context(self) -> int:
        """Its ``max_model_len``."""
        return PROFILES[self.profile].max_model_len


def parse(text: str) -> tuple[Server, ...]:
    """``D6``, ``D4,D5*2`` or ``D3,D5,D5@0.5`` as servers. Raises ``ValueError``."""
    servers: list[Server] = []
    for word in text.split(","):
        names, at, factor = word.strip().partition("@")
        try:
            pace = float(factor) if at else 1.0
        except ValueError:
            raise ValueError(f"{word}: a number belongs after the @") from None
        if not 0.05 <= pace <= 20:
            raise ValueError(f"{word}: a pace is 0.05 to 20 times the profile's")
        servers += [Server(profile, pace) for profile in fleets.profiles(names)]
    if len(servers) > fleets.REPLICAS_MAX:
        raise ValueError(f"a fleet has at most {fleets.REPLICAS_MAX} servers here")
    return tuple(servers)


@contextmanager
def serving(servers: Sequence[Server], *, speed: float, model: str, folder: Path) -> Iterator[list[fleets.Running]]:
    """Fresh simulators, in order. Raises ``fleets.NotStarted``."""
    with ExitStack() as stack:
        found = []
        for number, server in enumerate(servers):
            own = folder / f"server-{number}"
            own.mkdir()
            pace = speed * server.pace
            (running,) = stack.enter_context(fleets.simulators([server.profile], speed=pace, model=model, folder=own))
            found.append(running)
        yield found

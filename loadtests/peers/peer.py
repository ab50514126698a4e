"""What a peer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from loadtests.bench.target import SECRET, Target
from loadtests.peers.environment import Environment, NotInstalled
from loadtests.runner.engines import GatewayPage

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 1_800  # of a whole answer: longer than any that is asked for


class Peer(Target):
    """A proxy to compare with. ``ready_path`` answers 200 once it serves; it must cost the replicas no tokens.

    ``speed_max`` is how fast time may pass: at speed 10 a proxy spends ten times its share of the machine, and above
    this one its own CPU time and not its choices would be measured.
    """

    ready_path: ClassVar[str] = "/v1/models"
    speed_max: ClassVar[float] = 10.0
    keeps_caps: ClassVar[bool] = False  # whether it promises to send no replica more than its cap

    def install(self) -> None:
        """Make it ready to start. Raises ``NotInstalled``."""
        if reason := self.missing():
            raise NotInstalled(reason)

    def keys(self, teams: Sequence[str]) -> Mapping[str, str]:
        """The key that each team sends."""
        return dict.fromkeys(teams, SECRET)

    def page(self, url: str) -> GatewayPage | None:  # noqa: ARG002 (only ours tells how many wait)
        """Where it tells how many calls wait, if it does."""
        return None


class Packaged(Peer):
    """A peer with a virtual environment of its own. ``distribution`` is what its version is asked of."""

    environment: Environment
    distribution: ClassVar[str]

    def missing(self) -> str | None:
        """It is there once its environment is."""
        if self.environment.ready:
            return None
        return f"not installed (python -m loadtests peers --install --only {self.name})"

    def install(self) -> None:
        """See ``Peer``."""
        self.environment.make()

    def version(self) -> str | None:
        """As its package says."""
        return self.environment.version(self.distribution)


def without_internet(command: Sequence[str], **variables: str) -> list[str]:
    """``command`` with variables in its environment, and no HTTP proxy between it and the replicas."""
    settings = {"NO_PROXY": "*", "no_proxy": "*", **variables}
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), *command]

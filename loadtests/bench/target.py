"""What a proxy must say of itself to be measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from loadtests.bench.wire import MODEL

SECRET = "gw-bench-0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a target is to run: the port to listen on, its replicas' URLs, a folder for its files.

    ``contexts`` are the replicas' ``max_model_len`` where that is known; ``speed`` is how many times as fast as real
    ones simulated replicas are.
    """

    port: int
    upstream_urls: tuple[str, ...]
    folder: Path
    model: str = MODEL
    contexts: tuple[int, ...] = ()
    profiles: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    speed: float = 1.0


class Target:
    """A proxy to measure."""

    name: ClassVar[str]

    def missing(self) -> str | None:
        """Why it cannot run on this machine and what to do about it, or ``None``."""
        return None

    def command(self, site: Site) -> list[str] | None:
        """The command that serves in the foreground at ``site``; writes its files there. ``None``: no proxy at all."""
        raise NotImplementedError

    def headers(self) -> dict[str, str]:
        """Headers its clients must send."""
        return {"authorization": f"Bearer {SECRET}"}

    def version(self) -> str | None:
        """What exactly is measured, for the report."""
        return None

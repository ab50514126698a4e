"""The Python router of vLLM's production stack. No package index has it under its own name: a checkout is needed."""

from __future__ import annotations

import os
from pathlib import Path

from loadtests.bench.target import Site
from loadtests.peers.environment import Environment, NotInstalled
from loadtests.peers.peer import LOOPBACK, Peer, without_internet

VARIABLE = "LOADTESTS_PRODUCTION_STACK"
_STATS_S, _WINDOW_S = 30, 60  # its defaults, which are real seconds and follow the speed here


class ProductionStack(Peer):
    """Prefix-aware routing, from ``checkout`` (or the folder that ``$LOADTESTS_PRODUCTION_STACK`` names)."""

    name = "production-stack"
    ready_path = "/health"
    speed_max = 5.0

    def __init__(self, checkout: Path | None = None) -> None:
        named = checkout or os.environ.get(VARIABLE)
        self._checkout = Path(named).resolve() if named else None

    def _environment(self) -> Environment:
        return Environment("production-stack", ("-r", str(self._source() / "vllm_router" / "requirements.txt")))

    def _source(self) -> Path:
        return (self._checkout or Path()) / "src"

    def _no_checkout(self) -> str | None:
        if self._checkout is None:
            return f"no checkout given (--production-stack DIR or ${VARIABLE})"
        if not (self._source() / "vllm_router" / "requirements.txt").is_file():
            return f"{self._checkout} is no checkout of production-stack: src/vllm_router is missing"
        return None

    def missing(self) -> str | None:
        """A checkout and the packages that it asks for."""
        if reason := self._no_checkout():
            return reason
        return None if self._environment().ready else f"not installed (python -m loadtests peers --only {self.name})"

    def install(self) -> None:
        """See ``Peer``."""
        if reason := self._no_checkout():
            raise NotInstalled(reason)
        self._environment().make()

    def version(self) -> str | None:
        """The commit that is checked out, where the folder says it."""
        head = (self._checkout or Path()) / ".git" / "HEAD"
        return f"checkout, {head.read_text().strip()}" if head.is_file() else "checkout"

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        python = [str(self._environment().program("python")), "-m", "vllm_router.app"]
        where = ["--host", LOOPBACK, "--port", str(site.port), "--service-discovery", "static"]
        models = ",".join([site.model] * len(site.upstream_urls))
        replicas = ["--static-backends", ",".join(site.upstream_urls), "--static-models", models]
        choice = ["--routing-logic", "prefixaware", "--log-level", "warning"]
        pace = [
            f"--engine-stats-interval={max(1, round(_STATS_S / site.speed))}",
            f"--request-stats-window={max(1, round(_WINDOW_S / site.speed))}",
        ]
        return without_internet([*python, *where, *replicas, *choice, *pace], PYTHONPATH=str(self._source()))

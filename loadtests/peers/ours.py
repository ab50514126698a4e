"""The gateway itself, with the settings that ``config/`` ships for the fleet, or with given ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.bench.processes import ROOT
from loadtests.bench.target import Site
from loadtests.bench.targets import Gateway
from loadtests.peers.peer import Peer
from loadtests.runner import settings as files
from loadtests.runner.engines import GatewayPage


class Ours(Gateway, Peer):
    """One worker; each team of the workload has a key."""

    name = "gateway"
    ready_path = "/readyz"
    keeps_caps = True

    def __init__(self, fleet: str, config: Path | None = None) -> None:
        shipped = ROOT / "config" / f"{fleet.upper()}.yaml"
        self._config_file = config or (shipped if fleet.isalnum() and shipped.exists() else None)
        self._keys: dict[str, str] = {}
        self._admin_key = files.new_key()

    def keys(self, teams: Sequence[str]) -> Mapping[str, str]:
        """See ``Peer``."""
        for team in teams:
            self._keys.setdefault(team, files.new_key())
        return {team: self._keys[team] for team in teams}

    def page(self, url: str) -> GatewayPage:
        """See ``Peer``."""
        return GatewayPage(url, self._admin_key)

    def settings(self, profiles: Sequence[str], model: str) -> dict[str, Any]:
        """The settings before they are adapted to a run. Raises ``ValueError``, ``OSError``."""
        return files.read(self._config_file) if self._config_file else files.generic(profiles, model)

    def caps(self, profiles: Sequence[str], model: str) -> list[int | None]:
        """The replicas' caps, which the others are held against too."""
        replicas = self.settings(profiles, model)["models"][0].get("replicas") or ()
        return [(replica.get("concurrency") or {}).get("max") for replica in replicas]

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        tree = files.adapted(
            self.settings(site.profiles, site.model),
            port=site.port,
            urls=site.upstream_urls,
            keys=self.keys(site.teams),
            admin_key=self._admin_key,
            speed=site.speed,
        )
        config = site.folder / "gateway.yaml"
        files.write(tree, config)
        return [sys.executable, "-m", "gateway", "serve", "--config", str(config)]

"""A model as the gateway understands its settings, with some of them changed; the same files that socket runs take."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.domain import ModelSpec
from gateway.settings import SettingsError, load
from loadtests.bench.processes import ROOT
from loadtests.runner import settings as files

_ENVIRONMENT = {"GATEWAY_ADMIN_KEY": "an admin key nobody uses"}


class Change(NamedTuple):
    """What differs from the settings file; ``None``: as it is there. ``cap`` is every replica's own."""

    cap: int | None = None
    long_tokens: int | None = None
    policy: str | None = None


CONFIGURED = Change()


def tree_of(fleet: str, profiles: Sequence[str], config: Path | None) -> dict[str, Any]:
    """The given settings; else those that ``config/`` ships for this fleet, if they fit; else made for it.

    Raises ``ValueError``, ``OSError``.
    """
    if config is not None:
        return files.read(config)
    shipped = ROOT / "config" / f"{fleet}.yaml"
    if fleet.isalnum() and shipped.exists():
        tree = files.read(shipped)
        if len(tree["models"][0].get("replicas") or ()) == len(profiles):
            return tree
    return files.generic(profiles, "qwen")


def model_of(tree: dict[str, Any], profiles: Sequence[str], change: Change = CONFIGURED) -> ModelSpec:
    """The first model of ``tree`` with ``change``, as the gateway would compile it. Raises ``ValueError``."""
    urls = [f"http://127.0.0.1:{port}" for port in range(1, len(profiles) + 1)]
    keys = {"nobody": files.new_key()}
    adapted = files.adapted(tree, port=8080, urls=urls, keys=keys, admin_key=files.new_key(), speed=1.0)
    _change(adapted["models"][0], change)
    with tempfile.TemporaryDirectory(prefix="loadtests-") as folder:
        path = Path(folder) / "gateway.yaml"
        files.write(adapted, path)
        try:
            return load(path, _ENVIRONMENT).compile().models[0]
        except SettingsError as error:
            raise ValueError("; ".join(str(fault) for fault in error.faults)) from None


def _change(model: dict[str, Any], change: Change) -> None:
    if change.cap is not None:
        for replica in model["replicas"]:
            replica["concurrency"] = {"max": change.cap}
    named = {"long_tokens": change.long_tokens, "policy": change.policy}
    routing = {name: value for name, value in named.items() if value is not None}
    model["routing"] = {**(model.get("routing") or {}), **routing}

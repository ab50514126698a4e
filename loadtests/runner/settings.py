"""The gateway's settings file for a run: a given one with other addresses and keys, or one made for a fleet.

The gateway's own waits (queue, first byte, breaker …) are real seconds. At speed 10 a wait of 30 s would be 300 s of
the workload's time, so they are divided by the speed, and rates are multiplied.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gateway.domain import BreakerSpec, QueueSpec, TimeoutSpec
from gateway.settings import SettingsError, load
from gateway.sim.profiles import PROFILES
from loadtests.runner.engines import Replica

_GENERIC_CAP = 64
_PROBE_S = 2.0
_PROBE_S_MIN = 0.1
_SCALED_TIMEOUTS = ("first_byte_s", "idle_s", "total_s")


def new_key() -> str:
    """A secret for one run."""
    return "gk-" + secrets.token_urlsafe(24)


def read(path: Path) -> dict[str, Any]:
    """The file as plain values, ``${NAME}`` untouched. Raises ``ValueError`` if it holds no models, ``OSError``."""
    try:
        tree = YAML(typ="safe").load(path)
    except YAMLError as error:
        raise ValueError(f"{path}: {error}") from None
    models = tree.get("models") if isinstance(tree, dict) else None
    if not isinstance(models, list) or not models or not all(isinstance(model, dict) for model in models):
        raise ValueError(f"{path}: models are missing")
    return dict(tree)


def generic(profiles: Sequence[str], model: str) -> dict[str, Any]:
    """Settings for any fleet: of unlike servers, those of the largest context serve long calls and the others short."""
    contexts = [PROFILES[name].max_model_len for name in profiles]
    alike = len(set(contexts)) == 1
    replicas = []
    for number, (name, context) in enumerate(zip(profiles, contexts, strict=True)):
        serves = ["short", "long"] if alike else ["long"] if context == max(contexts) else ["short"]
        cap = min(_GENERIC_CAP, PROFILES[name].engine.max_num_seqs)
        replicas.append({"name": f"{name.lower()}-{number}", "url": "", "serves": serves, "concurrency": {"max": cap}})
    return {"models": [{"name": model, "aliases": ["default"], "replicas": replicas}]}


def adapted(
    tree: Mapping[str, Any],
    *,
    port: int,
    urls: Sequence[str],
    keys: Mapping[str, str],
    admin_key: str,
    speed: float,
) -> dict[str, Any]:
    """``tree`` for a run on this machine: only the first model, its replicas at ``urls`` (if any), a key for each team.

    Teams of the same name keep what the file says of them. Raises ``ValueError`` if the numbers do not fit.
    """
    model = dict(tree["models"][0])
    replicas = [dict(replica) for replica in model.get("replicas") or ()]
    if urls and len(urls) != len(replicas):
        raise ValueError(f"the settings have {len(replicas)} replicas, the fleet {len(urls)} servers")
    for replica, url in zip(replicas, urls, strict=False):
        replica["url"] = url
    model["replicas"] = replicas
    _scale(model, speed)
    server = dict(tree.get("server") or {})
    probe_s = max(_PROBE_S_MIN, (server.get("probe_interval_s") or _PROBE_S) / speed)
    server |= {"host": "127.0.0.1", "port": port, "drain_s": 1, "probe_interval_s": probe_s}
    known = {team.get("name"): team for team in tree.get("teams") or () if isinstance(team, dict)}
    teams = [{**known.get(name, {}), "name": name, "keys": [_key(name, key)]} for name, key in keys.items()]
    return {
        **tree,
        "server": server,
        "auth": {"required": True, "admin_key": admin_key},
        "models": [model],
        "teams": teams,
    }


def write(tree: Mapping[str, Any], path: Path) -> None:
    """Write the file."""
    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    with path.open("w") as file:
        yaml.dump(dict(tree), file)


def replicas_of(path: Path, environment: Mapping[str, str]) -> tuple[Replica, ...]:
    """The first model's replicas with their caps, as the gateway understands the file. Raises ``ValueError``."""
    try:
        model = load(path, environment).compile().models[0]
    except SettingsError as error:
        raise ValueError("; ".join(str(fault) for fault in error.faults)) from None
    return tuple(Replica(one.name, one.url, one.cap_max, one.api_key) for one in model.replicas)


def _key(team: str, key: str) -> dict[str, str]:
    return {"id": f"load-{team}", "sha256": hashlib.sha256(key.encode()).hexdigest()}


def _scale(model: dict[str, Any], speed: float) -> None:
    queue, timeouts = dict(model.get("queue") or {}), dict(model.get("timeouts") or {})
    waits = {"short": QueueSpec().wait_short_s, "long": QueueSpec().wait_long_s} | (queue.get("wait_s") or {})
    queue["wait_s"] = {name: wait_s / speed for name, wait_s in waits.items()}
    limits = asdict(TimeoutSpec()) | timeouts
    timeouts |= {name: limits[name] / speed for name in _SCALED_TIMEOUTS}
    timeouts["prefill_tokens_per_s"] = limits["prefill_tokens_per_s"] * speed
    breaker = dict(model.get("breaker") or {})
    breaker["open_s"] = (breaker.get("open_s") or BreakerSpec().open_s) / speed
    model |= {"queue": queue, "timeouts": timeouts, "breaker": breaker}

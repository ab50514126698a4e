"""What no single section can know: names that clash, references that lead nowhere, and what deserves a warning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.domain import CallClass
from gateway.settings.faults import Fault, Where, dotted
from gateway.settings.sections import CAP_MAX, KeySettings, ModelSettings, ReplicaSettings, Sections, TeamSettings

ANONYMOUS = "anonymous"


def faults(settings: Sections) -> Iterator[Fault]:
    """Everything between the sections that makes them unusable."""
    yield from _state_faults(settings)
    yield from _repeated(_model_names(settings), "model name or alias")
    yield from _repeated([(w, r.name) for w, r in _replicas(settings)], "replica name")
    for model_at, model in enumerate(settings.models):
        urls = [(("models", model_at, "replicas", i, "url"), r.url) for i, r in enumerate(model.replicas)]
        yield from _repeated(urls, "replica URL")
    yield from _cap_faults(settings)
    yield from _team_faults(settings)


def warnings(settings: Sections) -> Iterator[str]:
    """One line for each thing that is allowed but hardly wanted, or read and not enforced."""
    yield from _access_warnings(settings)
    yield from _class_warnings(settings)
    yield from _shared_url_warnings(settings)
    yield from _unused_warnings(settings)
    for where, secret in _keys(settings):
        if secret.sha256.startswith("0" * 48):
            yield f"{dotted(where)}.sha256 is a placeholder: put the line that `gateway keys new` prints"


def _state_faults(settings: Sections) -> Iterator[Fault]:
    if settings.state.kind == "redis":
        message = "redis is not supported by this version, which keeps its state in memory: use memory and workers: 1"
        yield Fault(("state", "kind"), message)
    elif settings.server.workers > 1:
        message = "must be 1 with state.kind: memory (each worker would count caps and queues for itself)"
        yield Fault(("server", "workers"), message)


def _repeated(values: Iterable[tuple[Where, str]], what: str) -> Iterator[Fault]:
    first: dict[str, Where] = {}
    for where, value in values:
        if value in first:
            yield Fault(where, f"{what} {value} is already used at {dotted(first[value])}")
        first.setdefault(value, where)


def _model_names(settings: Sections) -> list[tuple[Where, str]]:
    def of(index: int, model: ModelSettings) -> Iterator[tuple[Where, str]]:
        yield ("models", index, "name"), model.name
        for alias_at, alias in enumerate(model.aliases):
            yield ("models", index, "aliases", alias_at), alias

    return [named for index, model in enumerate(settings.models) for named in of(index, model)]


def _replicas(settings: Sections) -> list[tuple[Where, ReplicaSettings]]:
    return [
        (("models", model_at, "replicas", replica_at, "name"), replica)
        for model_at, model in enumerate(settings.models)
        for replica_at, replica in enumerate(model.replicas)
    ]


def _keys(settings: Sections) -> list[tuple[Where, KeySettings]]:
    return [
        (("teams", team_at, "keys", key_at), key)
        for team_at, team in enumerate(settings.teams)
        for key_at, key in enumerate(team.keys)
    ]


def _cap_faults(settings: Sections) -> Iterator[Fault]:
    for where, replica in _replicas(settings):
        cap, at = replica.concurrency, (*where[:-1], "concurrency")
        if cap.floor > cap.max and "max" in cap.model_fields_set:
            yield Fault((*at, "max"), "must be >= min")
        elif cap.floor > cap.max:
            yield Fault((*at, "min"), f"must be <= max (which is {CAP_MAX} where absent)")


def _team_faults(settings: Sections) -> Iterator[Fault]:
    if settings.auth.required and not settings.teams:
        yield Fault(("teams",), "is required while auth.required is true (nobody could call)")
    yield from _repeated([(("teams", i, "name"), t.name) for i, t in enumerate(settings.teams)], "team name")
    yield from _repeated([((*w, "id"), k.id) for w, k in _keys(settings)], "key id")
    yield from _repeated([((*w, "sha256"), k.sha256) for w, k in _keys(settings)], "key hash")
    known = {model.name for model in settings.models}
    aliases = {alias: model.name for model in settings.models for alias in model.aliases}
    for index, team in enumerate(settings.teams):
        if team.name == ANONYMOUS:
            yield Fault(("teams", index, "name"), f"{ANONYMOUS} is built in, for callers without a key")
        yield from _unknown_models(index, team, known, aliases)


def _unknown_models(index: int, team: TeamSettings, known: set[str], aliases: dict[str, str]) -> Iterator[Fault]:
    for model_at, name in enumerate(team.models or ()):
        if name in known:
            continue
        hint = f"{name} is an alias: write {aliases[name]}" if name in aliases else f"unknown model {name}"
        yield Fault(("teams", index, "models", model_at), hint)


def _access_warnings(settings: Sections) -> Iterator[str]:
    if not settings.auth.required:
        yield f"auth.required is false: anyone who reaches the gateway may call, as team {ANONYMOUS}"
        if not settings.server.loopback:
            yield f"server.host {settings.server.host} is open to the network and auth.required is false"
    elif not any(team.keys for team in settings.teams):
        yield "teams: no team has a key, so nobody can call"


def _unused_warnings(settings: Sections) -> Iterator[str]:
    for index, team in enumerate(settings.teams):
        for key, value in team.limits.model_dump(exclude_none=True).items():
            if value > 0:
                yield f"teams[{index}].limits.{key} is read but not enforced by this version"
        for key in ("weight", "priority"):
            if getattr(team, key) != TeamSettings.model_fields[key].default:
                yield f"teams[{index}].{key} is read but has no effect in this version"
    for where, replica in _replicas(settings):
        if replica.concurrency.min not in {None, replica.concurrency.max}:
            yield f"{dotted(where[:-1])}.concurrency.min is read but has no effect in this version: the cap is max"


def _class_warnings(settings: Sections) -> Iterator[str]:
    for index, model in enumerate(settings.models):
        served = {call_class for replica in model.replicas for call_class in replica.serves}
        for missing in sorted(set(CallClass) - served):
            fate = "run on the others" if model.routing.overflow else "find no replica (routing.overflow is false)"
            yield f"models[{index}]: no replica serves {missing}, so {missing} calls {fate}"


def _shared_url_warnings(settings: Sections) -> Iterator[str]:
    first: dict[str, tuple[int, Where]] = {}
    for where, replica in _replicas(settings):
        model_at = int(where[1])
        seen_in, seen_at = first.setdefault(replica.url, (model_at, where[:-1]))
        if seen_in != model_at:
            yield f"{dotted(where[:-1])} is the same server as {dotted(seen_at)}: their caps add up on it"

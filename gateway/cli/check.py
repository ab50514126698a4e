"""``gateway check``: what a settings file means, and whether its replicas are there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from gateway.cli.survey import Found, findings, survey, useless
from gateway.clock import Clock, SystemClock
from gateway.domain import Key, ModelSpec, ReplicaSpec, Team
from gateway.settings import Compiled, load

UNKNOWN = "–"


def check(
    config: Annotated[Path, typer.Option("--config", "-c", help="Settings file (YAML).")],
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Ask each replica what it is.")] = True,
) -> None:
    """Validate a settings file, probe its replicas, print what was understood.

    Exit code 1: the file is at fault (one line for each fault) or a replica cannot serve.
    """
    settings = load(config, os.environ)
    compiled = settings.compile()
    found = asyncio.run(survey(compiled.models)) if probe else {}
    report(Console(markup=False, highlight=False, emoji=False), config, compiled, found)
    warnings = [*settings.warnings, *expired(compiled.keys, SystemClock())]
    if probe:
        warnings += findings(compiled.models, found)
    for line in warnings:
        typer.echo(f"warning: {line}")
    missing = list(useless(compiled.models, found)) if probe else []
    for line in missing:
        typer.echo(f"error: {line}", err=True)
    if missing:
        raise typer.Exit(1)


def report(console: Console, config: Path, compiled: Compiled, found: Mapping[str, Found]) -> None:
    """Print what the settings mean; ``found`` is empty where nobody was asked."""
    server = compiled.server
    access = "required" if compiled.auth.required else "not required"
    closed = "/admin closed" if server.metrics_open else "/admin and /metrics closed"
    admin = "set" if compiled.auth.admin_key else f"absent ({closed})"
    _line(console, f"{config}: valid" + ("" if found else " (replicas were not probed)"))
    _line(console, f"server   http://{server.host}:{server.port}   keys {access}   admin key {admin}")
    for model in compiled.models:
        _line(console, "")
        for line in _model_lines(model):
            _line(console, line)
        console.print(_replica_table(model, found))
    if compiled.teams:
        _line(console, "")
        console.print(_team_table(compiled))


def expired(keys: tuple[Key, ...], clock: Clock) -> Iterator[str]:
    """One line for each key whose time is over."""
    for key in keys:
        if key.expires_at_s is not None and key.expires_at_s <= clock.wall():
            yield f"key {key.id} of team {key.team.name} expired at {_moment(key.expires_at_s)}"


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True)


def _model_lines(model: ModelSpec) -> Iterator[str]:
    yield f"model    {model.name}" + (f"   aliases {', '.join(model.aliases)}" if model.aliases else "")
    if model.upstream_name != model.name:
        yield f"         called {model.upstream_name} by vLLM"
    overflow = "may overflow into the other class" if model.routing.overflow else "stays in its class"
    yield f"routing  {model.routing.policy}; long from {model.routing.long_tokens:,} prompt tokens; {overflow}"
    queue = model.queue
    yield f"queue    {queue.depth:,} places; waits {queue.wait_short_s:g} s (short), {queue.wait_long_s:g} s (long)"


def _table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    return table


def _replica_table(model: ModelSpec, found: Mapping[str, Found]) -> Table:
    numbers = ("Context", "KV tokens", "Engines", "Cap")
    table = _table("Replica", "State", *numbers, "Serves", numbers=numbers)
    for replica in model.replicas:
        table.add_row(*_replica_cells(model, replica, found.get(replica.name)))
    return table


def _replica_cells(model: ModelSpec, replica: ReplicaSpec, found: Found | None) -> tuple[str, ...]:
    state = UNKNOWN if found is None else "down" if found.down else "up"
    engine = found.engine if found else None
    context = replica.context_tokens or (found.context_tokens(model) if found else None)
    return (
        f"{replica.name}\n{replica.url}",
        state,
        _count(context),
        _count(engine.kv_capacity_tokens if engine else None),
        _count(engine.engines if engine else None),
        str(replica.cap_max),
        "both" if len(replica.serves) > 1 else min(replica.serves),
    )


def _team_table(compiled: Compiled) -> Table:
    table = _table("Team", "Models", "Keys", "Limits")
    for team in compiled.teams:
        keys = [_key(key) for key in compiled.keys if key.team.name == team.name]
        models = "all" if team.models is None else ", ".join(sorted(team.models)) or "none"
        table.add_row(team.name, models, "\n".join(keys) or UNKNOWN, "\n".join(_limits(team)) or "none")
    return table


def _key(key: Key) -> str:
    return key.id if key.expires_at_s is None else f"{key.id} (until {_moment(key.expires_at_s)})"


def _limits(team: Team) -> Iterator[str]:
    limits = team.limits
    if limits.suspended:
        yield "suspended"
    for name in ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "tokens_per_month", "concurrency"):
        value: int | None = getattr(limits, name)
        if value is not None:
            yield f"{name} {value:,}"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")

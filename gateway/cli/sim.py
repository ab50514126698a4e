"""``gateway sim``: one simulated vLLM server, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from errno import EADDRINUSE
from typing import Annotated, NoReturn

import typer
import uvloop

from gateway.sim.profiles import PROFILES, Profile
from gateway.sim.server import SimServer


def sim(
    profile: Annotated[str, typer.Option(help=f"What to simulate: {', '.join(PROFILES)}.")] = "D4",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 9000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    speed: Annotated[float, typer.Option(help="Times as fast as the real thing.")] = 1.0,
    model: Annotated[str, typer.Option(help="Name of the model it serves.")] = "qwen",
    api_key: Annotated[str | None, typer.Option(help="Key that clients must send (vLLM's --api-key).")] = None,
    max_num_queued_reqs: Annotated[int | None, typer.Option(min=1, help="Answer 503 above this backlog.")] = None,
) -> None:
    """Serve one simulated vLLM with the pace and limits of a measured deployment."""
    chosen = PROFILES.get(profile.upper())
    if chosen is None:
        _fail(f"no profile {profile!r}: there are {', '.join(PROFILES)}")
    if not 0 < speed < float("inf"):
        _fail(f"speed must be a number above 0, not {speed}")
    server = SimServer(
        chosen, port, host=host, speed=speed, model=model, api_key=api_key, max_num_queued_reqs=max_num_queued_reqs
    )
    try:
        uvloop.run(_serve(server, chosen, speed))
    except OSError as error:
        reason = "the port is in use" if error.errno == EADDRINUSE else str(error)
        _fail(f"cannot listen on {host}:{port}: {reason}")


def _fail(message: str) -> NoReturn:
    typer.echo(f"gateway sim: {message}", err=True)
    raise typer.Exit(1)


async def _serve(server: SimServer, profile: Profile, speed: float) -> None:
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    async with server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, own.cancel if own else loop.stop)
        typer.echo(f"{profile.name} ({profile.hardware}) at {server.url}, speed {speed:g}. Ctrl-C stops it.")
        with suppress(asyncio.CancelledError):
            await server.wait()

"""``gateway serve``: run the gateway until SIGTERM or Ctrl-C, reload on SIGHUP."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvicorn

from gateway.app import Gateway
from gateway.settings import Settings, SettingsError, load
from gateway.telemetry.logs import configure_logging
from gateway.telemetry.writer import LineWriter

logger = logging.getLogger("gateway")

BACKLOG = 2_048
OPEN_FILES = 65_536


class Server(uvicorn.Server):
    """uvicorn's server, ended by draining first: readiness is red and streams finish while it still answers."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, settings: Path, fixed: tuple[object, ...]) -> None:
        super().__init__(config)
        self.gateway = gateway
        self.settings = settings
        self._fixed = fixed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained = False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; then drain, and end everything."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            await self.gateway.start()
            await super().serve(sockets)
        finally:
            await self.gateway.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then stop. Second: stop now."""
        if self._drained or self._loop is None:
            super().handle_exit(sig, frame)
            self.force_exit = True
            self._captured_signals.clear()  # or uvicorn would raise them again, and the exit code be theirs
            return
        self._drained = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def reload(self) -> None:
        """Take the settings file as it is now; a bad one changes nothing."""
        try:
            settings = load(self.settings, os.environ)
        except SettingsError as error:
            for fault in error.faults:
                logger.error("settings not reloaded: %s", fault)
            return
        self.gateway.apply(settings.compile())
        if fixed_of(settings) != self._fixed:
            logger.warning("server.host, server.port and server.log_level are taken at the next start only")
        for warning in settings.warnings:
            logger.warning("%s", warning)
        logger.info("settings reloaded from %s", self.settings)

    def _begin_drain(self) -> None:
        logger.info("draining: %d calls under way", len(self.gateway.path.exchanges))
        self.gateway.path.tasks.spawn(self._drain())

    async def _drain(self) -> None:
        await self.gateway.path.drain()
        self.should_exit = True


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="Settings file (YAML).")],
) -> None:
    """Run the gateway."""
    settings = load(config, os.environ)
    compiled = settings.compile()
    _raise_open_files()
    listener = _listen(compiled.server.host, compiled.server.port)
    writer = LineWriter()
    configure_logging(compiled.server.log_level, writer)
    for warning in settings.warnings:
        logger.warning("%s", warning)
    gateway = Gateway(compiled, writer)
    uvicorn_config = uvicorn.Config(
        gateway,
        http=gateway.front,  # type: ignore[arg-type]
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = Server(uvicorn_config, gateway, config, fixed_of(settings))
    host = f"[{compiled.server.host}]" if ":" in compiled.server.host else compiled.server.host
    logger.info("listening on http://%s:%d", host, listener.getsockname()[1])
    try:
        uvicorn_config.load()
        with asyncio.Runner(loop_factory=uvicorn_config.get_loop_factory()) as runner:
            runner.run(server.serve([listener]))
    finally:
        writer.close()


def fixed_of(settings: Settings) -> tuple[object, ...]:
    """The settings that a reload does not take."""
    server = settings.server
    return server.host, server.port, server.log_level


def _raise_open_files() -> None:
    """Take as many open files as the system allows: each stream needs two, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, or one clear line and exit code 1."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        what = "the port is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        sys.stderr.write(f"gateway: cannot listen on {host}:{port}: {what}\n")
        raise typer.Exit(1) from None
    return listener

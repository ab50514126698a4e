"""Composition root: settings in, a running gateway out. The only file that names concrete classes."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway import __version__
from gateway.clock import Clock, SystemClock
from gateway.control.app import create_control
from gateway.domain import Key, ServingSpec
from gateway.policy.keys import KeyTable
from gateway.proxy.datapath import DataPath
from gateway.proxy.front import Front
from gateway.proxy.probe import Prober
from gateway.settings import Compiled
from gateway.telemetry.logs import CallLog, Sinks
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.writer import LineWriter

logger = logging.getLogger(__name__)


class Gateway:
    """One worker of the gateway: an ASGI application for control, and ``front`` for the server protocol.

    ``start`` and ``stop`` belong around the server's life; ``apply`` takes new settings while it runs.
    """

    def __init__(self, compiled: Compiled, writer: LineWriter, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.metrics = Metrics(_model_names(compiled), _team_names(compiled))
        self._table = _key_table(compiled)
        self.path = DataPath(
            compiled.models,
            _serving(compiled),
            self,
            clock=self.clock,
            records=Sinks(self.metrics, CallLog(writer, compiled.server.log_level)),
            events=self.metrics,
            seed=secrets.randbits(64),
        )
        self.metrics.watch(self.path)
        self._control = self._create_control(compiled)
        self._prober: Prober | None = None

    def find(self, secret: str | None, now_s: float) -> Key | None:
        """The key whose secret this is, by the settings in force (``ports.Directory``)."""
        return self._table.find(secret, now_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Control, as ASGI."""
        await self._control(scope, receive, send)

    @property
    def front(self) -> Callable[..., asyncio.Protocol]:
        """Makes the server protocol of one client connection (uvicorn's ``http=``)."""

        def connection(
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> Front:
            return Front(self.path, config, server_state, app_state)

        return connection

    async def start(self) -> None:
        """Probe every replica once, then keep probing and sweeping."""
        serving = self.path.serving
        self._prober = Prober(
            self.path.tasks, self.clock, interval_s=serving.probe_interval_s, timeout_s=serving.probe_timeout_s
        )
        await self._prober.first_round(list(self.path.models.values()))
        self._prober.follow(list(self.path.models.values()))  # others, if settings were applied meanwhile
        self.path.tasks.spawn(self.path.run_sweep())

    def apply(self, compiled: Compiled) -> None:
        """Take new settings, all at once. Host, port and log level need a restart."""
        self.metrics.know(_model_names(compiled), _team_names(compiled))
        self._table = _key_table(compiled)
        self.path.apply(compiled.models, _serving(compiled))
        self._control = self._create_control(compiled)
        if self._prober is not None:
            self._prober.interval_s = compiled.server.probe_interval_s
            self._prober.timeout_s = compiled.server.probe_timeout_s
            self._prober.follow(list(self.path.models.values()))

    async def stop(self) -> None:
        """End everything; calls under way were drained before."""
        if self._prober is not None:
            await self._prober.close()
        await self.path.close()

    def _create_control(self, compiled: Compiled) -> ASGIApp:
        admin_key = compiled.auth.admin_key
        return create_control(
            fleet=self.path,
            directory=self,
            metrics_page=self.metrics.page,
            clock=self.clock,
            pacer=self.path.pacer,
            version=__version__,
            admin_key=admin_key.get_secret_value() if admin_key is not None else None,
            metrics_open=compiled.server.metrics_open,
            cors_origins=compiled.server.cors_origins,
        )


def _key_table(compiled: Compiled) -> KeyTable:
    return KeyTable(compiled.keys, open_to=compiled.anonymous)


def _serving(compiled: Compiled) -> ServingSpec:
    return ServingSpec(**{field.name: getattr(compiled.server, field.name) for field in fields(ServingSpec)})


def _model_names(compiled: Compiled) -> list[str]:
    return [model.name for model in compiled.models]


def _team_names(compiled: Compiled) -> list[str]:
    return [team.name for team in compiled.teams]

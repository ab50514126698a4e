"""Looks at each replica every few seconds: is it alive, what is its context, what does it say of its load?

Only ``/health`` decides whether a replica is up. ``/v1/models`` (the context) is read when a replica comes up and now
and then, ``/metrics`` every time; a replica whose metrics cannot be read still serves.
"""

from __future__ import annotations

import asyncio
import logging

import httpx
import msgspec

from gateway.clock import Clock
from gateway.policy.health import CLOSED
from gateway.proxy.model import Model
from gateway.proxy.pool import Replica
from gateway.proxy.tasks import Tasks, going_on
from gateway.proxy.upstream import ssl_context
from gateway.wire.vllm import parse_metrics, parse_models

logger = logging.getLogger(__name__)

MODELS_EVERY = 15  # probes
METRICS_BYTES_MAX = 8_388_608


class Prober:
    """Probes the replicas of all models; ``follow`` after settings were applied. Each page has ``timeout_s`` in all."""

    def __init__(self, tasks: Tasks, clock: Clock, *, interval_s: float, timeout_s: float) -> None:
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._tasks = tasks
        self._clock = clock
        self._running: dict[int, asyncio.Task[None]] = {}
        self._client = _client(verify=True)
        self._careless = _client(verify=False)

    def follow(self, models: list[Model]) -> None:
        """Probe exactly the replicas of ``models`` from now on."""
        wanted = {id(replica): (model, replica) for model in models for replica in model.pool}
        for gone in self._running.keys() - wanted.keys():
            self._running.pop(gone).cancel()
        for name in wanted.keys() - self._running.keys():
            self._running[name] = self._tasks.spawn(self._watch(*wanted[name]))

    async def first_round(self, models: list[Model]) -> None:
        """Probe every replica once, all at the same time."""
        await asyncio.gather(*(self.probe(model, replica) for model in models for replica in model.pool))

    async def close(self) -> None:
        """Stop probing."""
        for task in self._running.values():
            task.cancel()
        await self._client.aclose()
        await self._careless.aclose()

    async def _watch(self, model: Model, replica: Replica) -> None:
        if replica.probe.up is None:  # new in the settings
            await self.probe(model, replica)
        while True:
            await self._clock.sleep(self.interval_s)
            with going_on("a probe"):
                await self.probe(model, replica)

    async def probe(self, model: Model, replica: Replica) -> None:
        """One look at ``replica``; on its return whoever waits for it is seated."""
        was_up = replica.probe.up
        why, refused = await self._health(replica)
        if why:
            replica.probe = replica.probe.failed(why, refused=refused)
            replica.stats = None
        else:
            replica.probe = replica.probe.passed()
            replica.probes += 1
            await self._read(replica, models=was_up is not True or replica.probes % MODELS_EVERY == 0)
        if replica.probe.up is not was_up:
            self._turned(model, replica, first=was_up is None)

    def _turned(self, model: Model, replica: Replica, *, first: bool) -> None:
        if replica.probe.up:
            replica.breaker = CLOSED
            logger.log(logging.INFO if first else logging.WARNING, "replica %s is up", replica.spec.name)
        else:
            logger.warning("replica %s is down: %s", replica.spec.name, replica.probe.why)
        model.gate.refresh()

    async def _health(self, replica: Replica) -> tuple[str, bool]:
        """Why the replica is down (empty: it is up), and whether that is certain."""
        try:
            status = (await self._get(replica, "/health")).status_code
        except httpx.ConnectError as error:
            return f"cannot connect ({_reason(error)})", True
        except TimeoutError:
            return "no answer to /health in time", False
        except httpx.HTTPError as error:
            return f"/health failed ({_reason(error)})", False
        return ("", False) if status == 200 else (f"/health answered {status}", True)

    async def _read(self, replica: Replica, *, models: bool) -> None:
        try:
            if models:
                found = parse_models((await self._get(replica, "/v1/models")).content)
                replica.found_context_tokens = found.get(replica.model.upstream_name) or replica.found_context_tokens
            metrics = await self._get(replica, "/metrics")
            readable = metrics.status_code == 200 and len(metrics.content) <= METRICS_BYTES_MAX
            replica.stats = parse_metrics(metrics.text) if readable else None
        except (TimeoutError, httpx.HTTPError, msgspec.MsgspecError, ValueError) as error:
            replica.stats = None
            logger.debug("replica %s: %s", replica.spec.name, _reason(error))

    async def _get(self, replica: Replica, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {replica.spec.api_key}"} if replica.spec.api_key else {}
        client = self._client if replica.spec.verify_tls else self._careless
        async with asyncio.timeout(self.timeout_s):  # httpx's own bounds each read: one byte a second would pass
            return await client.get(replica.spec.url.rstrip("/") + path, headers=headers)


def _reason(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _client(*, verify: bool) -> httpx.AsyncClient:
    """A client that trusts the certificates calls trust, the machine's, and not those that come with httpx."""
    limits = httpx.Limits(max_keepalive_connections=64, keepalive_expiry=4.0)
    context = ssl_context(verify=verify)
    return httpx.AsyncClient(timeout=None, limits=limits, trust_env=False, verify=context)  # noqa: S113 - see _get

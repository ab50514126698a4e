"""What the replicas say of themselves: counters before and after, and samples in between.

Every vLLM has ``/metrics``; simulators also have ``/sim/stats``, which counts requests from their arrival on. What a
server does not tell is not measured, and said so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import httpx
import msgspec

from gateway.domain import EngineStats
from gateway.wire.vllm import parse_metrics
from loadtests.report.result import ReplicaShare, Sample

_TIMEOUT_S = 5.0
_SETTLE_S = 5.0  # that engines may take to notice that clients have left
_LOOK_S = 0.1


class SimStats(msgspec.Struct):
    """The part of ``/sim/stats`` that is needed."""

    inflight: int
    inflight_max: int
    opened: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine server. ``cap`` is what the target promises to keep to, ``None`` if that is not known."""

    name: str
    url: str
    cap: int | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class GatewayPage:
    """Where the gateway tells how many calls wait, and the administrator's key to it."""

    url: str
    admin_key: str = field(repr=False)


class Reading(msgspec.Struct):
    """One replica at one moment; ``why_not`` says why there is nothing."""

    engine: EngineStats | None = None
    sim: SimStats | None = None
    why_not: str = ""


class Engines:
    """Reads the replicas over HTTP."""

    def __init__(self, replicas: Sequence[Replica], page: GatewayPage | None, client: httpx.AsyncClient) -> None:
        self.replicas = replicas
        self._page = page
        self._client = client
        self._no_sim: set[str] = set()

    async def read(self) -> dict[str, Reading]:
        """Everything of everyone."""
        found = await asyncio.gather(*(self._read(replica) for replica in self.replicas))
        return {replica.name: reading for replica, reading in zip(self.replicas, found, strict=True)}

    async def settled(self) -> dict[str, Reading]:
        """The same once nothing runs any more, or after 5 s."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _SETTLE_S
        while True:
            readings = await self.read()
            busy = any(one.engine and one.engine.running + one.engine.waiting for one in readings.values())
            if not busy or loop.time() > deadline_s:
                return readings
            await asyncio.sleep(_LOOK_S)

    async def sample(self, at_s: float) -> Sample:
        """The fleet now, in few bytes."""
        sample = Sample(at_s)
        readings = await asyncio.gather(*(self._read(replica) for replica in self.replicas))
        for replica, reading in zip(self.replicas, readings, strict=True):
            if reading.sim is not None:
                sample.inflight[replica.name] = reading.sim.inflight
            if reading.engine is not None:
                sample.running[replica.name] = reading.engine.running
                sample.waiting[replica.name] = reading.engine.waiting
                sample.inflight.setdefault(replica.name, reading.engine.running + reading.engine.waiting)
        if self._page is not None:
            sample.queued = await self._queued(self._page)
        return sample

    async def _read(self, replica: Replica) -> Reading:
        reading = await self._metrics(replica)
        reading.sim = await self._sim(replica)
        return reading

    async def _metrics(self, replica: Replica) -> Reading:
        headers = {"authorization": f"Bearer {replica.api_key}"} if replica.api_key else {}
        try:
            answer = await self._client.get(f"{replica.url}/metrics", headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Reading(why_not=f"/metrics: {type(error).__name__}")
        if answer.status_code != 200 or "vllm:" not in answer.text:
            return Reading(why_not=f"/metrics: status {answer.status_code}, no vLLM counters")
        return Reading(engine=parse_metrics(answer.text))

    async def _sim(self, replica: Replica) -> SimStats | None:
        if replica.name in self._no_sim:
            return None
        try:
            answer = await self._client.get(f"{replica.url}/sim/stats")
        except (httpx.HTTPError, httpx.InvalidURL):
            return None
        if answer.status_code == 200:
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(answer.content, type=SimStats)
        self._no_sim.add(replica.name)
        return None

    async def _queued(self, page: GatewayPage) -> float | None:
        try:
            answer = await self._client.get(
                f"{page.url}/metrics", headers={"authorization": f"Bearer {page.admin_key}"}
            )
        except httpx.HTTPError:
            return None
        waiting = [line for line in answer.text.splitlines() if line.startswith("gateway_queue_depth{")]
        if answer.status_code != 200:
            return None
        with suppress(ValueError):
            return sum(float(line.rpartition(" ")[2]) for line in waiting)
        return None


async def sampled(
    engines: Engines, samples: list[Sample], now_s: Callable[[], float], interval_s: float, count_max: int = 100_000
) -> None:
    """Append a sample every ``interval_s`` (real seconds) until cancelled."""
    while len(samples) < count_max:
        samples.append(await engines.sample(now_s()))
        await asyncio.sleep(interval_s)


def shares(
    replicas: Sequence[Replica],
    before: Mapping[str, Reading],
    after: Mapping[str, Reading],
    samples: Sequence[Sample],
    calls: Mapping[str, int],
) -> dict[str, ReplicaShare]:
    """What each replica did between two readings. ``calls`` are those that named a replica."""
    found: dict[str, ReplicaShare] = {}
    for replica in replicas:
        old, new = before.get(replica.name, Reading()), after.get(replica.name, Reading())
        share = ReplicaShare(url=replica.url, cap=replica.cap, calls=calls.get(replica.name, 0) if calls else None)
        found[replica.name] = share
        if old.engine is None or new.engine is None:
            share.reached, share.why_not = False, new.why_not or old.why_not
        else:
            _counted(share, old.engine, new.engine)
        share.inflight_max = _inflight_max(replica.name, old, new, samples)
        if replica.cap is not None and any(replica.name in sample.inflight for sample in samples):
            share.over_cap_s = _over_cap_s(replica.name, replica.cap, samples)
    total = sum(share.generation_tokens or 0.0 for share in found.values())
    for share in found.values():
        if share.generation_tokens is not None and total:
            share.share = share.generation_tokens / total
    return found


def _counted(share: ReplicaShare, old: EngineStats, new: EngineStats) -> None:
    share.prompt_tokens = new.prompt_tokens - old.prompt_tokens
    share.generation_tokens = new.generation_tokens - old.generation_tokens
    share.prefix_queries = new.prefix_queries - old.prefix_queries
    share.prefix_hits = new.prefix_hits - old.prefix_hits
    share.preemptions = new.preemptions - old.preemptions


def _inflight_max(name: str, old: Reading, new: Reading, samples: Sequence[Sample]) -> float | None:
    """The server's own maximum where it has one and had nothing to do before; else the largest sample."""
    if old.sim is not None and new.sim is not None and old.sim.opened == 0:
        return new.sim.inflight_max
    seen = [sample.inflight[name] for sample in samples if name in sample.inflight]
    return max(seen) if seen else None


def _over_cap_s(name: str, cap: int, samples: Sequence[Sample]) -> float:
    """Seconds during which more than ``cap`` were there; each sample stands for the time to the next."""
    over_s = 0.0
    for sample, following in pairwise(samples):
        if sample.inflight.get(name, 0) > cap:
            over_s += following.at_s - sample.at_s
    return over_s

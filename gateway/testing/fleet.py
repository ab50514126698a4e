"""A fleet that is what a test says it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain import CallClass, EngineStats, Key
from gateway.ports import QueueStatus, ReplicaStatus


@dataclass
class FakeFleet:
    """A ``ports.Fleet`` of plain values, each of which a test may change at any time."""

    ready: bool = True
    draining: bool = False
    replica_list: Sequence[ReplicaStatus] = ()
    queue_list: Sequence[QueueStatus] = ()
    model_list: Sequence[tuple[str, int | None]] = ()

    def replicas(self) -> Sequence[ReplicaStatus]:
        """``replica_list``."""
        return self.replica_list

    def queues(self) -> Sequence[QueueStatus]:
        """``queue_list``."""
        return self.queue_list

    def models_for(self, key: Key) -> list[tuple[str, int | None]]:
        """Those of ``model_list`` whose name the key's team may use."""
        return [(name, context_tokens) for name, context_tokens in self.model_list if key.team.may_use(name)]


def replica_status(
    name: str = "dp0",
    model: str = "qwen",
    *,
    up: bool = True,
    inflight: int = 0,
    cap: int = 64,
    stats: EngineStats | None = None,
) -> ReplicaStatus:
    """A replica's status with nothing remarkable but what is given."""
    return ReplicaStatus(
        name=name,
        model=model,
        url=f"http://{name}:8000",
        serves=(CallClass.SHORT,),
        up=up,
        why_down="" if up else "connection refused",
        breaker="closed" if up else "open",
        inflight=inflight,
        cap=cap,
        context_tokens=32_768,
        stats=stats,
        idle_connections=0,
    )

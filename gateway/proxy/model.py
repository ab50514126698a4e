"""A model as it runs: its settings, pool, waiting room, token estimator and retry budget."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.clock import Clock
from gateway.domain import ModelSpec
from gateway.errors import GatewayError
from gateway.policy import retry
from gateway.proxy.gate import Gate
from gateway.proxy.pool import Pool, Replica
from gateway.proxy.tokens import TokenEstimator


class Model:
    """Everything the data path keeps for one model."""

    def __init__(self, spec: ModelSpec, clock: Clock, returning: Iterable[Replica] = ()) -> None:
        self.spec = spec
        self.pool = Pool(spec, clock, returning)
        self.gate = Gate(self.pool)
        self.tokens = TokenEstimator()
        self._retry_balance = spec.retry.budget_burst

    def apply(self, spec: ModelSpec) -> None:
        """Take new settings; calls under way keep what they have."""
        self.spec = spec
        self.pool.apply(spec)
        self.gate.refresh()

    @property
    def context_tokens(self) -> int | None:
        """The largest context among the replicas, in tokens; ``None`` while none is known."""
        return max((r.context_tokens for r in self.pool if r.context_tokens is not None), default=None)

    def sweep(self, now_s: float) -> None:
        """Drop idle connections, and seat those who wait for a replica that came back."""
        for replica in self.pool:
            replica.upstream.sweep(now_s)
        if self.gate.depth:
            self.gate.refresh()

    def close(self, why: GatewayError) -> None:
        """No new calls: the model is gone from the settings, or the gateway stops. Who waits is told ``why``."""
        self.pool.close()
        self.gate.close(why)

    def deposit_retry(self) -> None:
        """One more call came in: it pays its share into the retry budget."""
        self._retry_balance = retry.deposit(self._retry_balance, self.spec.retry)

    def take_retry(self, attempts: int) -> bool:
        """Take one retry from the budget, if a call that made ``attempts`` may."""
        balance = retry.withdraw(self._retry_balance, attempts, self.spec.retry)
        if balance is None:
            return False
        self._retry_balance = balance
        return True

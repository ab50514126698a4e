"""What a model's tokenizer was seen to make of text: the state behind ``policy.estimate``, bounded in size."""

from __future__ import annotations

from gateway.domain import Estimate, TextSize
from gateway.policy import estimate as policy

KEYS_MAX = 4_096


class TokenEstimator:
    """Estimates prompt tokens for one model and learns from every usage the engine reports."""

    def __init__(self) -> None:
        self.weights = policy.Weights()
        self._corrections: dict[str, policy.Correction] = {}

    def estimate(self, size: TextSize, key_id: str) -> Estimate:
        """Tokens expected of a prompt of ``size`` by the key."""
        return policy.estimate(size, self.weights, self._corrections.get(key_id, policy.Correction()))

    def learn(self, size: TextSize, actual_tokens: int, key_id: str) -> None:
        """Take in what the engine counted."""
        before = self._corrections.pop(key_id, policy.Correction())
        self.weights, after = policy.learn(size, actual_tokens, self.weights, before)
        self._corrections[key_id] = after  # the last used comes last
        if len(self._corrections) > KEYS_MAX:
            del self._corrections[next(iter(self._corrections))]

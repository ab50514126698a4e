"""What a model's tokenizer was seen to make of text: the state behind ``policy.estimate``, bounded in size."""

from __future__ import annotations

from gateway.domain import Estimate, TextSize
from gateway.policy import estimate as policy

KEYS_MAX = 4_096
LEARN_ALWAYS = 50  # prompts of a key
LEARN_EVERY = 8  # after that: the tokenizer does not change, only the mix of texts drifts

NEW = policy.Correction()


class TokenEstimator:
    """Estimates prompt tokens for one model and learns from the usage that the engine reports."""

    def __init__(self) -> None:
        self.weights = policy.Weights()
        self._corrections: dict[str, policy.Correction] = {}
        self._seen: dict[str, int] = {}

    def estimate(self, size: TextSize, key_id: str) -> Estimate:
        """Tokens expected of a prompt of ``size`` by the key."""
        return policy.estimate(size, self.weights, self._corrections.get(key_id, NEW))

    def learn(self, size: TextSize, actual_tokens: int, key_id: str) -> None:
        """Take in what the engine counted."""
        seen = self._seen[key_id] = self._seen.get(key_id, 0) + 1
        if seen > LEARN_ALWAYS and seen % LEARN_EVERY:
            return
        before = self._corrections.pop(key_id, NEW)
        self.weights, self._corrections[key_id] = policy.learn(size, actual_tokens, self.weights, before)
        if len(self._corrections) > KEYS_MAX:  # the one that wrote least recently goes
            oldest = next(iter(self._corrections))
            del self._corrections[oldest]
            del self._seen[oldest]

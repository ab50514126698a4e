"""How big an engine is and how long its steps take: frozen values, no behaviour that does I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Limits of one engine, named as vLLM's own flags where it has them.

    ``long_prefill_tokens`` is vLLM's ``--long-prefill-token-threshold``: the most one prompt may take of a step, so
    that a budget is left for the others (0 = no bound). ``decode_tokens`` above 1 is speculative decoding: the mean
    number of tokens a sequence gains in a step.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    long_prefill_tokens: int = 0
    block_tokens: int = 16
    decode_tokens: float = 1.0
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for limits no engine can run with."""
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.block_tokens) < 1 or self.decode_tokens < 1:
            raise ValueError("an engine needs at least one sequence, token, block and token per step")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must let every sequence decode: at least max_num_seqs")
        if self.kv_blocks < 1:
            raise ValueError("kv_tokens must hold at least one block")

    @property
    def kv_blocks(self) -> int:
        """KV cache capacity in blocks."""
        return self.kv_tokens // self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks that ``tokens`` occupy."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a step costs, in seconds.

    A step reads the weights once and works on each decoding sequence: ``decode_steps`` holds that sum at measured
    batch sizes (ascending), straight lines between them. Attention of the decodes adds ``kv_read_s`` per token of
    their contexts. A prompt token adds ``prefill_s`` and, for attention over what precedes it, ``prefill_position_s``
    per token before it, so that a prompt's time is linear plus quadratic in its length.
    """

    decode_steps: tuple[tuple[int, float], ...]
    kv_read_s: float
    prefill_s: float
    prefill_position_s: float

    def decode_s(self, batch: int) -> float:
        """Seconds of a step that decodes ``batch`` sequences (of no context); the last line is extended."""
        sizes = [size for size, _ in self.decode_steps]
        if batch <= sizes[0] or len(sizes) == 1:
            return self.decode_steps[0][1]
        right = min(bisect_left(sizes, batch), len(sizes) - 1)
        (x0, y0), (x1, y1) = self.decode_steps[right - 1], self.decode_steps[right]
        return y0 + (y1 - y0) * (batch - x0) / (x1 - x0)

    def chunk_s(self, start: int, tokens: int) -> float:
        """Seconds that prefilling ``tokens`` from position ``start`` adds to a step."""
        return tokens * (self.prefill_s + self.prefill_position_s * (start + tokens / 2))

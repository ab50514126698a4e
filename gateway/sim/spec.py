"""How big an engine is and how long its steps take: frozen values, no behaviour that does I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding (MTP, a draft model): ``draft_tokens`` are proposed for a sequence in each step.

    Each request has a chance of its own, between ``chance_low`` and ``chance_high``, that a draft token is accepted if
    those before it were. vLLM's acceptance rate is accepted over proposed tokens: the mean of the chance's powers.
    """

    draft_tokens: int
    chance_low: float
    chance_high: float

    def __post_init__(self) -> None:
        """Raise ``ValueError`` unless there are drafts and chances are such."""
        if self.draft_tokens < 1 or not 0 <= self.chance_low <= self.chance_high <= 1:
            raise ValueError("speculation needs a draft token or more, and chances of 0 to 1, the lower one first")

    def chances(self, request_id: str) -> tuple[float, ...]:
        """Chance that at least 1, 2, … draft tokens are accepted; decided by the request's id."""
        share = crc32(request_id.encode(errors="replace")) / 2**32
        chance = self.chance_low + (self.chance_high - self.chance_low) * share
        return tuple(chance**position for position in range(1, self.draft_tokens + 1))


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Limits of one engine, named as vLLM's own flags where it has them.

    ``long_prefill_tokens`` is vLLM's ``--long-prefill-token-threshold``: the most one prompt may take of a step, so
    that a budget is left for the others (0 = no bound).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    long_prefill_tokens: int = 0
    block_tokens: int = 16
    prefix_caching: bool = True
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for limits no engine can run with."""
        if min(self.max_num_seqs, self.max_num_batched_tokens, self.block_tokens) < 1:
            raise ValueError("an engine needs at least one sequence, token and block")
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

    A step reads the weights once and works on each decoding sequence (on its draft tokens too): ``decode_steps`` holds
    that sum at measured batch sizes (ascending), straight lines between them. Attention of the decodes adds
    ``kv_read_s`` per token of their contexts. A prompt token adds ``prefill_s`` and, for attention over what precedes
    it, ``prefill_position_s`` per token before it, so that a prompt's time is linear plus quadratic in its length.
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

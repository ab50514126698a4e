"""A vLLM engine as a pure step model: no clock, no I/O, no randomness.

The rules are those of vLLM's V1 scheduler:
    1. Each step has a budget of tokens. Running sequences come first, in order of arrival: one token for a decode,
       a chunk for an unfinished prefill.
    2. What budget is left admits waiting sequences, first come first served; nobody overtakes. A sequence is
       admitted when its whole prompt fits the KV cache beside what runs.
    3. Known leading blocks are skipped, except that at least the last token is always computed.
    4. A prefill that ends in a step yields its first token in that step.
    5. With speculative decoding a decode takes its draft tokens of the budget too, and yields one token more than
       were accepted. Drafts past the end of the answer are not made.
    6. When a decode needs a block and none is left, the newest sequence is preempted: its blocks are freed, it
       returns to the head of the queue and later recomputes its prompt and what it had produced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from gateway.sim.cache import BlockCache
from gateway.sim.spec import EngineSpec, Pace


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What the engine is asked: ``blocks`` are chained hashes of the full blocks of prompt and output, in order.

    An ``output_tokens`` of 0 ends with the prefill (embeddings). ``rank`` pins it to one of several engines.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    rank: int | None = None


class Progress(NamedTuple):
    """What a step did for one request: tokens produced, whether the first of them was the request's first.

    ``rank`` tells which engine it was.
    """

    id: str
    tokens: int
    first: bool
    finished: bool
    cached_tokens: int
    rank: int = 0


class Step(NamedTuple):
    """One step: how long it takes and what it has produced at its end."""

    duration_s: float
    progress: tuple[Progress, ...]


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start, as vLLM exports them (tokens, requests).

    ``accepted_at`` counts accepted draft tokens by their position in the draft.
    """

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Running:
    """A request on its way: ``target`` is how many tokens its prefill must compute before the next output."""

    request: EngineRequest
    target: int
    computed: int = 0
    emitted: int = 0
    chances: tuple[float, ...] = ()  # that at least 1, 2, … draft tokens are accepted
    draw: int = 0  # state of its pseudo-random sequence
    cached: int | None = None  # tokens found at first admission
    committed: int = 0  # leading full blocks already offered to the cache
    shared: list[int] = field(default_factory=list)
    private: int = 0
    admitted: bool = False

    @property
    def blocks(self) -> int:
        """Cache blocks it holds."""
        return len(self.shared) + self.private

    @property
    def done(self) -> bool:
        """Whether every token was computed and sent."""
        return self.computed >= self.target and self.emitted >= self.request.output_tokens

    def accept(self, drafted: int) -> int:
        """How many of ``drafted`` tokens are accepted this time."""
        self.draw = (self.draw * 1_664_525 + 1_013_904_223) % 2**32  # Numerical Recipes' generator
        share = self.draw / 2**32
        return sum(share < chance for chance in self.chances[:drafted])


@dataclass(slots=True)
class _Load:
    """What one step is being filled with."""

    budget: int
    decodes: int = 0
    context: int = 0
    prefill_s: float = 0.0
    progress: list[Progress] = field(default_factory=list)


class Engine:
    """Continuous batching over one KV cache."""

    def __init__(self, spec: EngineSpec, pace: Pace, rank: int = 0) -> None:
        self.spec = spec
        self.pace = pace
        self.rank = rank
        self.counters = EngineCounters()
        if spec.speculation is not None:
            self.counters.accepted_at = [0] * spec.speculation.draft_tokens
        self.cache = BlockCache(spec.kv_blocks)
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._by_id: dict[str, _Running] = {}

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet, or preempted."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return self.cache.used / self.cache.capacity

    def add(self, request: EngineRequest) -> None:
        """Queue ``request``. Raises ``ValueError`` if its id is known or it could never fit."""
        if request.id in self._by_id:
            raise ValueError(f"request {request.id} is already here")
        if request.prompt_tokens < 1 or request.output_tokens < 0:
            raise ValueError("a prompt has at least one token, an output none or more")
        if self.spec.blocks_for(request.prompt_tokens + request.output_tokens) > self.cache.capacity:
            raise ValueError("prompt and output are larger than the KV cache")
        sequence = _Running(request, target=request.prompt_tokens)
        if self.spec.speculation is not None:
            sequence.chances = self.spec.speculation.chances(request.id)
            sequence.draw = crc32(request.id.encode(errors="replace"), 1)
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a request, freeing what it holds. False if it is not here (any more)."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.admitted:
            self._running.remove(sequence)
            self._free(sequence)
        else:
            self._waiting.remove(sequence)
        return True

    def step(self) -> Step:
        """Run one step. A step with nothing to do takes no time."""
        if not self._by_id:
            return Step(0.0, ())
        load = _Load(self.spec.max_num_batched_tokens)
        preemptions = self.counters.preemptions
        self._continue(load)
        if self.counters.preemptions == preemptions:
            self._admit(load)
        self._retire()
        self.counters.steps += 1
        duration_s = self.pace.decode_s(max(1, load.decodes)) + self.pace.kv_read_s * load.context + load.prefill_s
        return Step(duration_s, tuple(load.progress))

    def _continue(self, load: _Load) -> None:
        for sequence in tuple(self._running):
            if not sequence.admitted or load.budget < 1:
                continue  # preempted by one before it, or no budget left
            if sequence.computed < sequence.target:
                self._prefill(sequence, load)
            else:
                self._decode(sequence, load)

    def _admit(self, load: _Load) -> None:
        while self._waiting and load.budget > 0 and len(self._running) < self.spec.max_num_seqs:
            sequence = self._waiting[0]
            if not self._hold_prompt(sequence):
                return
            self._waiting.popleft()
            self._running.append(sequence)
            self._prefill(sequence, load)

    def _hold_prompt(self, sequence: _Running) -> bool:
        """Take the blocks of the whole prompt, known ones first. False if they do not fit now."""
        known = sequence.request.blocks
        hits = 0
        if self.spec.prefix_caching:
            hits = self.cache.match(known, (sequence.target - 1) // self.spec.block_tokens)
        private = self.spec.blocks_for(sequence.target) - hits
        if not self.cache.take(known[:hits], private):
            return False
        sequence.admitted = True
        sequence.shared, sequence.private = list(known[:hits]), private
        sequence.committed, sequence.computed = hits, hits * self.spec.block_tokens
        if sequence.cached is None:  # a preempted sequence is not counted twice
            sequence.cached = sequence.computed
            self.counters.prefix_queries += sequence.target
            self.counters.prefix_hits += sequence.computed
        return True

    def _prefill(self, sequence: _Running, load: _Load) -> None:
        tokens = min(sequence.target - sequence.computed, load.budget, self.spec.long_prefill_tokens or load.budget)
        load.budget -= tokens
        load.prefill_s += self.pace.chunk_s(sequence.computed, tokens)
        sequence.computed += tokens
        self._commit(sequence)
        if sequence.computed == sequence.target:
            if sequence.emitted == 0:
                self.counters.prompt_tokens += sequence.request.prompt_tokens
            self._emit(sequence, 1, load)

    def _decode(self, sequence: _Running, load: _Load) -> None:
        drafted = min(len(sequence.chances), sequence.request.output_tokens - sequence.emitted - 1, load.budget - 1)
        if not self._grow(sequence, 1 + drafted):
            return
        tokens = 1 + (self._verify(sequence, drafted) if drafted else 0)
        load.budget -= 1 + drafted
        load.decodes += 1
        load.context += sequence.computed
        sequence.computed += tokens
        sequence.target = sequence.computed
        self._commit(sequence)
        self._emit(sequence, tokens, load)

    def _verify(self, sequence: _Running, drafted: int) -> int:
        accepted = sequence.accept(drafted)
        self.counters.drafts += 1
        self.counters.draft_tokens += drafted
        for position in range(accepted):
            self.counters.accepted_at[position] += 1
        return accepted

    def _emit(self, sequence: _Running, tokens: int, load: _Load) -> None:
        first = sequence.emitted == 0
        tokens = min(tokens, sequence.request.output_tokens - sequence.emitted)
        sequence.emitted += tokens
        self.counters.generation_tokens += tokens
        load.progress.append(
            Progress(sequence.request.id, tokens, first, sequence.done, sequence.cached or 0, self.rank)
        )

    def _grow(self, sequence: _Running, tokens: int) -> bool:
        """Take blocks for ``tokens`` more, preempting the newest as needed. False if that was ``sequence`` itself."""
        need = self.spec.blocks_for(sequence.computed + tokens) - sequence.blocks
        while need > 0 and not self.cache.take((), need):
            newest = self._running[-1]
            self._preempt(newest)
            if newest is sequence:
                return False
        sequence.private += max(0, need)
        return True

    def _preempt(self, sequence: _Running) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        sequence.target = sequence.request.prompt_tokens + sequence.emitted
        sequence.computed = 0
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _commit(self, sequence: _Running) -> None:
        """Make the blocks that have become full known to the prefix cache."""
        if not self.spec.prefix_caching:
            return
        full = min(sequence.computed // self.spec.block_tokens, len(sequence.request.blocks))
        for digest in sequence.request.blocks[sequence.committed : full]:
            if self.cache.commit(digest):
                sequence.shared.append(digest)
                sequence.private -= 1
        sequence.committed = max(sequence.committed, full)

    def _free(self, sequence: _Running) -> None:
        self.cache.release(sequence.shared, sequence.private)
        sequence.shared, sequence.private, sequence.admitted = [], 0, False

    def _retire(self) -> None:
        for sequence in self._running:
            if sequence.done:
                del self._by_id[sequence.request.id]
                self._free(sequence)
        self._running = [sequence for sequence in self._running if sequence.admitted]

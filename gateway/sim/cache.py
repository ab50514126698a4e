"""The KV cache as vLLM keeps it: blocks by chained hash, shared by reference count, freed ones kept until needed.

A block is *held* (some sequence uses it), *idle* (full, known by its hash, used by nobody: the prefix cache, evicted
least recently used first) or free. Blocks that are not full yet, or that repeat one already known, are *private*:
only their number matters. Held, private and idle blocks together never pass the capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice


class BlockCache:
    """Accounts for ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: dict[int, int] = {}  # hash -> sequences that use it
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that sequences use now."""
        return len(self._held) + self._private

    @property
    def idle(self) -> int:
        """Blocks kept only because their content may come again."""
        return len(self._idle)

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """How many leading ``hashes`` are known, at most ``limit``."""
        count = 0
        for digest in islice(hashes, limit):
            if digest not in self._held and digest not in self._idle:
                break
            count += 1
        return count

    def take(self, shared: Sequence[int], private: int) -> bool:
        """Hold known blocks ``shared`` and ``private`` new ones; all or nothing. False if they do not fit."""
        revived = sum(digest in self._idle for digest in shared)
        if revived + private > self.capacity - self.used:
            return False
        for digest in shared:
            self._idle.pop(digest, None)
            self._held[digest] = self._held.get(digest, 0) + 1
        self._private += private
        while self.used + len(self._idle) > self.capacity:
            self._idle.popitem(last=False)
        return True

    def commit(self, digest: int) -> bool:
        """A private block became full: make it known. False (it stays private) if its content is known already."""
        if digest in self._held or digest in self._idle:
            return False
        self._private -= 1
        self._held[digest] = 1
        return True

    def release(self, shared: Iterable[int], private: int) -> None:
        """Give blocks back. The end of a sequence goes first in the order of eviction: prefixes live longer."""
        self._private -= private
        for digest in reversed(list(shared)):
            left = self._held[digest] - 1
            if left:
                self._held[digest] = left
            else:
                del self._held[digest]
                self._idle[digest] = None

    def clear(self) -> None:
        """Forget the idle blocks (a reset of the prefix cache)."""
        self._idle.clear()

"""The one place where tasks are made: each is known until it ends, so none is lost and all can be ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """The outer boundary of one step of a loop that must never end: a step that fails is logged, the next one comes."""
    try:
        yield
    except Exception:
        logger.exception("%s failed", what)


class Tasks:
    """The data path's tasks."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    @staticmethod
    def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` for an owner that knows it until it ends, and lets nothing escape from it: no book is kept."""
        return asyncio.get_running_loop().create_task(work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work``; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, within_s: float = 5.0) -> None:
        """Cancel what still runs and wait for it, at most ``within_s``."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task failed", exc_info=task.exception())

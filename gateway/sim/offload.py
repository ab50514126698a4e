"""Big work away from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

THREAD_BYTES = 32_768

_T = TypeVar("_T")


def offload(size_bytes: int, work: Callable[[], _T], then: Callable[[Callable[[], _T]], None]) -> None:
    """Call ``then`` with a function that returns what ``work`` returned, or raises what it raised.

    Work on ``THREAD_BYTES`` or more is done in a thread, so that the loop goes on streaming; less is done at once.
    """
    if size_bytes < THREAD_BYTES:
        then(work)
        return
    future = asyncio.get_running_loop().run_in_executor(None, work)
    future.add_done_callback(lambda done: None if done.cancelled() else then(done.result))

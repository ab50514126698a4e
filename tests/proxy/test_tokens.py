"""What the data path keeps in memory: learned estimates and tasks, both bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.domain import TextSize
from gateway.proxy.stored import RESPONSES_MAX, Stored, StoredResponses
from gateway.proxy.tasks import Tasks
from gateway.proxy.tokens import KEYS_MAX, TokenEstimator
from gateway.testing.loop import NothingLeft, VirtualLoop


def test_a7_a_hundred_thousand_keys_are_not_remembered() -> None:
    tokens = TokenEstimator()
    for i in range(3 * KEYS_MAX):
        tokens.learn(TextSize(narrow=4_000), 2_000, f"key-{i}")
        tokens.learn(TextSize(narrow=4_000), 2_000, "steady")
    kept = (getattr(tokens, name) for name in dir(tokens) if not name.startswith("__"))
    sizes = [len(part) for part in kept if isinstance(part, dict)]
    assert sizes
    assert max(sizes) <= KEYS_MAX
    steady = tokens.estimate(TextSize(narrow=4_000), "steady")
    assert steady.prompt == pytest.approx(2_000, rel=0.1)


def test_a_key_learns_although_not_every_prompt_is_taken_in() -> None:
    tokens = TokenEstimator()
    for actual in (1_000, 2_000):  # what it writes changes
        for _ in range(400):
            tokens.learn(TextSize(narrow=4_000), actual, "k")
        assert tokens.estimate(TextSize(narrow=4_000), "k").prompt == pytest.approx(actual, rel=0.1)


def test_a7_stored_responses_are_bounded_and_a_teams_own() -> None:
    stored = StoredResponses()
    for i in range(RESPONSES_MAX + 10):
        stored.put(f"resp-{i}", Stored("chat", "qwen", "r0"))
    assert stored.find("resp-9", "chat") is None
    assert stored.find("resp-10", "chat") == Stored("chat", "qwen", "r0")
    assert stored.find("resp-10", "others") is None
    assert stored.find(None, "chat") is None


def test_tasks_are_known_until_they_end_and_closing_ends_them(loop: VirtualLoop) -> None:
    tasks = Tasks()
    ended = []

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)

    async def main() -> None:
        tasks.spawn(work("short", 1.0))
        tasks.spawn(work("long", 1_000.0))
        await asyncio.sleep(2.0)
        assert (len(tasks), ended) == (1, ["short"])
        await tasks.close()
        assert (len(tasks), ended) == (0, ["short", "long"])

    loop.run_until_complete(main())


def test_what_a_task_raises_is_logged(loop: VirtualLoop, caplog: Any) -> None:
    tasks = Tasks()

    async def fails() -> None:
        raise ValueError("on purpose")

    async def main() -> None:
        tasks.spawn(fails())
        await asyncio.sleep(0.1)

    loop.run_until_complete(main())
    assert "on purpose" in caplog.text
    assert len(tasks) == 0


def test_the_virtual_loop_jumps_and_tells_what_can_never_happen(loop: VirtualLoop) -> None:
    before = loop.time()
    loop.run_until_complete(asyncio.sleep(1_000_000.0))
    assert loop.time() - before == pytest.approx(1_000_000.0)

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    task = loop.create_task(never())
    with pytest.raises(NothingLeft):
        loop.run_until_complete(task)
    task.cancel()
    loop.run_until_complete(asyncio.sleep(0))

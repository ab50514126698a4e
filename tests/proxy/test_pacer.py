"""Bad keys are slowed, address by address, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from gateway.proxy.pacer import Pacer

T = TypeVar("T")


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Runner:
    def __init__(self, loop: SkippingLoop) -> None:
        self.loop = loop

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)


@pytest.fixture
def run() -> Iterator[Runner]:
    loop = SkippingLoop()
    yield Runner(loop)
    assert not asyncio.all_tasks(loop)
    loop.close()


async def timed(pacer: Pacer, address: str = "192.0.2.1") -> tuple[bool, float]:
    """The pacer's answer, and how many seconds it took."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    return await pacer.hold(address), loop.time() - before


def test_g4_the_first_bad_keys_of_a_minute_are_free(run: Runner) -> None:
    pacer = Pacer(per_minute=10)
    assert [run(timed(pacer)) for _ in range(10)] == [(True, 0.0)] * 10


def test_g4_further_ones_wait_but_not_for_long(run: Runner) -> None:
    pacer = Pacer(per_minute=10, wait_max_s=5.0)

    async def guess() -> list[float]:
        return [(await timed(pacer))[1] for _ in range(40)]

    waits = run(guess())
    assert waits[:10] == [0.0] * 10
    assert all(0.0 < wait <= 5.001 for wait in waits[10:])
    assert sum(waits) >= 30 * 3.0  # twenty a minute instead of as many as the network carries


def test_a_minute_of_peace_is_forgiven(run: Runner) -> None:
    pacer = Pacer(per_minute=10)
    for _ in range(11):
        run(pacer.hold("192.0.2.1"))
    run.loop.now_s += 60
    assert run(timed(pacer)) == (True, 0.0)


def test_addresses_do_not_slow_each_other(run: Runner) -> None:
    pacer = Pacer(per_minute=1)
    run(pacer.hold("192.0.2.1"))
    assert run(timed(pacer, "192.0.2.2")) == (True, 0.0)
    assert run(timed(pacer, "192.0.2.1"))[1] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("", "", True),
        ("unix:" + "x" * 1_000, "unix:" + "x" * 2_000, True),
        ("testclient", "otherclient", False),
    ],
)
def test_what_counts_as_one_address(run: Runner, first: str, second: str, same: bool) -> None:
    pacer = Pacer(per_minute=1)
    run(pacer.hold(first))
    assert (run(timed(pacer, second))[1] > 0) is same


def test_waiters_of_one_address_are_bounded(run: Runner) -> None:
    pacer = Pacer(per_minute=1, waiters_per_address=8)

    async def storm() -> list[tuple[bool, float]]:
        return await asyncio.gather(*(timed(pacer) for _ in range(100)))

    answers = run(storm())
    assert answers[0] == (True, 0.0)
    assert [held for held, _ in answers].count(True) == 9
    assert all(wait == 0.0 for held, wait in answers if not held)
    assert run(storm())[0][0] is True  # the places are free again


def test_waiters_in_all_are_bounded(run: Runner) -> None:
    pacer = Pacer(per_minute=1, waiters_max=5)

    async def storm() -> list[bool]:
        addresses = [f"192.0.2.{i}" for i in range(20)]
        for address in addresses:
            await pacer.hold(address)
        return await asyncio.gather(*(pacer.hold(address) for address in addresses))

    assert run(storm()).count(True) == 5


def test_a4_who_leaves_while_waiting_frees_the_place(run: Runner) -> None:
    pacer = Pacer(per_minute=1, waiters_per_address=1, waiters_max=1)

    async def leave() -> bool:
        await pacer.hold("192.0.2.1")
        waiting = asyncio.create_task(pacer.hold("192.0.2.1"))
        await asyncio.sleep(1)
        assert await pacer.hold("192.0.2.1") is False
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return await pacer.hold("192.0.2.1")

    assert run(leave()) is True


def test_a7_addresses_are_bounded_and_the_latest_remembered(run: Runner) -> None:
    pacer = Pacer(per_minute=1, addresses_max=100)

    async def visit() -> None:
        for i in range(10_000):
            await pacer.hold(f"10.0.{i // 256}.{i % 256}")

    run(visit())
    assert len(pacer._visitors) == 100
    assert run(timed(pacer, "10.0.39.15"))[1] > 0  # the last one
    assert run(timed(pacer, "10.0.0.0"))[1] == 0  # long forgotten

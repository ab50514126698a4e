"""A workload's users and arrivals as tasks, and a ``Call`` for everything they ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable

from loadtests.report.result import OK, UNFINISHED, Call
from loadtests.report.summary import Gaps
from loadtests.runner.client import Client, Exchange, Trouble
from loadtests.workloads.ask import Ask, Due, Reply, User, Workload


class Drive:
    """One run of ``workload``. Everything ends with ``finish``; ``calls`` and ``gaps`` fill as it goes.

    The workload's seconds pass ``speed`` times as fast as real ones. At most ``asks_max`` requests are sent, each
    for at most ``call_s_max`` (workload seconds).
    """

    def __init__(
        self, workload: Workload, client: Client, *, speed: float, asks_max: int, call_s_max: float = 1_800.0
    ) -> None:
        self._workload = workload
        self._client = client
        self._speed = speed
        self._asks_left = asks_max
        self._call_s_max = call_s_max
        self._loop = asyncio.get_running_loop()
        self._origin_s = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sources: set[asyncio.Task[None]] = set()
        self.calls: list[Call] = []
        self.open: dict[str, Call] = {}
        self.gaps = Gaps()
        self.cut_short = False  # asks_max was reached
        self._fault: BaseException | None = None

    @property
    def now_s(self) -> float:
        """Workload seconds since the start."""
        return (time.monotonic() - self._origin_s) * self._speed

    def start(self) -> None:
        """Let everybody begin now."""
        self._origin_s = time.monotonic()
        for user in self._workload.users:
            self._begin(self._user(user), self._sources)
        for arrivals in self._workload.arrivals:
            self._begin(self._arrive(arrivals), self._sources)

    async def finish(self, drain_s: float) -> None:
        """Wait until nobody asks any more and, ``drain_s`` longer, for the last answers; then cut what is left."""
        try:
            left_s = self._workload.seconds + drain_s - self.now_s
            async with asyncio.timeout(max(0.0, left_s) / self._speed):
                while self._sources or self._tasks:
                    await asyncio.wait(self._sources | self._tasks)
                    self._raise_faults()
        except TimeoutError:
            pass
        finally:
            await self.cut()

    async def cut(self) -> None:
        """End every source and every call now; calls under way are *unfinished*."""
        left = self._sources | self._tasks
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def _begin(self, work: Coroutine[None, None, None], where: set[asyncio.Task[None]]) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        where.add(task)
        task.add_done_callback(where.discard)
        task.add_done_callback(self._note_fault)

    async def _user(self, user: User) -> None:
        due = user.first()
        while due is not None:
            request = self._client.target.request(due.ask)  # before its time: writing a long prompt takes a while
            await self._until(due.at_s)
            if not self._may_ask():
                return
            reply = await self._ask(due, request)
            due = user.then(self.now_s, reply)

    async def _arrive(self, arrivals: Iterable[Due]) -> None:
        for due in arrivals:
            request = self._client.target.request(due.ask)
            await self._until(due.at_s)
            if not self._may_ask():
                return
            self._begin(self._one(due, request), self._tasks)

    async def _one(self, due: Due, request: bytes) -> None:
        await self._ask(due, request)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self.now_s) / self._speed)

    def _may_ask(self) -> bool:
        self._asks_left -= 1
        self.cut_short = self.cut_short or self._asks_left < 0
        return self._asks_left >= 0

    async def _ask(self, due: Due, request: bytes) -> Reply:
        ask, exchange = due.ask, Exchange(stream=due.ask.stream)
        call = Call.begun(due, self.now_s)
        self.calls.append(call)
        self.open[call.id] = call
        trouble: Trouble | None = None
        call.outcome = UNFINISHED
        try:
            patience_s, total_s = ask.patience_s / self._speed, self._call_s_max / self._speed
            await self._client.exchange(request, exchange, patience_s, total_s)
            call.outcome = OK
        except Trouble as met:
            trouble = met
            call.outcome = str(met)
        finally:
            del self.open[call.id]
            self._note(call, exchange)
        retry_after_s = trouble.retry_after_s * self._speed if trouble and trouble.retry_after_s is not None else None
        return Reply(trouble is None, _tokens(ask, exchange), exchange.answer.text, retry_after_s)

    def _note(self, call: Call, exchange: Exchange) -> None:
        """What the answer showed, in workload seconds."""
        answer, usage = exchange.answer, exchange.answer.usage
        call.ended_s = None if call.outcome == UNFINISHED else self.now_s
        call.first_s = None if answer.first_s is None else (answer.first_s - self._origin_s) * self._speed
        call.chunks = answer.chunks
        call.replica = exchange.replica
        if usage is not None:
            call.prompt_tokens, call.completion_tokens = usage.prompt_tokens, usage.completion_tokens
            call.cached_tokens = usage.cached_tokens
        self.gaps.add(call, [gap_s * self._speed for gap_s in answer.gaps])

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = error

    def _raise_faults(self) -> None:
        if self._fault is not None:
            raise self._fault


def _tokens(ask: Ask, exchange: Exchange) -> int:
    usage = exchange.answer.usage
    return usage.completion_tokens if usage is not None else min(ask.output_tokens, exchange.answer.chunks)

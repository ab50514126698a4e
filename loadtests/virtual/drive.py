"""A workload's users and arrivals in virtual time, and a ``Call`` for everything they ask: as ``runner.drive`` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import ceil

from gateway.errors import GatewayError
from loadtests.report.result import OK, UNFINISHED, Call
from loadtests.report.summary import Gaps
from loadtests.virtual.server import Refused
from loadtests.virtual.trip import Answer, Gateway
from loadtests.workloads.ask import Ask, Due, Reply, User, Workload


class Drive:
    """One run of ``workload``; good for one ``run``. At most ``asks_max`` asks, each of at most ``call_s_max``.

    Every ask is ``late_s()`` seconds late. ``keepalive_s`` is the gateway's (0: never).
    """

    def __init__(
        self,
        workload: Workload,
        gateway: Gateway,
        *,
        asks_max: int,
        keepalive_s: float,
        late_s: Callable[[], float],
        call_s_max: float = 1_800.0,
    ) -> None:
        self._workload = workload
        self._gateway = gateway
        self._asks_left = asks_max
        self._keepalive_s = keepalive_s
        self._late_s = late_s
        self._call_s_max = call_s_max
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self.calls: list[Call] = []
        self.gaps = Gaps()
        self.cut_short = False  # asks_max was reached

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self._loop.time() - self._origin_s

    async def run(self, drain_s: float) -> None:
        """Let everybody ask; ``drain_s`` after the workload's end whatever is under way is cut (*unfinished*)."""
        self._origin_s = self._loop.time()
        try:
            async with asyncio.timeout(self._workload.seconds + drain_s), asyncio.TaskGroup() as group:
                for user in self._workload.users:
                    group.create_task(self._user(user))
                for arrivals in self._workload.arrivals:
                    group.create_task(self._arrive(arrivals, group))
        except TimeoutError:
            pass

    async def _user(self, user: User) -> None:
        due = user.first()
        while due is not None:
            await self._until(due.at_s)
            if not self._may_ask():
                return
            reply = await self._ask(due)
            due = user.then(self.now_s, reply)

    async def _arrive(self, arrivals: Iterable[Due], group: asyncio.TaskGroup) -> None:
        for due in arrivals:
            await self._until(due.at_s)
            if not self._may_ask():
                return
            group.create_task(self._one(due))

    async def _one(self, due: Due) -> None:
        await self._ask(due)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self.now_s) + self._late_s())

    def _may_ask(self) -> bool:
        self._asks_left -= 1
        self.cut_short = self.cut_short or self._asks_left < 0
        return self._asks_left >= 0

    async def _ask(self, due: Due) -> Reply:
        ask, answer = due.ask, Answer(self._loop)
        call = Call.begun(due, self.now_s)
        self.calls.append(call)
        call.outcome, retry_after_s = UNFINISHED, None
        try:
            await self._served(ask, answer)
            call.outcome = OK
        except TimeoutError:
            late = "no first token in time" if answer.first_s is None else "took too long"
            call.outcome = f"client left: {late}"
        except GatewayError as error:
            cut = answer.first_s is not None or self._has_head(ask, call)
            call.outcome = f"error in the answer: {error.code}" if cut else f"{error.status} {error.code}"
            if error.retry_after_s is not None and not cut:
                retry_after_s = float(max(1, ceil(error.retry_after_s)))  # as the header says it
        except Refused as refusal:
            call.outcome = str(refusal)
        finally:
            self._note(call, answer)
        return Reply(call.outcome == OK, answer.tokens, retry_after_s=retry_after_s)

    def _has_head(self, ask: Ask, call: Call) -> bool:
        """Whether the gateway has begun the answer to keep the client waiting: then its status was 200."""
        return ask.stream and 0 < self._keepalive_s <= self.now_s - call.sent_s

    async def _served(self, ask: Ask, answer: Answer) -> None:
        """The client's patience around the gateway. Raises ``TimeoutError`` when it leaves, and what ``serve`` does."""
        latest_s = self._loop.time() + self._call_s_max
        async with asyncio.timeout(min(ask.patience_s, self._call_s_max)) as patience:
            if ask.stream:
                answer.on_first.append(lambda: patience.reschedule(latest_s))
            await self._gateway.serve(ask, answer)

    def _note(self, call: Call, answer: Answer) -> None:
        """What the answer showed."""
        call.ended_s = None if call.outcome == UNFINISHED else self.now_s
        call.chunks = answer.chunks
        call.replica = answer.replica
        if call.outcome == OK:
            call.ended_s = answer.last_s - self._origin_s
            call.prompt_tokens, call.completion_tokens = call.asked_prompt, answer.tokens
            call.cached_tokens = answer.cached_tokens
        if answer.first_s is not None:
            call.first_s = answer.first_s - self._origin_s
        self.gaps.add(call, answer.gaps)

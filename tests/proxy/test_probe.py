"""The prober, over replicas that answer what a test says, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.clock import LoopClock
from gateway.domain import Estimate
from gateway.policy.health import Breaker
from gateway.proxy.model import Model
from gateway.proxy.pool import Replica
from gateway.proxy.probe import Prober
from gateway.proxy.tasks import Tasks
from gateway.testing.loop import VirtualLoop
from tests.proxy.world import model_spec, replica_spec

MODELS = {"data": [{"id": "qwen", "max_model_len": 32_768}, {"id": "other", "max_model_len": 5}]}
METRICS = 'vllm:num_requests_running{model_name="qwen"} 3.0\nvllm:num_requests_waiting{model_name="qwen"} 1.0\n'


class Fleet:
    """Replicas of one model; ``pages`` says what each host answers on each path (an error is raised)."""

    def __init__(self, loop: VirtualLoop, *names: str) -> None:
        self.loop = loop
        self.tasks = Tasks()
        self.model = Model(model_spec(*(replica_spec(name) for name in names)), LoopClock(loop))
        self.pages: dict[tuple[str, str], Any] = {}
        self.asked: list[tuple[str, str]] = []
        self.prober = Prober(self.tasks, LoopClock(loop), interval_s=2.0, timeout_s=2.0)
        self.run(self.prober._client.aclose())
        self.prober._client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        where = (request.url.host, request.url.path)
        self.asked.append(where)
        page = self.pages.get(where, {"/health": "", "/v1/models": MODELS, "/metrics": METRICS}[request.url.path])
        if isinstance(page, Exception):
            raise page
        if isinstance(page, int):
            return httpx.Response(page)
        return httpx.Response(200, json=page) if isinstance(page, dict) else httpx.Response(200, text=page)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def start(self) -> None:
        self.run(self.prober.first_round([self.model]))

        async def follow() -> None:
            self.prober.follow([self.model])

        self.run(follow())

    def __getitem__(self, name: str) -> Replica:
        return self.model.pool.replicas[name]


@pytest.fixture
def fleet(loop: VirtualLoop) -> Iterator[Fleet]:
    fleet = Fleet(loop, "a", "b")
    yield fleet
    fleet.run(fleet.prober.close())
    fleet.advance(0.1)
    assert len(fleet.tasks) == 0


def test_the_first_round_finds_context_and_load(fleet: Fleet) -> None:
    fleet.start()
    assert fleet["a"].probe.up is True
    assert fleet["a"].context_tokens == 32_768
    stats = fleet["a"].stats
    assert stats is not None
    assert (stats.running, stats.waiting) == (3.0, 1.0)


def test_a_configured_context_wins(fleet: Fleet) -> None:
    fleet.model.apply(model_spec(replica_spec("a", context_tokens=8_000), replica_spec("b")))
    fleet.start()
    assert [replica.context_tokens for replica in fleet.model.pool] == [8_000, 32_768]


@pytest.mark.parametrize("page", [503, 500, 404, httpx.ConnectError("refused")])
def test_e8_a_replica_that_says_no_is_down_at_once_and_back_within_two_probes(fleet: Fleet, page: Any) -> None:
    fleet.start()
    fleet.pages["a", "/health"] = page
    fleet.advance(2.1)
    assert fleet["a"].probe.up is False
    assert not fleet["a"].available
    assert fleet["b"].available
    del fleet.pages["a", "/health"]
    fleet.advance(4.0)
    assert fleet["a"].available


@pytest.mark.parametrize("page", [httpx.ReadTimeout("slow"), httpx.ReadError("cut"), httpx.RemoteProtocolError("odd")])
def test_e8_silence_counts_from_the_second_time(fleet: Fleet, page: Exception) -> None:
    fleet.start()
    fleet.pages["a", "/health"] = page
    fleet.advance(2.1)
    assert fleet["a"].available
    fleet.advance(2.0)
    assert not fleet["a"].available
    assert fleet["a"].status().why_down


@pytest.mark.parametrize("page", [500, 404, "no metrics at all", "\x00\xff{", httpx.ReadTimeout("slow")])
@pytest.mark.parametrize("path", ["/metrics", "/v1/models"])
def test_d4_a_replica_whose_pages_cannot_be_read_still_serves(fleet: Fleet, path: str, page: Any) -> None:
    fleet.pages["a", path] = page
    fleet.start()
    fleet.advance(5.0)
    assert fleet["a"].available
    assert len(fleet.tasks) == 2  # nobody stopped looking


def test_e8_the_return_closes_the_breaker_and_seats_waiters(fleet: Fleet) -> None:
    from gateway.domain import CallClass, Need

    fleet.model.apply(model_spec(replica_spec("a", 1)))
    fleet.start()

    async def enter() -> Any:
        return await fleet.model.gate.enter(Need(CallClass.SHORT, Estimate(1, 1, 1), 0, 1), "team")

    first = fleet.run(enter())
    waiting = fleet.loop.create_task(enter())
    fleet.advance(0.1)
    fleet.pages["a", "/health"] = 503
    fleet.advance(2.1)
    first.permit.release()
    fleet.advance(0.1)
    assert not waiting.done()
    fleet["a"].breaker = Breaker(5, fleet.loop.time())
    del fleet.pages["a", "/health"]
    fleet.advance(2.1)
    assert waiting.done()
    waiting.result().permit.release()


def test_e6_a_removed_replica_is_probed_no_more_and_a_new_one_is(fleet: Fleet) -> None:
    fleet.start()
    fleet.model.apply(model_spec(replica_spec("b"), replica_spec("c")))

    async def follow() -> None:
        fleet.prober.follow([fleet.model])

    fleet.run(follow())
    fleet.advance(2.5)
    fleet.asked.clear()
    fleet.advance(4.0)
    assert {host for host, _ in fleet.asked} == {"b", "c"}


def test_the_context_is_read_again_now_and_then_and_after_a_return(fleet: Fleet) -> None:
    fleet.start()
    fleet.pages["a", "/v1/models"] = {"data": [{"id": "qwen", "max_model_len": 65_536}]}
    fleet.advance(10.0)
    assert fleet["a"].context_tokens == 32_768
    fleet.advance(25.0)
    assert fleet["a"].context_tokens == 65_536
    fleet.pages["a", "/health"] = 503
    fleet.advance(2.0)
    fleet.pages = {("a", "/v1/models"): {"data": [{"id": "qwen", "max_model_len": 1_024}]}}
    fleet.advance(2.1)
    assert fleet["a"].context_tokens == 1_024

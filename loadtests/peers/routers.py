"""The routers of vLLM and SGLang: Rust behind a Python command. Two forks of one program with like options."""

from __future__ import annotations

from typing import ClassVar

from loadtests.bench.processes import free_port
from loadtests.bench.target import Site
from loadtests.peers.environment import Environment
from loadtests.peers.peer import LOOPBACK, TIMEOUT_S, Packaged, without_internet


class _Router(Packaged):
    """Queue, breaker, retries and thresholds are left as they come."""

    policy: ClassVar[str]
    program: ClassVar[tuple[str, ...]]
    log_level: ClassVar[str]
    ready_path = "/readiness"

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        where = ["--host", LOOPBACK, "--port", str(site.port), "--worker-urls", *site.upstream_urls]
        page = ["--prometheus-host", LOOPBACK, "--prometheus-port", str(free_port())]
        choice = ["--policy", self.policy, "--request-timeout-secs", str(TIMEOUT_S), "--log-level", self.log_level]
        first, *others = self.program
        return without_internet([str(self.environment.program(first)), *others, *where, *choice, *page])


class VllmCacheAware(_Router):
    """vLLM's router: an approximate prefix tree for each replica, shortest queue when the load is uneven."""

    name = "vllm-router"
    policy = "cache_aware"
    program = ("vllm-router",)
    log_level = "warning"
    distribution = "vllm-router"
    environment = Environment("vllm-router", ("vllm-router>=0.1.17,<0.2",))


class VllmRoundRobin(VllmCacheAware):
    """vLLM's router, each replica in turn."""

    name = "vllm-router-rr"
    policy = "round_robin"


class SglangCacheAware(_Router):
    """SGLang's router, the same way."""

    name = "sglang-router"
    policy = "cache_aware"
    program = ("sglang-router", "launch")
    log_level = "warn"
    distribution = "sglang-router"
    environment = Environment("sglang-router", ("sglang-router>=0.3.2,<0.4",))

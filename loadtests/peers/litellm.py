"""LiteLLM's proxy: least-busy routing, context-window filter on, no database, one worker."""

from __future__ import annotations

import msgspec

from loadtests.bench.target import Site
from loadtests.peers.environment import Environment
from loadtests.peers.peer import LOOPBACK, TIMEOUT_S, Packaged, without_internet


class LiteLLM(Packaged):
    """See the module. Its cost map comes with the package (it would be fetched at the start otherwise)."""

    name = "litellm"
    distribution = "litellm"
    environment = Environment("litellm", ("litellm[proxy]>=1.100,<2",))
    ready_path = "/health/readiness"
    speed_max = 2.0

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        config = site.folder / "litellm.yaml"
        config.write_bytes(msgspec.json.encode(self._config(site)))  # JSON is YAML
        program = [str(self.environment.program("litellm")), "--config", str(config)]
        where = ["--host", LOOPBACK, "--port", str(site.port), "--num_workers", "1"]
        open_ = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}  # no keys: on loopback, for minutes
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
        return without_internet([*program, *where], **open_, **quiet)

    @staticmethod
    def _config(site: Site) -> dict[str, object]:
        deployments = []
        for number, url in enumerate(site.upstream_urls):
            upstream = {"model": f"openai/{site.model}", "api_base": f"{url}/v1", "api_key": "none"}
            known = {"max_input_tokens": site.contexts[number]} if site.contexts else {}
            deployments.append(
                {"model_name": site.model, "litellm_params": upstream, "model_info": {"id": f"r{number}", **known}}
            )
        routing = {"routing_strategy": "least-busy", "enable_pre_call_checks": True, "timeout": TIMEOUT_S}
        return {
            "model_list": deployments,
            "router_settings": {**routing, "stream_timeout": TIMEOUT_S},
            "litellm_settings": {"request_timeout": TIMEOUT_S, "telemetry": False},
        }

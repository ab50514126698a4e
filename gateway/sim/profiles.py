"""Profiles of measured deployments: what one simulated vLLM server of each kind is and how fast.

Decode steps are the measured totals turned round (batch / tokens per second); prefill costs are fitted to the mean and
marginal rates by position (a straight line in position is within 6 % of every measured point); the fixed intake time
and the intake per token explain the time to first token of a calm server and what a fully cached prompt still costs.

D5 has no measured speeds. Its card is taken to be to D4 what D4 is to D3 (half the cards: 0.73 of the single-stream
and prefill speed, 0.69 of the saturated total), and its KV capacity and context are the reported ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.sim.spec import EngineSpec, Pace


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of vLLM server.

    ``intake_base_s`` and ``intake_token_s`` are spent between the arrival of a request and the engine's queue (HTTP,
    chat template, tokeniser, hashing), once and per prompt token; they occupy no engine step.
    """

    name: str
    hardware: str
    max_model_len: int
    engine: EngineSpec
    pace: Pace
    intake_base_s: float
    intake_token_s: float

    def intake_s(self, prompt_tokens: int) -> float:
        """Seconds until a prompt of this size reaches the engine."""
        return self.intake_base_s + self.intake_token_s * prompt_tokens


D3 = Profile(
    name="D3",
    hardware="4x RTX 4090 (PCIe), 27B AWQ-INT4, TP=4, FP8 KV",
    max_model_len=262_144,
    engine=EngineSpec(max_num_seqs=128, max_num_batched_tokens=6_144, long_prefill_tokens=5_120, kv_tokens=1_629_008),
    pace=Pace(
        decode_steps=((1, 0.00915), (16, 0.0196), (48, 0.0272), (96, 0.0437), (128, 0.0554)),
        kv_read_s=14e-9,
        prefill_s=197e-6,
        prefill_position_s=1.36e-9,
    ),
    intake_base_s=0.38,
    intake_token_s=7.3e-6,
)

D4 = Profile(
    name="D4",
    hardware="2x RTX 4090, 27B AWQ-INT4, TP=2, FP8 KV",
    max_model_len=262_144,
    engine=EngineSpec(max_num_seqs=64, max_num_batched_tokens=6_144, long_prefill_tokens=5_120, kv_tokens=469_008),
    pace=Pace(
        decode_steps=((1, 0.0125), (16, 0.023), (64, 0.0405)),
        kv_read_s=30e-9,
        prefill_s=281e-6,
        prefill_position_s=2.04e-9,
    ),
    intake_base_s=0.38,
    intake_token_s=7.3e-6,
)

D5 = Profile(
    name="D5",
    hardware="1x RTX 4090, 27B AWQ-INT4, one of several single-card replicas, FP8 KV",
    max_model_len=131_072,
    engine=EngineSpec(max_num_seqs=64, max_num_batched_tokens=3_072, long_prefill_tokens=2_048, kv_tokens=208_000),
    pace=Pace(
        decode_steps=((1, 0.0171), (16, 0.032), (64, 0.059)),
        kv_read_s=60e-9,
        prefill_s=386e-6,
        prefill_position_s=2.8e-9,
    ),
    intake_base_s=0.38,
    intake_token_s=7.3e-6,
)

PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in (D3, D4, D5)})

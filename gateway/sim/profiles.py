"""Profiles of measured deployments: what one simulated vLLM server of each kind is and how fast.

Decode steps are the measured totals turned round (batch / tokens per second); prefill costs are fitted to the mean and
marginal rates by position (a straight line in position is within 6 % of every measured point); the fixed intake time
and the intake per token explain the time to first token of a calm server and what a fully cached prompt still costs.

D1 is known by four log lines and 40-75 tokens/s a request. Its decode step starts near those 75 tokens/s; its prefill
cost is fitted to the log lines (of computed prompt tokens, as vLLM logs them); its KV capacity is what 7 requests of
42K tokens fill to 17 %, which is also what D4's capacity and 16 GB more on two cards come to.

D2 runs two draft tokens, of which 65-90 % are accepted. Its decode steps follow from the reported times per token, and
its 55 sequences from the times to first token at 64 requests: nine of them wait at any moment (``python -m loadtests
calibrate`` shows the rows). Its KV capacity is not reported: two and a half full-length requests are assumed.

D5 has no measured speeds. Its card is taken to be to D4 what D4 is to D3 (half the cards: 0.73 of the single-stream
and prefill speed, 0.69 of the saturated total), and its KV capacity and context are the reported ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.sim.spec import EngineSpec, Pace, Speculation


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of vLLM server: ``engines`` data-parallel engines, each as ``engine`` says, behind one address.

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
    engines: int = 1

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a server without an engine."""
        if self.engines < 1:
            raise ValueError("a server has at least one engine")

    def intake_s(self, prompt_tokens: int) -> float:
        """Seconds until a prompt of this size reaches the engine."""
        return self.intake_base_s + self.intake_token_s * prompt_tokens


D1 = Profile(
    name="D1",
    hardware="4x RTX 5090, 27B NVFP4, two data-parallel engines of TP=2 behind one server, FP8 KV",
    max_model_len=131_072,
    engine=EngineSpec(max_num_seqs=64, max_num_batched_tokens=8_192, kv_tokens=860_000),
    pace=Pace(
        decode_steps=((1, 0.0125), (4, 0.0158), (64, 0.042)),
        kv_read_s=12e-9,
        prefill_s=97e-6,
        prefill_position_s=0.41e-9,
    ),
    intake_base_s=0.06,
    intake_token_s=3e-6,
    engines=2,
)

D2 = Profile(
    name="D2",
    hardware="2x RTX 4090, 35B-A3B AWQ 4-bit MoE, TP=2, MTP with 2 speculative tokens",
    max_model_len=262_144,
    engine=EngineSpec(
        max_num_seqs=55,
        max_num_batched_tokens=8_192,
        kv_tokens=655_360,
        speculation=Speculation(draft_tokens=2, chance_low=0.745, chance_high=0.932),
    ),
    pace=Pace(
        decode_steps=((1, 0.011), (8, 0.0197), (16, 0.0238), (32, 0.0385), (64, 0.061)),
        kv_read_s=2.4e-9,
        prefill_s=50e-6,
        prefill_position_s=0.3e-9,
    ),
    intake_base_s=0.032,
    intake_token_s=3e-6,
)

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

PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in (D1, D2, D3, D4, D5)})

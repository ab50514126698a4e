"""Rows of D3, D4 and D5: bursts of short requests, long prompts alone and together, capacities."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from gateway.sim.profiles import D3, D4, D5, Profile
from loadtests.calibrate.loads import Burst, beside_s, burst, marginal_rate, percentile, prefill_s, repeat_s, together
from loadtests.calibrate.table import Row

_PROMPT, _OUTPUT = (
    28,
    256,
)  # 48 first tokens came within 0.7 s; 64 answers take the 11 s after which the 65th was served
_BURST = "28 in, 256 out, all sent at once"
_DECODING = f"{_BURST}; tokens while all of them decode"
_UNIQUE = "unique text, max_tokens=1, alone"
_TOGETHER = "2K out each; the second begins before the first ends"
_A_LITTLE_OVER = "as set; the report says a little over 200K"
_REPEATED = 44_500  # tokens that take 11.05 s


@cache
def _burst(profile: Profile, count: int) -> Burst:
    return burst(profile, count, _PROMPT, _OUTPUT)


@cache
def _prefill_s(profile: Profile, tokens: int) -> float:
    return prefill_s(profile, tokens)


@cache
def _repeat_s() -> tuple[float, float]:
    return repeat_s(D3, _REPEATED)


def decode_rows() -> list[Row]:
    """Totals and times to first token by requests at once."""
    rows: list[Row] = []
    for count, total, ttft_s in (
        (1, 108, None),
        (16, 803, None),
        (48, 1_734, 0.69),
        (96, 2_165, 0.96),
        (128, 2_274, 1.11),
    ):
        rows.append(_row(D3, f"{count} at once: total", "tok/s", total, _decode_rate(D3, count), _DECODING))
        if ttft_s is not None:
            rows.append(_row(D3, f"{count} at once: TTFT p95", "s", ttft_s, _ttft_p95(D3, count), _BURST))
    rows += [
        _row(D3, "128 at once: each", "tok/s", 18, lambda: _burst(D3, 128).decode_rate / 128, _DECODING),
        Row("D3", "saturated", "tok/s", 2_300, 2_500, _decode_rate(D3, 128), f"{_DECODING}; 128 at once"),
        _row(D4, "alone", "tok/s", 79, _decode_rate(D4, 1), _DECODING),
        _row(D4, "saturated", "tok/s", 1_560, _decode_rate(D4, 64), f"{_DECODING}; 64 at once"),
        Row("D4", "96 at once: TTFT p95", "s", 11, 13, _ttft_p95(D4, 96), _BURST),
        Row("D4", "128 at once: TTFT p95", "s", 11, 13, _ttft_p95(D4, 128), _BURST),
    ]
    return rows


def prefill_rows() -> list[Row]:
    """Rates by position, whole prompts, the prefix cache, and a chat beside a long prompt."""
    rows = [
        Row("D3", "8K prefill: mean", "tok/s", 4_100, 4_300, _mean_rate(D3, 8_192), _UNIQUE),
        Row("D3", "32K prefill: mean", "tok/s", 4_100, 4_300, _mean_rate(D3, 32_768), _UNIQUE),
        _row(D3, "128K prefill: mean", "tok/s", 3_406, _mean_rate(D3, 128_000), _UNIQUE),
        _row(D3, "240K prefill: mean", "tok/s", 2_620, _mean_rate(D3, 240_000), _UNIQUE),
        _row(
            D3, "8K-32K prefill: marginal", "tok/s", 4_400, lambda: marginal_rate(D3, 16_000), "at 16K, 2K either side"
        ),
        _row(D3, "128K prefill: marginal", "tok/s", 2_757, lambda: marginal_rate(D3, 128_000), "2K either side"),
        _row(D3, "240K prefill: marginal", "tok/s", 1_872, lambda: marginal_rate(D3, 240_000), "2K either side"),
        _row(D3, "240K prompt", "s", 89.7, lambda: _prefill_s(D3, 240_000), _UNIQUE),
        _row(D4, "240K prompt", "s", 128.7, lambda: _prefill_s(D4, 240_000), _UNIQUE),
        _row(D4, "peak prefill", "tok/s", 3_200, lambda: marginal_rate(D4, 10_000), "marginal at 10K, 2K either side"),
        _row(D3, "prompt seen first", "s", 11.05, lambda: _repeat_s()[0], "44.5K tokens"),
        _row(D3, "prompt repeated", "s", 0.77, lambda: _repeat_s()[1], "the same 44.5K tokens on a calm engine"),
        _row(D3, "repeat: times faster", "x", 14.4, lambda: _repeat_s()[0] / _repeat_s()[1], "ratio of the two"),
    ]
    for begins, after_s in (("was sent", 2.0), ("began", 2.0 + D3.intake_s(240_000))):
        counted = f"sent 2 s after the 240K prompt {begins} (the report does not say which)"
        rows.append(_row(D3, "chat beside 240K: TTFT", "s", 2.34, _beside(after_s), counted))
    return rows


def capacity_rows() -> list[Row]:
    """KV caches, and what fits them."""
    full = "kv_tokens over max_model_len"
    return [
        _row(D3, "KV capacity", "K tokens", 1_629, lambda: D3.engine.kv_tokens / 1e3, "as set"),
        _row(D3, "full-length requests", "", 6.2, lambda: D3.engine.kv_tokens / D3.max_model_len, full),
        _row(D4, "KV capacity", "K tokens", 469, lambda: D4.engine.kv_tokens / 1e3, "as set"),
        _row(D4, "full-length at once", "", 1, lambda: D4.engine.kv_tokens // D4.max_model_len, full),
        _row(D4, "two of 228K at once", "yes=1", 1, lambda: together(D4, 228_000), _TOGETHER),
        Row("D4", "two of 250K at once", "yes=1", 0, 0, lambda: together(D4, 250_000), _TOGETHER),
        Row("D5", "KV capacity", "K tokens", 200, 220, lambda: D5.engine.kv_tokens / 1e3, _A_LITTLE_OVER),
        _row(D5, "context", "K tokens", 128, lambda: D5.max_model_len / 1_024, "as set"),
    ]  # fmt: skip


def _row(profile: Profile, figure: str, unit: str, measured: float, take: Callable[[], float], counted: str) -> Row:
    return Row(profile.name, figure, unit, measured, measured, take, counted)


def _decode_rate(profile: Profile, count: int) -> Callable[[], float]:
    return lambda: _burst(profile, count).decode_rate


def _ttft_p95(profile: Profile, count: int) -> Callable[[], float]:
    return lambda: percentile(_burst(profile, count).ttft_s, 0.95)


def _mean_rate(profile: Profile, tokens: int) -> Callable[[], float]:
    return lambda: tokens / _prefill_s(profile, tokens)


def _beside(after_s: float) -> Callable[[], float]:
    return lambda: beside_s(D3, 240_000, after_s)

"""Prompt tokens from the size of a text: a linear model that learns each model's tokenizer from real usage.

``tokens = a * narrow + b * wide + template``: ASCII characters and others weigh differently (English has about four
characters a token, Chinese about one and a half), and ``a`` and ``b`` are learned by recursive least squares with
forgetting on the relative error (Ljung, *System Identification*, 11.2). What a key writes (code, prose, tables) moves
its own ratio, so a correction per key rides on top; how far off estimates were gives the bounds.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from gateway.domain import Estimate, TextSize

MESSAGE_TOKENS = 5.0  # role and separators that a chat template adds to each message
IMAGE_TOKENS = 1_000.0  # a middling picture; engines range from 256 to 4,096
FORGETTING = 0.995
NARROW_RANGE = (0.05, 1.5)
WIDE_RANGE = (0.1, 4.0)
CORRECTION_RANGE = (0.25, 4.0)
SPREAD_RANGE = (0.05, 0.5)
LEARNABLE_TOKENS_MIN = 32  # below this the template's fixed tokens outweigh the text
SAMPLES_MAX = 20  # a key's ratio is a mean over about this many prompts


class Weights(NamedTuple):
    """Learned state: tokens per narrow and wide character, covariance (2x2, symmetric), mean relative error."""

    narrow: float = 0.25
    wide: float = 0.7
    p_nn: float = 0.05
    p_nw: float = 0.0
    p_ww: float = 0.5
    error: float = 0.15


class Correction(NamedTuple):
    """One key's own ratio of actual to estimated tokens, and on how many prompts it rests."""

    ratio: float = 1.0
    samples: int = 0


def raw_tokens(size: TextSize, weights: Weights) -> float:
    """Tokens of ``size`` without a key's correction."""
    text = size.narrow * weights.narrow + size.wide * weights.wide
    return text + size.messages * MESSAGE_TOKENS + size.images * IMAGE_TOKENS + size.tokens


def estimate(size: TextSize, weights: Weights, correction: Correction) -> Estimate:
    """Expected prompt tokens, with bounds of three mean errors on either side (at least 5 %, at most 50 %)."""
    if size.narrow == size.wide == size.images == 0:  # the client counted
        return Estimate(max(1, size.tokens), size.tokens, size.tokens + 1)
    tokens = raw_tokens(size, weights) * correction.ratio
    spread = _clamp(3.0 * weights.error, SPREAD_RANGE)
    return Estimate(max(1, round(tokens)), int(tokens * (1 - spread)), int(tokens * (1 + spread)) + 1)


def learnable(size: TextSize, actual_tokens: int) -> bool:
    """Whether a prompt teaches anything: text only, and enough of it."""
    return size.images == 0 and size.tokens == 0 and actual_tokens >= LEARNABLE_TOKENS_MIN


def learn(size: TextSize, actual_tokens: int, weights: Weights, correction: Correction) -> tuple[Weights, Correction]:
    """The state after the engine counted ``actual_tokens`` for ``size``."""
    if not learnable(size, actual_tokens):
        return weights, correction
    off = min(abs(raw_tokens(size, weights) * correction.ratio - actual_tokens) / actual_tokens, 1.0)
    learned = _least_squares(size, actual_tokens, weights, weights.error + 0.05 * (off - weights.error))
    samples = min(correction.samples + 1, SAMPLES_MAX)
    miss = actual_tokens / max(raw_tokens(size, learned), 1.0) - correction.ratio
    return learned, Correction(_clamp(correction.ratio + miss / (samples + 1), CORRECTION_RANGE), samples)


def _least_squares(size: TextSize, actual: int, w: Weights, error: float) -> Weights:
    """One step of recursive least squares, scaled so that each prompt counts by its relative error."""
    x_n, x_w = size.narrow / actual, size.wide / actual
    target = 1.0 - size.messages * MESSAGE_TOKENS / actual
    p_x_n, p_x_w = w.p_nn * x_n + w.p_nw * x_w, w.p_nw * x_n + w.p_ww * x_w
    gain = 1.0 / (1.0 + x_n * p_x_n + x_w * p_x_w)
    miss = target - (w.narrow * x_n + w.wide * x_w)
    # A kind of text not seen for long must not grow its uncertainty without bound, nor turn the matrix indefinite.
    p_nn = _clamp((w.p_nn - gain * p_x_n * p_x_n) / FORGETTING, (0.0, 1.0))
    p_ww = _clamp((w.p_ww - gain * p_x_w * p_x_w) / FORGETTING, (0.0, 1.0))
    limit = sqrt(p_nn * p_ww)
    return Weights(
        narrow=_clamp(w.narrow + gain * p_x_n * miss, NARROW_RANGE),
        wide=_clamp(w.wide + gain * p_x_w * miss, WIDE_RANGE),
        p_nn=p_nn,
        p_nw=_clamp((w.p_nw - gain * p_x_n * p_x_w) / FORGETTING, (-limit, limit)),
        p_ww=p_ww,
        error=error,
    )


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return low if value < low else min(value, high)

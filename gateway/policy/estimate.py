"""Prompt tokens from the size of a text: a linear model that learns each model's tokenizer from real usage.

``tokens = plain * a + digits * b + two_byte * c + three_byte * d + template``: kinds of characters that tokenizers
treat differently (English has four to five characters a token; a digit is often a token of its own; Chinese has about
one and a half, Russian three). The weights are learned by a Kalman filter with a diagonal covariance and forgetting, on
the relative error (Puskorius and Feldkamp 1994, *decoupled* extended Kalman filter, with one weight a group). What a
key writes (code, prose) moves its own ratio and what its templates add (instructions for tools) its own constant, so a
correction per key rides on top; how far off the key's estimates were gives the bounds.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.domain import Estimate, TextSize

MESSAGE_TOKENS = 5.0  # role and separators that a chat template adds to each message
IMAGE_TOKENS = 1_000.0  # a middling picture; engines range from 256 to 4,096
FORGETTING = 0.995
CORRECTION_RANGE = (0.25, 4.0)
SPREAD_RANGE = (0.05, 0.5)
LEARNABLE_TOKENS_MIN = 32  # below this the template's fixed tokens outweigh the text
TEMPLATE_RANGE = (0.0, 500.0)  # what a template may add of its own: a preamble, instructions for tools
EVEN_TOKENS = 1_000  # a prompt of this size tells as much of the template's own text as of the tokenizer
SAMPLES_MAX = 20.0  # a correction is a mean over about this many prompts


class Kinds(NamedTuple):
    """A number for each kind of character: a weight, its variance, or how many there are for each token."""

    plain: float
    digit: float
    two_byte: float
    three_byte: float


LOWEST = Kinds(0.05, 0.05, 0.05, 0.1)
HIGHEST = Kinds(1.5, 2.5, 2.0, 4.0)
# Tokens a character: the middle of Qwen's, Llama 3's and Mistral's tokenizers (loadtests/results/estimate.md).
INITIAL = Kinds(0.25, 1.1, 0.4, 0.75)
# Variances, over that of one prompt's relative error: how far tokenizers are from the middle, about squared.
UNSURE = Kinds(0.1, 8.0, 1.0, 2.0)


class Weights(NamedTuple):
    """Learned state: tokens per character of each kind, and how unsure each of these is (variance)."""

    tokens: Kinds = INITIAL
    variance: Kinds = UNSURE


class Correction(NamedTuple):
    """What one key's prompts take: ``ratio`` times the estimate, and ``template`` tokens more.

    ``error`` is the mean relative error so far; ``long`` and ``short`` are how many prompts of either sort it rests on.
    """

    ratio: float = 1.0
    template: float = 0.0
    error: float = 0.15
    long: float = 0.0
    short: float = 0.0


def raw_tokens(size: TextSize, weights: Weights) -> float:
    """Tokens of ``size`` without a key's correction."""
    narrow, wide, messages, images, tokens, digits, three_byte = size
    plain, digit, two, three = weights.tokens
    text = (narrow - digits) * plain + digits * digit + (wide - three_byte) * two + three_byte * three
    return text + messages * MESSAGE_TOKENS + images * IMAGE_TOKENS + tokens


def estimate(size: TextSize, weights: Weights, correction: Correction) -> Estimate:
    """Expected prompt tokens, with bounds of three mean errors on either side (at least 5 %, at most 50 %)."""
    if size.narrow == size.wide == size.images == 0:  # the client counted
        return Estimate(max(1, size.tokens), size.tokens, size.tokens + 1)
    tokens = raw_tokens(size, weights) * correction.ratio + correction.template
    spread = _clamp(3.0 * correction.error, SPREAD_RANGE)
    return Estimate(max(1, round(tokens)), int(tokens * (1 - spread)), int(tokens * (1 + spread)) + 1)


def learnable(size: TextSize, actual_tokens: int) -> bool:
    """Whether a prompt teaches anything: text only, and enough of it."""
    return size.images == 0 and size.tokens == 0 and actual_tokens >= LEARNABLE_TOKENS_MIN


def learn(size: TextSize, actual_tokens: int, weights: Weights, correction: Correction) -> tuple[Weights, Correction]:
    """The state after the engine counted ``actual_tokens`` for ``size``."""
    if not learnable(size, actual_tokens):
        return weights, correction
    learned = _filtered(size, actual_tokens, weights)
    return learned, _corrected(actual_tokens, raw_tokens(size, weights), raw_tokens(size, learned), correction)


def _corrected(actual: int, before: float, after: float, correction: Correction) -> Correction:
    """A long prompt tells the ratio, a short one what the template adds; ``before`` and ``after`` are raw estimates."""
    ratio, template, error, long, short = correction
    off = min(abs((before * ratio + template) / actual - 1.0), 1.0)
    trust = actual / (actual + EVEN_TOKENS)
    doubt = (1.0 - trust) ** 2  # squared, as what a long prompt misses by grows with it
    long, short = min(long + trust, SAMPLES_MAX), min(short + doubt, SAMPLES_MAX)
    of_long, of_short = trust / (long + 1.0), doubt / (short + 1.0)
    return Correction(
        ratio=_clamp(ratio + of_long * ((actual - template) / max(after, 1.0) - ratio), CORRECTION_RANGE),
        template=_clamp(template + of_short * (actual - after * ratio - template), TEMPLATE_RANGE),
        error=error + (off - error) / (long + short + 1.0),
        long=long,
        short=short,
    )


def _filtered(size: TextSize, actual: int, weights: Weights) -> Weights:
    """One step of the filter, scaled so that each prompt counts by its relative error."""
    narrow, wide, messages, _, _, digits, three_byte = size
    plain, digit = (narrow - digits) / actual, digits / actual
    two, three = (wide - three_byte) / actual, three_byte / actual
    (w1, w2, w3, w4), (v1, v2, v3, v4) = weights
    m1, m2, m3, m4 = v1 * plain, v2 * digit, v3 * two, v4 * three  # unrolled: it runs on the data path
    gain = 1.0 / (1.0 + EVEN_TOKENS / actual + m1 * plain + m2 * digit + m3 * two + m4 * three)
    seen = (messages * MESSAGE_TOKENS) / actual + w1 * plain + w2 * digit + w3 * two + w4 * three
    step = gain * (1.0 - seen)
    tokens = map(min, map(max, (w1 + m1 * step, w2 + m2 * step, w3 + m3 * step, w4 + m4 * step), LOWEST), HIGHEST)
    left = (v1 - gain * m1 * m1, v2 - gain * m2 * m2, v3 - gain * m3 * m3, v4 - gain * m4 * m4)
    # A kind of text not seen for long is never less sure than it was at the start.
    return Weights(Kinds(*tokens), Kinds(*[min(v / FORGETTING, most) for v, most in zip(left, UNSURE, strict=True)]))


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return low if value < low else min(value, high)

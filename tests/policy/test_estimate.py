"""Estimates of prompt tokens: how soon and how well they learn, and that nothing leads them astray for good."""

from __future__ import annotations

from math import isfinite
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import Estimate, TextSize
from gateway.policy.estimate import CORRECTION_RANGE, Correction, Weights, estimate, learn


class Estimator:
    """Weights of one model and a correction for each key."""

    def __init__(self) -> None:
        self.weights = Weights()
        self.keys: dict[str, Correction] = {}

    def estimate(self, size: TextSize, key: str) -> Estimate:
        return estimate(size, self.weights, self.keys.get(key, Correction()))

    def learn(self, size: TextSize, actual: int, key: str) -> None:
        self.weights, self.keys[key] = learn(size, actual, self.weights, self.keys.get(key, Correction()))


class Writer:
    """Writes prompts of ``chars_per_token``, each off by up to ``noise``."""

    def __init__(self, name: str, chars_per_token: float, *, wide: bool = False, noise: float = 0.05) -> None:
        self.name = name
        self.chars_per_token = chars_per_token
        self.wide = wide
        self.noise = noise
        self.rng = Random(name)

    def prompt(self) -> tuple[TextSize, int]:
        """A prompt of 100 to 20,000 tokens: its size, and what the engine counts."""
        tokens = int(10 ** self.rng.uniform(2, 4.3))
        messages = self.rng.randint(1, 4)
        text = int(tokens * self.chars_per_token * self.rng.uniform(1 - self.noise, 1 + self.noise))
        size = TextSize(narrow=0 if self.wide else text, wide=text if self.wide else 0, messages=messages)
        return size, tokens + 5 * messages


def english() -> Writer:
    return Writer("english", 4.0)


def code() -> Writer:
    return Writer("code", 2.8)


def chinese() -> Writer:
    return Writer("chinese", 1.4, wide=True)


def watch(estimator: Estimator, writers: list[Writer], rounds: int) -> list[tuple[Estimate, int]]:
    """What was estimated for each prompt of ``rounds``, and what it took."""
    seen = []
    for _ in range(rounds):
        for writer in writers:
            size, actual = writer.prompt()
            seen.append((estimator.estimate(size, writer.name), actual))
            estimator.learn(size, actual, writer.name)
    return seen


def mean_error(seen: list[tuple[Estimate, int]]) -> float:
    return sum(abs(found.prompt - actual) / actual for found, actual in seen) / len(seen)


def contained(seen: list[tuple[Estimate, int]]) -> float:
    return sum(found.low <= actual <= found.high for found, actual in seen) / len(seen)


@pytest.mark.parametrize(
    "writer", [english(), code(), chinese(), Writer("odd", 1.0), Writer("dense", 7.0)], ids=lambda w: w.name
)
def test_one_kind_of_text_is_learned_within_ten_percent(writer: Writer) -> None:
    estimator = Estimator()
    watch(estimator, [writer], 100)
    after = watch(estimator, [writer], 100)
    assert mean_error(after) < 0.10
    assert contained(after) >= 0.9


def test_kinds_that_pull_apart_are_learned_key_by_key() -> None:
    writers = [english(), code(), chinese()]
    estimator = Estimator()
    watch(estimator, writers, 100)
    after = watch(estimator, writers, 200)
    for i, _ in enumerate(writers):
        assert mean_error(after[i::3]) < 0.10
        assert contained(after[i::3]) >= 0.9


def test_one_key_that_mixes_scripts() -> None:
    rng = Random(1)
    estimator = Estimator()
    errors = []
    for i in range(400):
        narrow, wide = rng.randint(200, 40_000), rng.randint(200, 20_000)
        size, actual = TextSize(narrow=narrow, wide=wide, messages=1), int(narrow / 4 + wide / 1.4) + 5
        if i >= 200:
            errors.append((estimator.estimate(size, "k"), actual))
        estimator.learn(size, actual, "k")
    assert mean_error(errors) < 0.10


def test_a_new_key_profits_from_what_the_others_taught() -> None:
    estimator = Estimator()
    watch(estimator, [Writer("old", 2.0)], 200)
    size, actual = Writer("new", 2.0, noise=0.0).prompt()
    assert estimator.estimate(size, "new").prompt == pytest.approx(actual, rel=0.15)


def test_the_bounds_narrow_with_experience() -> None:
    size, _ = english().prompt()
    estimator = Estimator()
    before = estimator.estimate(size, "english")
    watch(estimator, [Writer("english", 4.0, noise=0.01)], 300)
    after = estimator.estimate(size, "english")
    assert (after.high - after.low) / after.prompt < 0.5 * (before.high - before.low) / before.prompt


def test_what_the_client_counted_is_no_estimate() -> None:
    estimator = Estimator()
    watch(estimator, [code()], 50)
    assert estimator.estimate(TextSize(tokens=1_234), "code") == Estimate(1_234, 1_234, 1_235)


def test_pictures_and_tiny_prompts_teach_nothing() -> None:
    for size, actual in ((TextSize(narrow=10, images=1), 4_000), (TextSize(narrow=3), 9), (TextSize(tokens=10), 500)):
        assert learn(size, actual, Weights(), Correction()) == (Weights(), Correction())


SIZES = st.tuples(
    st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 10**5), st.integers(0, 100), st.integers(0, 10**7)
).map(lambda counts: TextSize(*counts))


@given(st.lists(st.tuples(SIZES, st.integers(0, 10**9)), max_size=40), SIZES)
def test_whatever_an_engine_or_a_client_says_estimates_stay_finite_and_bounded(
    lessons: list[tuple[TextSize, int]], size: TextSize
) -> None:
    estimator = Estimator()
    for lesson, actual in lessons:
        estimator.learn(lesson, actual, "k")
        assert CORRECTION_RANGE[0] <= estimator.keys["k"].ratio <= CORRECTION_RANGE[1]
    found = estimator.estimate(size, "k")
    assert all(isfinite(value) for value in found)
    assert 0 <= found.low <= found.prompt <= found.high
    assert found.prompt >= 1
    most = 4 * (4 * size.narrow + 4 * size.wide + 5 * size.messages + 1_000 * size.images + size.tokens)
    assert found.high <= 1.5 * most + 5_000


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(SIZES, st.integers(0, 10**9)), min_size=1, max_size=40))
def test_after_any_nonsense_an_honest_writer_is_learned_again(lessons: list[tuple[TextSize, int]]) -> None:
    estimator = Estimator()
    for lesson, actual in lessons:
        estimator.learn(lesson, actual, "nonsense")
    writer = english()
    watch(estimator, [writer], 100)
    assert mean_error(watch(estimator, [writer], 50)) < 0.10


@pytest.mark.parametrize("lie", [0.05, 20.0])
def test_a_writer_of_nonsense_beside_an_honest_one_does_little_harm(lie: float) -> None:
    honest, liar = english(), Writer("liar", 4.0 / lie)
    estimator = Estimator()
    watch(estimator, [honest, liar], 200)
    after = watch(estimator, [honest, liar], 200)[::2]
    assert mean_error(after) < 0.25


def test_a_key_that_mixes_numbers_and_prose_is_learned_by_kind_of_character() -> None:
    rng = Random(2)
    estimator = Estimator()
    after = []
    for i in range(400):
        plain, digits = rng.choice(
            ((rng.randint(1_000, 40_000), 0), (rng.randint(500, 9_000), rng.randint(500, 20_000)))
        )
        size = TextSize(narrow=plain + digits, messages=1, digits=digits)
        actual = plain // 4 + digits + 5
        if i >= 200:
            after.append((estimator.estimate(size, "k"), actual))
        estimator.learn(size, actual, "k")
    assert mean_error(after) < 0.05


def test_what_a_template_adds_to_each_prompt_of_a_key_is_learned() -> None:
    rng = Random(3)
    estimator = Estimator()
    after = []
    for i in range(200):
        tokens = int(10 ** rng.uniform(1.7, 4.5))
        size, actual = TextSize(narrow=4 * tokens, messages=1), tokens + 150
        if i >= 100:
            after.append((estimator.estimate(size, "tools"), actual))
        estimator.learn(size, actual, "tools")
    assert mean_error([one for one in after if one[1] > 1_000]) < 0.10
    assert mean_error([one for one in after if one[1] < 500]) < 0.25

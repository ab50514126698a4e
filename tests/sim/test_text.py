"""Tokens, blocks and answers."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sim.answer import Kind, Wish, compose, example
from gateway.sim.text import encode, foreign, from_ids, image, pieces, token_ids

TEXT = st.text(st.sampled_from("abc  \n.缓存回答🙂é"), max_size=400)


@given(TEXT)
def test_blocks_are_sixteen_tokens_each(text):
    encoded = encode(text)
    assert encoded.tokens == len(pieces(text)) == len(token_ids(text))
    assert len(encoded.blocks) == encoded.tokens // 16
    assert from_ids(token_ids(text)) == text


@given(TEXT, TEXT)
def test_blocks_of_a_beginning_are_the_beginning_of_the_blocks(head, tail):
    whole = encode(head + "\ue000" + tail).blocks
    assert whole[: len(encode(head).blocks)] == encode(head).blocks
    assert encode(head + "\ue000").then(tail) == whole


def test_different_beginnings_share_no_block():
    same = "x" * 640
    assert not set(encode("a" + same).blocks) & set(encode("b" + same).blocks)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcd", 1), ("abcde", 2), ("缓存", 2), ("ab缓", 2)])
def test_counting(text, tokens):
    assert encode(text).tokens == tokens


@given(st.lists(st.integers(0, 200_000), max_size=50))
def test_token_ids_of_another_tokeniser_count_one_each(ids):
    assert encode(foreign(ids)).tokens == len(ids)


@given(st.lists(st.integers(-5, 2**40), max_size=50))
def test_any_ids_can_be_shown(ids):
    assert isinstance(from_ids(ids), str)


def test_an_image_counts_the_same_whatever_its_bytes():
    assert encode(image("data:" + "A" * 1_000_000)).tokens == encode(image("data:B")).tokens == 256


def test_a_megabyte_is_quick():
    text = "The quick brown fox. " * 50_000
    began = time.process_time()
    encode(text)
    assert time.process_time() - began < 0.1


@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.booleans(), st.booleans())
def test_answers_keep_their_limit_and_can_be_cut_anywhere(seed, limit, ignore_eos, thinking):
    wish = Wish(seed, "缓存?" if seed % 2 else "hello", limit, ignore_eos=ignore_eos, thinking=thinking)
    answer = compose(wish)
    assert compose(wish) == answer
    assert 1 <= answer.tokens <= limit
    assert not ignore_eos or (answer.tokens, answer.finish) == (limit, "length")
    assert answer.finish == "stop" or answer.tokens == limit
    cut = [piece for at in range(0, answer.tokens, 7) for piece in answer.cut(at, min(at + 7, answer.tokens))]
    for kind in Kind:
        assert "".join(piece.text for piece in cut if piece.kind is kind) == answer.text(kind)


def test_stop_words_end_an_answer():
    whole = compose(Wish(7, "hi", 1_000)).text(Kind.TEXT)
    word = whole.split()[5]
    assert compose(Wish(7, "hi", 1_000, stop=(word,))).text(Kind.TEXT) == whole.split(word)[0]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}, {"a": 1, "b": True}),
        ({"type": "array", "items": {"enum": ["x"]}, "minItems": 2}, ["x", "x"]),
        ({"$defs": {"P": {"const": 3}}, "properties": {"p": {"$ref": "#/$defs/P"}}}, {"p": 3}),
        ({"anyOf": [{"type": "number", "minimum": 5}, {"type": "null"}]}, 5),
        ({"type": ["string", "null"], "minLength": 8}, "steady.."),
        ({"type": "null"}, None),
    ],
)
def test_examples_fit_their_schema(schema, value):
    assert example(schema) == value


def test_a_schema_that_refers_to_itself_ends():
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert msgspec.json.encode(example(schema))

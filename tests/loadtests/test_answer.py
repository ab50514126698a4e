"""Answers: what counts as a token, and when."""

from __future__ import annotations

import pytest

from loadtests.runner.answer import Answer, error_word

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def token(text: str, field: str = "content") -> bytes:
    return f'data: {{"choices":[{{"delta":{{"{field}":"{text}"}}}}]}}\n\n'.encode()


def test_the_role_chunk_is_no_token_and_gaps_are_between_tokens() -> None:
    answer = Answer(stream=True)
    for at_s, data in enumerate([ROLE, token("a"), b": keepalive\n\n", token("b"), token("c") + USAGE + DONE]):
        answer.feed(data, float(at_s))
    answer.end()
    assert answer.first_s == 1.0
    assert list(answer.gaps) == [2.0, 1.0]
    assert (answer.text, answer.chunks, answer.whole, answer.fault) == ("abc", 3, True, None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (9, 3, 4)


@pytest.mark.parametrize("crlf", [False, True])
def test_every_split_gives_the_same(crlf: bool) -> None:
    stream = ROLE + token("a", "reasoning") + token("ü") + USAGE + DONE
    stream = stream.replace(b"\n", b"\r\n") if crlf else stream
    for at in range(len(stream)):
        answer = Answer(stream=True)
        answer.feed(stream[:at], 1.0)
        answer.feed(stream[at:], 2.0)
        answer.end()
        assert (answer.chunks, answer.text, answer.whole, answer.fault) == (2, "ü", True, None)


def test_tool_calls_are_tokens() -> None:
    answer = Answer(stream=True)
    answer.feed(b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n' + DONE, 1.0)
    assert answer.chunks == 1


def test_a_stream_cut_short_is_a_fault() -> None:
    answer = Answer(stream=True)
    answer.feed(ROLE + token("a"), 1.0)
    answer.end()
    assert not answer.whole
    assert answer.fault == "stream without [DONE]"


def test_an_error_in_the_stream_is_a_fault_even_with_done() -> None:
    answer = Answer(stream=True)
    answer.feed(token("a") + b'data: {"error":{"message":"x","type":"t","code":"upstream_cut"}}\n\n' + DONE, 1.0)
    answer.end()
    assert not answer.whole
    assert answer.fault == "error in the answer: upstream_cut"


def test_nonsense_is_a_fault() -> None:
    answer = Answer(stream=True)
    answer.feed(b"data: <html>\n\n", 1.0)
    assert answer.fault == "answer is no chat completion"


def test_a_whole_answer() -> None:
    answer = Answer(stream=False)
    body = b'{"choices":[{"message":{"role":"assistant","content":"hello"}}],"usage":{"prompt_tokens":1}}'
    answer.feed(body[:20], 1.0)
    answer.feed(body[20:], 2.0)
    answer.end()
    assert (answer.text, answer.whole, answer.first_s) == ("hello", True, None)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"error":{"message":"m","type":"t","code":"queue_full"}}', "queue_full"),
        (b'{"error":{"message":"m","type":"BadRequestError","code":400}}', "BadRequestError"),
        (b"<html>", ""),
        (b'{"error":"text"}', ""),
    ],
)
def test_error_words(body: bytes, word: str) -> None:
    assert error_word(body) == word

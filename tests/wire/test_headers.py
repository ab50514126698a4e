"""Heads up, headers down, and the key a client shows."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.headers import Headers, credentials, forward_request_head, request_id, response_headers

CLIENT: Headers = [
    (b"host", b"gateway"),
    (b"user-agent", b"OpenAI/Python"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer sk-client"),
    (b"x-api-key", b"sk-client"),
    (b"api-key", b"sk-client"),
    (b"cookie", b"session=1"),
    (b"connection", b"keep-alive, X-Secret"),
    (b"x-secret", b"1"),
    (b"keep-alive", b"timeout=5"),
    (b"te", b"trailers"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"proxy-authorization", b"Basic x"),
    (b"expect", b"100-continue"),
    (b"content-length", b"999"),
    (b"x-request-id", b"client"),
    (b"x-data-parallel-rank", b"1"),
    (b"accept-encoding", b"gzip"),
    (b"x-custom", b"\xe4\xbd\xa0"),
]


def head(headers: Headers = CLIENT, target: bytes = b"/v1/completions", key: str | None = "Bearer own") -> bytes:
    return forward_request_head(
        b"POST",
        target,
        b"gpu1:8000",
        headers,
        content_length=12,
        request_id="id-1",
        authorization=key,
        extra=[(b"x-data-parallel-rank", b"0")],
    )


def test_c3_hop_by_hop_headers_and_the_clients_key_stay_here() -> None:
    assert head() == (
        b"POST /v1/completions HTTP/1.1\r\nhost: gpu1:8000\r\nuser-agent: OpenAI/Python\r\n"
        b"content-type: application/json\r\nx-custom: \xe4\xbd\xa0\r\nx-request-id: id-1\r\n"
        b"authorization: Bearer own\r\nx-data-parallel-rank: 0\r\ncontent-length: 12\r\n\r\n"
    )
    assert b"authorization" not in head(key=None)


@pytest.mark.parametrize("bad", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b"])
def test_c3_nothing_can_be_smuggled_into_the_head(bad: bytes) -> None:
    for headers, target in (([(b"x", bad)], b"/"), ([(bad, b"x")], b"/"), ([], bad)):
        with pytest.raises(InvalidRequest):
            head(headers, target)
    with pytest.raises(InvalidRequest):
        head(key=f"Bearer {bad.decode()}")
    with pytest.raises(InvalidRequest):
        head(target=b"/ HTTP/1.1")


@pytest.mark.parametrize("good", [b"abc", b"a" * 128, b"0b1c-_.:/~!"])
def test_c3_a_sane_request_id_is_kept(good: bytes) -> None:
    assert request_id(good, "own") == good.decode()


@pytest.mark.parametrize("bad", [None, b"", b"a" * 129, b"a b", b'a"b', b"a'b", b"a\n", b"\xe4", b"a\x7f"])
def test_c3_any_other_request_id_is_replaced(bad: bytes | None) -> None:
    assert request_id(bad, "own") == "own"


def test_c3_response_headers_lose_framing_and_keep_the_unknown() -> None:
    kept = [(b"content-type", b"text/event-stream"), (b"x-unknown", b"1"), (b"x-unknown", b"2")]
    dropped = [
        (b"connection", b"close, x-hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"server", b"uvicorn"),
        (b"date", b"now"),
        (b"x-request-id", b"theirs"),
        (b"trailer", b"x"),
    ]
    assert response_headers(dropped[:4] + kept + dropped[4:]) == kept


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer sk-1")], "sk-1"),
        ([(b"authorization", b"bEARER   sk-1 ")], "sk-1"),
        ([(b"x-api-key", b"sk-2")], "sk-2"),
        ([(b"api-key", b"sk-3")], "sk-3"),
        ([(b"api-key", b"sk-3"), (b"x-api-key", b"sk-2"), (b"authorization", b"Bearer sk-1")], "sk-1"),
        ([(b"authorization", b"Basic eDp5"), (b"x-api-key", b"sk-2")], "sk-2"),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"sk-1")], None),
        ([(b"x-api-key", b" ")], None),
        ([], None),
    ],
)
def test_credentials_are_found_in_three_headers(headers: Headers, key: str | None) -> None:
    assert credentials(headers) == key

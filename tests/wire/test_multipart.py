"""Form uploads: the model field is found and replaced whatever surrounds it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import TextSize
from gateway.errors import InvalidRequest
from gateway.wire.body import parse, rewrite_multipart
from gateway.wire.endpoints import ROUTES

ROUTE = ROUTES[b"/v1/audio/transcriptions"]
TYPE = b"multipart/form-data; boundary=frontier"
AUDIO = bytes(range(256)) * 40 + b'\r\n--frontierX\r\n--front\r\n\r\nname="model"\r\n'


def part(disposition: bytes, value: bytes) -> bytes:
    return b"--frontier\r\nContent-Disposition: form-data; " + disposition + b"\r\n\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--frontier--\r\n"


FILE = part(b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav', AUDIO)


@pytest.mark.parametrize("model", [b'name="model"', b"name=model", b'NAME="model"', b"name*=utf-8''model"])
@pytest.mark.parametrize("first", [True, False])
def test_c2_the_model_is_found_before_and_after_binary_parts(model: bytes, first: bool) -> None:
    field = part(model, "whisper-语".encode())
    body = form(field, FILE) if first else form(FILE, field, part(b'name="stream"', b"true"))
    facts = parse(ROUTE, body, TYPE)
    assert facts.model == "whisper-语"
    assert facts.stream is not first
    assert facts.size == TextSize()
    assert rewrite_multipart(body, TYPE, "real") == body.replace("whisper-语".encode(), b"real")


def test_c2_of_two_models_the_last_counts_and_both_are_rewritten() -> None:
    body = form(part(b'name="model"', b"allowed"), FILE, part(b'name="model"', b"forbidden"))
    assert parse(ROUTE, body, TYPE).model == "forbidden"
    assert rewrite_multipart(body, TYPE, "m") == body.replace(b"allowed", b"m").replace(b"forbidden", b"m")


def test_c2_a_file_called_model_is_not_the_model() -> None:
    assert parse(ROUTE, form(part(b'name="model"; filename="m"', b"x")), TYPE).model is None


@pytest.mark.parametrize("charset", [b"utf-7", b"UTF-16", b"cp037", b"''utf-7"])
def test_g3_a_charset_hides_no_second_model(charset: bytes) -> None:
    """The engine's parser decodes names and values by it: in UTF-7 the second one is ``model``, too."""
    body = form(part(b'name="model"', b"allowed"), part(b'name="+AG0-odel"', b"forbidden"))
    sign = b"*=" if charset.startswith(b"''") else b"="
    with pytest.raises(InvalidRequest):
        parse(ROUTE, body, TYPE + b"; charset" + sign + charset)


@pytest.mark.parametrize("content_type", [TYPE, b'Multipart/Form-Data; charset=utf-8; boundary="frontier"'])
def test_c2_quoted_boundaries_and_leading_line_ends(content_type: bytes) -> None:
    assert parse(ROUTE, b"\r\n" + form(part(b'name="model"', b"m")), content_type).model == "m"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(FILE), b"application/json"),
        (form(FILE), b"multipart/form-data"),
        (b"", TYPE),
        (b"junk" + form(FILE), TYPE),
        (FILE, TYPE),
        (b"--frontier\r\nno headers--frontier--", TYPE),
        (b"--frontier\r\n" * 5_000, TYPE),
    ],
)
def test_c2_what_is_no_form_is_refused(body: bytes, content_type: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(ROUTE, body, content_type)


@given(audio=st.binary(max_size=300), model=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@settings(max_examples=100, deadline=None)
def test_c2_any_binary_beside_the_model_survives(audio: bytes, model: str) -> None:
    body = form(part(b'name="file"; filename="f"', audio), part(b'name="model"', b"alias"))
    if b"\r\n--frontier" not in audio:
        after = rewrite_multipart(body, TYPE, "real")
        assert after == body[: -len(b"alias\r\n--frontier--\r\n")] + b"real\r\n--frontier--\r\n"
        assert parse(ROUTE, after, TYPE).model == "real"

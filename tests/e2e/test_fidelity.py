"""What reaches the replica: bodies byte for byte, headers without what is not its business, the key swapped."""

from __future__ import annotations

import base64
import json
import os

import pytest

from tests.e2e.stack import AUTH, KEY, Stack, prompt, served, stack
from tests.e2e.upstream import DONE, Upstream, delta, response, role, stop, stream, usage

ODD = [
    b'{"model":"qwen","messages":[{"role":"tool_oracle","content":null,"zz":1e2}],"chat_template_kwargs":{"t":true}}',
    b'{ "guided_json" : {"b":1,"a":2} , "top_k":-1, "ignore_eos":true,"priority":-3,\n"model":"qwen", "messages":[]}',
    b'{"model":"qwen","messages":[],"lora":"x","temperature":1.0,"seed":12345678901234567890}',
    b'{"messages":[{"role":"user","content":"\\u4f60\\ud83d\\ude42"}],"model":"qwen","min_p":1E-5,"x":0.1000}',
    '{"model":"qwen","messages":[{"role":"user","content":"你好 🙂"}],"n":1}'.encode(),
    b'{"model":"qwen","messages":[{"role":"user","content":"\\ud800 alone"}]}',
    b'{"messages":[{"role":"user","content":"no model named"}]}',
]


def sent(upstream: Upstream, number: int = 0) -> list[tuple[bytes, bytes]]:
    return upstream.seen[number].headers


@pytest.mark.parametrize("body", ODD)
@served
async def test_c1_unknown_fields_number_formats_and_order_arrive_unchanged(body: bytes) -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        assert (await running.post(body)).status == 200
        assert upstream.seen[0].body == body


@served
async def test_c1_only_stream_options_change_where_usage_must_be_asked_for() -> None:
    body = b'{"zeta":1.50, "stream":true,"model":"qwen","messages":[{"role":"user","content":"a"}],"alpha":{"b":1e3}}'
    upstream = Upstream()
    upstream.answers.append(stream(role(), delta("a"), stop(), usage(), DONE))
    async with stack(upstream) as running:
        await running.post(body)
        arrived = upstream.seen[0].body
        assert json.loads(arrived).pop("stream_options") == {"include_usage": True}
        for piece in (b'"zeta":1.50', b'"alpha":{"b":1e3}', b'[{"role":"user","content":"a"}]'):
            assert piece in arrived
        assert list(json.loads(arrived))[:5] == ["zeta", "stream", "model", "messages", "alpha"]


@served
async def test_c1_images_of_eight_megabytes_pass_and_are_no_text() -> None:
    image = base64.b64encode(os.urandom(6_000_000)).decode()
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    body = json.dumps({"model": "qwen", "messages": [{"role": "user", "content": parts}]}).encode()
    upstream = Upstream(context_tokens=16_000)
    async with stack(upstream) as running:
        assert (await running.post(body)).status == 200
        assert upstream.seen[0].body == body
        assert (await running.record())["prompt_estimate"] < 8_000


def form(model: str) -> tuple[bytes, bytes]:
    boundary = b"--x7y"
    parts = (
        b'content-disposition: form-data; name="file"; filename="a.wav"\r\ncontent-type: audio/wav\r\n\r\n'
        + bytes(range(256)) * 40,
        b'content-disposition: form-data; name="model"\r\n\r\n' + model.encode(),
        b'content-disposition: form-data; name="language"\r\n\r\nde',
    )
    body = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts) + b"--%b--\r\n" % boundary
    return body, b"content-type: multipart/form-data; boundary=%b\r\n" % boundary


@pytest.mark.parametrize("asked", ["qwen", "default"])
@served
async def test_c2_uploads_pass_and_their_model_is_found(asked: str) -> None:
    upstream = Upstream()
    async with stack(upstream, model={"aliases": ["default"]}) as running:
        body, kind = form(asked)
        reply = await running.post(body, b"/v1/audio/transcriptions", AUTH + kind)
        assert reply.status == 200
        assert upstream.seen[0].body == form("qwen")[0]
        assert upstream.seen[0].header(b"content-type") == kind[14:-2]
        assert (await running.record())["endpoint"] == "transcriptions"


@served
async def test_c3_headers_at_the_replica() -> None:
    upstream = Upstream()
    extra = AUTH + (
        b"connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nte: trailers\r\n"
        b"proxy-authorization: a\r\nx-api-key: leak\r\napi-key: leak\r\ncookie: leak\r\n"
        b"x-data-parallel-rank: 3\r\naccept-encoding: gzip\r\n"
        b"x-request-id: mine-1\r\nuser-agent: me/1\r\nx-custom: kept\r\ncontent-type: application/json\r\n"
    )
    async with stack(upstream, replica={"api_key": "sk-replica"}) as running:
        reply = await running.post(prompt(), b"/v1/chat/completions?x=1", extra)
        names = [name for name, _ in sent(upstream)]
        assert sorted(names) == sorted(set(names))
        assert set(names) == {
            b"host",
            b"user-agent",
            b"x-custom",
            b"content-type",
            b"x-request-id",
            b"authorization",
            b"content-length",
        }
        head = dict(sent(upstream))
        assert head[b"authorization"] == b"Bearer sk-replica"
        assert head[b"host"] == upstream.url.removeprefix("http://").encode()
        assert head[b"x-custom"] == b"kept"
        assert head[b"x-request-id"].startswith(b"mine-1-")
        assert reply.headers["x-request-id"] == "mine-1"
        assert KEY.encode() not in b"".join(value for _, value in sent(upstream))
        assert upstream.seen[0].target == b"/v1/chat/completions?x=1"


@served
async def test_c3_without_a_replica_key_the_clients_key_is_not_sent_instead() -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        await running.post(prompt())
        assert dict(sent(upstream)).get(b"authorization") is None


@pytest.mark.parametrize("bad", [b"a b", b"x" * 300, b'q"uote', b"\xe9"])
@served
async def test_c3_an_odd_request_id_is_replaced(bad: bytes) -> None:
    upstream = Upstream()
    async with stack(upstream) as running:
        reply = await running.post(prompt(), extra=AUTH + b"x-request-id: %b\r\n" % bad)
        assert reply.headers["x-request-id"].encode("latin-1") != bad
        assert bad not in upstream.seen[0].header(b"x-request-id")  # type: ignore[operator]


@served
async def test_c3_the_engines_hop_headers_and_secrets_of_framing_end_here() -> None:
    upstream = Upstream()
    extra = b"connection: keep-alive\r\nkeep-alive: timeout=5\r\nserver: uvicorn\r\ndate: x\r\nx-engine: kept\r\n"
    upstream.default = [response(b"{}", extra=extra)]
    async with stack(upstream) as running:
        headers = (await running.post(prompt())).headers
        assert headers["x-engine"] == "kept"
        assert not {"connection", "keep-alive", "server"} & set(headers)


@pytest.mark.parametrize(("asked", "arrives"), [("qwen", "Org/Qwen3"), ("default", "Org/Qwen3"), (None, None)])
@served
async def test_c4_aliases_and_names_become_the_upstream_name(asked: str | None, arrives: str | None) -> None:
    upstream = Upstream(model="Org/Qwen3")
    body = prompt() if asked is None else prompt(model=asked)
    if asked is None:
        body = body.replace(b'"model": "qwen", ', b"")
    async with stack(upstream, model={"aliases": ["default"], "upstream_name": "Org/Qwen3"}) as running:
        assert (await running.post(body)).status == 200
        assert json.loads(upstream.seen[0].body).get("model") == arrives
        assert await _unknown(running) == 404


async def _unknown(running: Stack) -> int:
    return (await running.post(prompt(model="Org/Qwen3"))).status

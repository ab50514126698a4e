"""Keys, CORS, HEAD and OPTIONS at the front door; secrets and prompts stay where they belong."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.telemetry.logs import configure_logging
from tests.e2e.stack import ADMIN_KEY, AUTH, KEY, get, post, prompt, served, stack
from tests.e2e.upstream import CUT, Upstream, chat, delta, response, role, stream

ADMIN = b"authorization: Bearer " + ADMIN_KEY.encode() + b"\r\n"
ORIGIN = b"origin: https://chat.example\r\n"
PREFLIGHT = ORIGIN + b"access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n"
PATHS = [b"/v1/chat/completions", b"/v1/models", b"/nowhere"]


@served
async def test_h1_preflights_succeed_before_auth_when_cors_is_on() -> None:
    async with stack(Upstream(), server={"cors_origins": ["https://chat.example"]}) as running:
        for path in PATHS:
            reply = await running.ask(get(path, PREFLIGHT, b"OPTIONS"))
            assert reply.status in (200, 204), path
            assert reply.headers["access-control-allow-origin"] == "https://chat.example"
            assert "authorization" in reply.headers["access-control-allow-headers"].lower()
            assert "POST" in reply.headers["access-control-allow-methods"]


@served
async def test_h1_options_without_cors_gives_no_origin_leave() -> None:
    async with stack(Upstream()) as running:
        for path in PATHS:
            reply = await running.ask(get(path, PREFLIGHT, b"OPTIONS"))
            assert reply.status in (200, 204)
            assert "access-control-allow-origin" not in reply.headers
        assert (await running.ask(get(b"*", b"", b"OPTIONS"))).status in (200, 204)


@pytest.mark.parametrize("origins", [[], ["https://chat.example"]])
@served
async def test_h1_the_gateway_alone_speaks_of_origins(origins: list[str]) -> None:
    """vLLM allows every origin of its own accord; two such headers, or one from it, would be wrong."""
    upstream = Upstream()
    allow = b"access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n"
    upstream.default = [response(b'{"choices": []}', extra=allow)]
    async with stack(upstream, server={"cors_origins": origins}) as running, await running.client() as client:
        client.send(post(prompt(), extra=AUTH + ORIGIN))
        _, headers = await client.head()
        found = [pair for pair in headers if pair[0].startswith("access-control-allow")]
        assert found == [("access-control-allow-origin", origin) for origin in origins]


@served
async def test_h1_browsers_can_read_refusals() -> None:
    async with stack(Upstream(), server={"cors_origins": ["https://chat.example"]}) as running:
        reply = await running.ask(post(prompt(), extra=ORIGIN))
        assert reply.status == 401
        assert reply.headers["access-control-allow-origin"] == "https://chat.example"


@served
async def test_h1_head_is_answered() -> None:
    async with stack(Upstream()) as running, await running.client() as client:
        for path in (b"/", b"/v1/models", b"/healthz", b"/readyz"):
            client.send(get(path, b"", b"HEAD"))
            assert (await client.reply(bodyless=True)).status == 200, path
        client.send(get(b"/v1/chat/completions", b"", b"HEAD"))
        assert (await client.reply(bodyless=True)).status == 405
        client.send(get(b"/v1/chat/completions"))
        assert (await client.reply()).headers["allow"] == "POST, OPTIONS"


@served
async def test_g4_clients_keys_open_nothing_of_the_administrators() -> None:
    async with stack(Upstream()) as running:
        for path in (b"/metrics", b"/admin/replicas", b"/admin/queues"):
            assert (await running.ask(get(path))).status == 403
            assert (await running.ask(get(path, b""))).status == 401
            assert (await running.ask(get(path, ADMIN))).status == 200
        assert (await running.post(prompt(), extra=ADMIN)).status == 401


@served
async def test_g4_bad_keys_are_slowed_on_both_planes_and_good_ones_are_not() -> None:
    bad = b"authorization: Bearer sk-guess\r\n"
    async with stack(Upstream()) as running:
        loop = asyncio.get_running_loop()
        free = [await running.post(prompt(), extra=bad) for _ in range(5)]
        free += [await running.ask(get(b"/v1/models", bad)) for _ in range(5)]
        assert {reply.status for reply in free} == {401}
        async with await running.client() as held, await running.client() as also_held:
            held.send(post(prompt(), extra=bad))
            also_held.send(get(b"/metrics", bad))
            for client in (held, also_held):
                with pytest.raises(TimeoutError):
                    await client.reply(0.3)
            before = loop.time()
            assert (await running.post(prompt())).status == 200
            assert (await running.ask(get(b"/v1/models"))).status == 200
            assert loop.time() - before < 0.2


@served
async def test_g4_many_guesses_at_once_get_no_answer_at_all() -> None:
    bad = b"authorization: Bearer sk-guess\r\n"
    async with stack(Upstream()) as running:

        async def guess() -> bool:
            """Whether an answer came within half a second."""
            async with await running.client() as client:
                client.send(post(prompt(), extra=bad))
                try:
                    return (await client.reply(0.5)).status == 401
                except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
                    return False

        answers = await asyncio.gather(*(guess() for _ in range(60)))
        assert sum(answers) <= 12


CANARY_KEY, CANARY_PROMPT, CANARY_ANSWER = "sk-canary-1f0c", "canary prompt 8ab1", "canary answer 77d2"


@served
async def test_g2_no_key_prompt_or_answer_in_logs_errors_or_metrics() -> None:
    """Every kind of ending, at the most talkative log level."""
    upstream = Upstream()
    extra = f"authorization: Bearer {CANARY_KEY}\r\n".encode()
    root = logging.getLogger()
    before = root.handlers, root.level
    async with stack(upstream, model={"retry": {"attempts_max": 1}}, replica={"api_key": CANARY_KEY}) as running:
        configure_logging("debug", running.writer)
        try:
            bodies: list[bytes] = []
            for body, key in [
                (prompt(CANARY_PROMPT), AUTH),
                (prompt(CANARY_PROMPT), extra),
                (prompt(CANARY_PROMPT, model="unknown"), AUTH),
                (prompt(CANARY_PROMPT)[:-9], AUTH),
                (prompt(CANARY_PROMPT * 20_000), AUTH),
            ]:
                bodies.append((await running.post(body, extra=key)).body)
            upstream.answers.append(stream(role(), delta(CANARY_ANSWER), CUT))
            answer = await running.post(prompt(CANARY_PROMPT, stream=True))
            assert CANARY_ANSWER in answer.body.decode()  # to the client it goes, of course
            for broken in ([CUT], [b"HTTP/1.1 what " + CANARY_ANSWER.encode() + b"\r\n\r\n"], [chat(CANARY_ANSWER)]):
                upstream.answers.append(broken)
                bodies.append((await running.post(prompt(CANARY_PROMPT))).body)
            assert CANARY_ANSWER in bodies.pop().decode()
            bodies.append((await running.ask(get(b"/metrics", extra))).body)
            bodies.append((await running.ask(get(b"/metrics", ADMIN))).body)
            bodies.append((await running.ask(get(b"/admin/replicas", ADMIN))).body)
            bodies.append((await running.ask(get(b"/nowhere?key=" + CANARY_KEY.encode(), extra))).body)
            await running.record(9)
        finally:
            root.handlers, root.level = before
        said = b"\n".join(bodies).decode() + running.log_text
        for canary in (CANARY_KEY, CANARY_PROMPT, CANARY_ANSWER, KEY, ADMIN_KEY):
            assert canary not in said, canary
        assert len(running.calls()) == 9

"""The gateway as a process: start, signals, draining, reloading, and what it says when it cannot start."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import ADMIN_KEY, AUTH, KEY, Client, Reply, get, post, prompt, served, settings_of, until
from tests.e2e.upstream import DONE, Upstream, chat, delta, role, stop, stream, usage
from tests.e2e.vllm_server import free_port

ADMIN = b"authorization: Bearer " + ADMIN_KEY.encode() + b"\r\n"
STREAMED = prompt(stream=True)


class Running:
    """``gateway serve`` in a process of its own."""

    def __init__(self, process: Process, port: int, settings: Path) -> None:
        self.process = process
        self.port = port
        self.settings = settings
        self.output = bytearray()
        self.clients: list[Client] = []

    @property
    def log(self) -> str:
        return self.output.decode()

    async def collect(self) -> None:
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65_536):
            self.output += data

    async def client(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]

    async def ask(self, data: bytes) -> Reply:
        async with await self.client() as client:
            client.send(data)
            return await client.reply()

    async def exited(self, within_s: float) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def said(self, text: str, within_s: float = 5.0) -> None:
        await until(lambda: text in self.log, within_s, f"{text!r} in the log")

    async def reload(self, settings: Mapping[str, Any]) -> None:
        before = self.log.count("settings reloaded")
        self.settings.write_text(json.dumps(settings))
        self.process.send_signal(signal.SIGHUP)
        try:
            await until(lambda: self.log.count("settings reloaded") > before, 5.0, "reloading")
        except AssertionError as error:
            raise AssertionError(self.log[-2_000:]) from error


async def start(folder: Path, text: str, *before: str) -> Process:
    path = folder / "gateway.yaml"
    path.write_text(text)
    return await asyncio.create_subprocess_exec(
        *before,
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--config",
        str(path),
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def settings_for(upstreams: Sequence[Upstream], port: int, **server: Any) -> dict[str, Any]:
    named = {f"r{index}": upstream for index, upstream in enumerate(upstreams)}
    return settings_of(named, {"port": port, **server}, {}, {})


@asynccontextmanager
async def gateway(folder: Path, settings: dict[str, Any], *before: str) -> AsyncIterator[Running]:
    """Started, and killed at the end if the test did not end it; never a traceback in its log."""
    port = settings["server"]["port"]
    process = await start(folder, json.dumps(settings), *before)
    running = Running(process, port, folder / "gateway.yaml")
    collecting = asyncio.get_running_loop().create_task(running.collect())
    try:
        await running.said("listening on", 15.0)
        await running.ask(get(b"/healthz", b""))
        yield running
        assert "Traceback" not in running.log, running.log[-3_000:]
    finally:
        for client in running.clients:
            client.leave()
        if process.returncode is None:
            process.kill()
        await process.wait()
        await collecting


def calls(running: Running) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in running.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "call"]


async def streams(running: Running, upstream: Upstream, number: int) -> list[Client]:
    """``number`` clients in the middle of a stream."""
    found = [await running.client() for _ in range(number)]
    for client in found:
        client.send(post(STREAMED))
    await upstream.call(number)
    for client in found:
        assert (await client.head())[0] == 200
    return found


async def rest(client: Client) -> bytes:
    parts = []
    try:
        while part := await client.chunk(5.0):
            parts.append(part)
    except (asyncio.IncompleteReadError, ConnectionError):
        parts.append(b"<cut>")
    return b"".join(parts)


@served
async def test_e7_sigterm_with_twenty_streams(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with Upstream() as upstream, gateway(tmp_path, settings_for([upstream], free_port())) as running:
        upstream.default = stream(role(), delta("a"), gate, stop(), usage(), DONE)
        clients = await streams(running, upstream, 20)
        assert (await running.ask(get(b"/readyz", b""))).status == 200
        running.process.send_signal(signal.SIGTERM)
        await running.said("draining: 20 calls")
        ready = await running.ask(get(b"/readyz", b""))
        assert (ready.status, ready.json["reasons"]) == (503, ["draining"])
        refused = await running.ask(post(prompt()))
        assert (refused.status, refused.reason) == (503, "draining")
        assert "retry-after" in refused.headers
        assert (await running.ask(get(b"/healthz", b""))).status == 200
        assert running.process.returncode is None
        gate.set()
        for body in await asyncio.gather(*(rest(client) for client in clients)):
            assert body.endswith(DONE)
        assert await running.exited(3.0) == 0
        await until(lambda: len(calls(running)) == 21)
        assert sorted(call["outcome"] for call in calls(running)) == ["draining"] + ["ok"] * 20


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@served
async def test_e7_an_idle_gateway_exits_at_once(tmp_path: Path, number: signal.Signals) -> None:
    async with Upstream() as upstream, gateway(tmp_path, settings_for([upstream], free_port())) as running:
        idle = await running.client()
        for data in (post(prompt()), get(b"/healthz", b""), get(b"/v1/../x", b""), get(b"/metrics", ADMIN)):
            idle.send(data)
            headers = (await idle.reply()).headers
            assert headers["date"].endswith("GMT")
            assert "server" not in headers
        running.process.send_signal(number)
        assert await running.exited(1.5) == 0
        assert await idle.closed() == b""


@served
async def test_e7_a_second_sigterm_exits_at_once(tmp_path: Path) -> None:
    async with Upstream() as upstream, gateway(tmp_path, settings_for([upstream], free_port())) as running:
        upstream.default = stream(role(), 60.0, DONE)
        (client,) = await streams(running, upstream, 1)
        running.process.send_signal(signal.SIGTERM)
        await running.said("draining: 1 call")
        running.process.send_signal(signal.SIGTERM)
        assert await running.exited(1.5) == 0
        assert (await rest(client)).endswith(b"<cut>")
        await until(lambda: len(calls(running)) == 1)


@served
async def test_e7_when_drain_s_is_over_streams_are_told(tmp_path: Path) -> None:
    settings = lambda upstream: settings_for([upstream], free_port(), drain_s=0.5)  # noqa: E731
    async with Upstream() as upstream, gateway(tmp_path, settings(upstream)) as running:
        upstream.default = stream(role(), delta("a"), 60.0, DONE)
        (client,) = await streams(running, upstream, 1)
        running.process.send_signal(signal.SIGTERM)
        body = await rest(client)
        assert b'"code":"draining"' in body
        assert body.endswith(b"<cut>")
        assert b"[DONE]" not in body
        assert await running.exited(3.0) == 0
        await until(lambda: len(calls(running)) == 1)
        assert calls(running)[0]["outcome"] == "draining"


@served
async def test_e6_reload_with_a_bad_file_keeps_the_old_settings_and_says_why(tmp_path: Path) -> None:
    port = free_port()
    async with Upstream() as upstream, gateway(tmp_path, settings_for([upstream], port)) as running:
        for bad in ("server: {prot: 1}\n", "models: [", "", "\x00"):
            before = running.log.count("settings not reloaded")
            running.settings.write_text(bad)
            running.process.send_signal(signal.SIGHUP)
            await until(lambda: running.log.count("settings not reloaded") > before)  # noqa: B023
            assert (await running.ask(post(prompt()))).status == 200
        running.settings.unlink()
        running.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.1)
        assert (await running.ask(post(prompt()))).status == 200
        assert "prot" in running.log
        running.process.send_signal(signal.SIGTERM)
        assert await running.exited(2.0) == 0


@served
async def test_e6_reload_removes_a_replica_without_breaking_its_streams(tmp_path: Path) -> None:
    gate, port = asyncio.Event(), free_port()
    async with Upstream() as stays, Upstream() as goes, gateway(tmp_path, settings_for([goes], port)) as running:
        goes.default = stream(role(), delta("a"), gate, stop(), usage(), DONE)
        (client,) = await streams(running, goes, 1)
        await running.reload(settings_for([stays], port))
        assert (await running.ask(post(prompt()))).status == 200
        assert (len(stays.seen), len(goes.seen)) == (1, 1)
        probes = goes.probes
        await asyncio.sleep(0.35)
        assert goes.probes == probes
        assert stays.probes >= 2
        gate.set()
        assert (await rest(client)).endswith(DONE)
        running.process.send_signal(signal.SIGTERM)
        assert await running.exited(2.0) == 0


@served
async def test_e6_keys_and_models_follow_the_file(tmp_path: Path) -> None:
    port = free_port()
    new = b"authorization: Bearer sk-the-new-key-of-the-tests\r\n"
    async with Upstream() as upstream, gateway(tmp_path, settings_for([upstream], port)) as running:
        settings = settings_for([upstream], port)
        settings["teams"][0]["keys"][0]["sha256"] = hashlib.sha256(new[22:-2]).hexdigest()
        settings["models"][0]["aliases"] = ["second"]
        assert (await running.ask(post(prompt(), extra=new))).status == 401
        async with await running.client() as kept:
            kept.send(post(prompt()))
            assert (await kept.reply()).status == 200
            await running.reload(settings)
            kept.send(post(prompt()))
            assert (await kept.reply()).status == 401  # on a connection that was open before, too
        assert (await running.ask(post(prompt(model="second"), extra=new))).status == 200
        names = (await running.ask(get(b"/v1/models", new))).json["data"]
        assert [entry["id"] for entry in names] == ["qwen", "second"]
        await running.reload(settings_for([upstream], port, log_level="warning"))
        await running.said("at the next start only")
        assert (await running.ask(post(prompt()))).status == 200
        assert (await running.ask(post(prompt(), extra=new))).status == 401
        assert KEY not in running.log


async def output_of(process: Process, within_s: float = 15.0) -> tuple[int, str]:
    async with asyncio.timeout(within_s):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@served
async def test_start_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = settings_for([Upstream()], port)
        settings["models"][0]["replicas"][0]["url"] = "http://127.0.0.1:1"
        code, output = await output_of(await start(tmp_path, json.dumps(settings)))
    assert (code, output) == (1, f"gateway: cannot listen on 127.0.0.1:{port}: the port is in use\n")


@served
async def test_start_bad_settings_are_lines_with_file_and_key(tmp_path: Path) -> None:
    code, output = await output_of(await start(tmp_path, "server: {port: 99999999}\nmodels: [\n"))
    assert code == 1
    assert "Traceback" not in output
    assert output
    assert all("gateway.yaml" in line for line in output.splitlines())


@pytest.mark.slow
@served
async def test_start_a_host_that_is_not_ours_is_one_line(tmp_path: Path) -> None:
    settings = settings_for([Upstream()], free_port(), host="192.0.2.1")
    settings["models"][0]["replicas"][0]["url"] = "http://127.0.0.1:1"
    code, output = await output_of(await start(tmp_path, json.dumps(settings)))
    assert (code, len(output.splitlines())) == (1, 1)
    assert "cannot listen on 192.0.2.1" in output


@served
async def test_start_with_unreachable_replicas_runs_unready_until_one_comes(tmp_path: Path) -> None:
    upstream = Upstream()
    upstream.port = free_port()
    async with gateway(tmp_path, settings_for([upstream], free_port())) as running:
        await running.said("replica r0 is down: cannot connect")
        assert (await running.ask(get(b"/readyz", b""))).status == 503
        refused = await running.ask(post(prompt()))
        assert (refused.status, refused.reason) == (503, "no_replica")
        async with upstream:
            await running.said("replica r0 is up")
            assert (await running.ask(get(b"/readyz", b""))).status == 200
            assert (await running.ask(post(prompt(), extra=AUTH))).status == 200
            assert running.log.count("is down") == 1  # told once, not at every probe


@served
async def test_start_a_low_soft_limit_on_open_files_is_raised(tmp_path: Path) -> None:
    lowered = ("sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh")
    async with Upstream() as upstream, gateway(tmp_path, settings_for([upstream], free_port()), *lowered) as running:
        upstream.default = [0.5, chat()]
        clients = [await running.client() for _ in range(80)]
        for client in clients:
            client.send(post(prompt()))
        assert {(await client.reply()).status for client in clients} == {200}


@served
async def test_g2_standard_streams_that_came_closed_are_nobodys_socket(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        settings = settings_for([upstream], free_port())
        closed = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
        running = Running(await start(tmp_path, json.dumps(settings), *closed), settings["server"]["port"], tmp_path)
        try:
            await until(lambda: answers(running.port), 15.0, "listening")
            assert (await running.ask(post(prompt(), extra=AUTH))).status == 200
            held = {os.readlink(f"/proc/{running.process.pid}/fd/{number}") for number in range(3)}
            assert held == {os.devnull}
            running.process.terminate()
            assert await running.exited(5.0) == 0
        finally:
            if running.process.returncode is None:
                running.process.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@served
async def test_g4_an_ipv6_host_is_told_as_a_url_and_knows_its_clients(tmp_path: Path) -> None:
    settings = settings_for([Upstream()], free_port(), host="::1")
    settings["models"][0]["replicas"][0]["url"] = "http://127.0.0.1:1"
    process = await start(tmp_path, json.dumps(settings))
    running = Running(process, settings["server"]["port"], tmp_path)
    collecting = asyncio.get_running_loop().create_task(running.collect())
    try:
        await running.said(f"listening on http://[::1]:{running.port}", 15.0)
        for path in (b"/me", b"/metrics"):
            async with Client(*await asyncio.open_connection("::1", running.port)) as client:
                client.send(get(path, b"authorization: Bearer sk-guess\r\n"))
                assert (await client.reply()).status == 401
        assert "Traceback" not in running.log
    finally:
        process.kill()
        await process.wait()
        await collecting

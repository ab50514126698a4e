"""``gateway demo``: a simulated fleet, the gateway in front of it, a key, and one real answer as proof.

Everything runs as its own process, as it would in earnest, and all of it ends with Ctrl-C. Nothing is left behind.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import httpx
import typer

from gateway.cli.keys import new_secret, yaml_line

START_S = 30.0
STOP_S = 10.0
QUESTION = "In two sentences: what does a gateway do for a department's GPU servers?"


class Part(NamedTuple):
    """A simulated replica of the demo's fleet."""

    name: str
    profile: str
    serves: str
    cap: int


FLEET = (Part("tp2", "D4", "long", 64), Part("dp0", "D5", "short", 64), Part("dp1", "D5", "short", 64))


def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the gateway; a free one if it is in use.")
    ] = 8080,
    speed: Annotated[float, typer.Option(help="Times as fast as real GPUs.")] = 1.0,
) -> None:
    """Start everything, show how to use it, and stay until Ctrl-C."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    key, admin_key = new_secret(), secrets.token_urlsafe(24)
    port = _free(port)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-demo-")))
        _say("starting a simulated fleet: one TP=2 server and two single-card replicas")
        urls = [stack.enter_context(_sim(part, speed, folder)) for part in FLEET]
        settings = folder / "gateway.yaml"
        settings.write_text(_settings(port, urls, key, admin_key))
        _say("starting the gateway")
        serve = ["serve", "--config", str(settings)]
        process = stack.enter_context(_running(serve, f"http://127.0.0.1:{port}/readyz", folder / "gateway.log"))
        _say("asking one question as proof\n")
        _prove(port, key)
        _show(port, key, admin_key, folder)
        try:
            process.wait()
        except KeyboardInterrupt:  # how it is meant to end, so no error
            typer.echo("\ndemo: stopping")
            return
        _fail("the gateway ended on its own", folder / "gateway.log")


def _as_interrupt(signum: int, frame: object) -> NoReturn:
    del signum, frame
    raise KeyboardInterrupt


def _free(port: int) -> int:
    """``port``, or another one if it is taken (0: any)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            _say(f"port {port} is in use: taking a free one")
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _sim(part: Part, speed: float, folder: Path) -> Iterator[str]:
    port = _free(0)
    arguments = ["sim", "--profile", part.profile, "--port", str(port), "--speed", str(speed)]
    with _running(arguments, f"http://127.0.0.1:{port}/health", folder / f"{part.name}.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(arguments: list[str], ready_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``gateway ARGUMENTS`` as a process that answers at ``ready_url``, ended at the end of the block."""
    command = [sys.executable, "-m", "gateway", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(lambda: httpx.get(ready_url, timeout=1.0, trust_env=False).status_code == 200, process, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if ready():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    _fail(f"{log.stem} did not start", log)


def _settings(port: int, urls: list[str], key: str, admin_key: str) -> str:
    replicas = "\n".join(
        f"      - {{name: {part.name}, url: {url}, serves: [{part.serves}], concurrency: {{max: {part.cap}}}}}"
        for part, url in zip(FLEET, urls, strict=True)
    )
    return (
        f"server: {{port: {port}, drain_s: 2}}\n"
        f'auth: {{admin_key: "{admin_key}"}}\n'
        f"models:\n  - name: qwen\n    aliases: [default]\n    replicas:\n{replicas}\n"
        f"teams:\n  - name: demo\n    keys:\n      {yaml_line('you', key)}\n"
    )


def _prove(port: int, key: str) -> None:
    """Stream one answer and print it as it comes."""
    body = {"model": "qwen", "messages": [{"role": "user", "content": QUESTION}], "stream": True, "max_tokens": 60}
    began = time.monotonic()
    first: float | None = None
    typer.echo(f"  you:  {QUESTION}\n  qwen: ", nl=False)
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60.0, trust_env=False) as answer:
        if answer.status_code != 200:
            _fail(f"the gateway answered {answer.status_code}: {answer.read().decode(errors='replace')}")
        for line in answer.iter_lines():
            text = _content(line)
            if text:
                first = first or time.monotonic() - began
                typer.echo(text, nl=False)
        where = f"{answer.headers['x-gateway-replica']} ({answer.headers['x-gateway-route']})"
    total = time.monotonic() - began
    typer.echo(f"\n\n  from replica {where}: first token after {first or total:.2f} s, all after {total:.2f} s")


def _content(line: str) -> str:
    """The text of one line of the stream; empty if it has none."""
    if not line.startswith("data: {"):
        return ""
    choices = httpx.Response(200, content=line[6:]).json()["choices"]
    return str(choices[0]["delta"].get("content") or "") if choices else ""


def _show(port: int, key: str, admin_key: str, folder: Path) -> None:
    url = f"http://127.0.0.1:{port}"
    typer.echo(f"""
The gateway is running (the answers are a simulator's: words without sense, at the pace of real GPUs).

  URL        {url}/v1
  key        {key}
  admin key  {admin_key}
  settings   {folder / "gateway.yaml"}

In another terminal (the snippet is for .venv/bin/python):

curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "qwen", "messages": [{{"role": "user", "content": "Hello"}}], "stream": true}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
for chunk in client.chat.completions.create(
    model="qwen", messages=[{{"role": "user", "content": "Hello"}}], stream=True
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

curl {url}/metrics -H 'Authorization: Bearer {admin_key}'

Ctrl-C ends it.""")


def _say(what: str) -> None:
    typer.echo(f"demo: {what}")


def _fail(what: str, log: Path | None = None) -> NoReturn:
    typer.echo(f"demo: {what}", err=True)
    if log is not None and log.exists():
        typer.echo("".join(log.read_text(errors="replace").splitlines(keepends=True)[-10:]), err=True)
    raise typer.Exit(1)

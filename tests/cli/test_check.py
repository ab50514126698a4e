"""``gateway check``: what it says of good files, bad files, and replicas that are there, odd, or away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gateway.cli import build, run
from gateway.cli.survey import Found, survey
from gateway.domain import CallClass, ModelSpec, ReplicaSpec

LIST = b'{"object":"list","data":[{"id":"qwen","max_model_len":131072}]}'
TEAMS = f'teams: [{{name: research, keys: [{{id: alice, sha256: "{"a" * 64}"}}]}}]\n'
Pages = dict[str, bytes | int]
Serve = Callable[[Pages], str]


def metrics(*kv_tokens: int) -> bytes:
    """A vLLM's metrics page, one engine for each capacity."""
    rows = "".join(
        f'vllm:num_requests_running{{engine="{n}",model_name="qwen"}} 0.0\n'
        f'vllm:cache_config_info{{block_size="16",engine="{n}",num_gpu_blocks="{tokens // 16}"}} 1.0\n'
        for n, tokens in enumerate(kv_tokens)
    )
    return rows.encode()


def vllm(**changes: bytes | int) -> Pages:
    pages: Pages = {"health": b"", "v1/models": LIST, "metrics": metrics(1_600_000)}
    return {**pages, **{name.replace("models", "v1/models"): page for name, page in changes.items()}}


@contextmanager
def server(pages: Pages, seen: list[str | None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["authorization"])
            page = pages.get(self.path[1:], 404)
            body = b"" if isinstance(page, int) else page
            self.send_response(page if isinstance(page, int) else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def narrow_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def closed_url() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def check(folder: Path, text: str, *options: str) -> int:
    config = folder / "gateway.yaml"
    config.write_text(text, encoding="utf-8")
    return run(build("check"), ["check", "--config", str(config), *options])


def one(url: str, extra: str = "") -> str:
    return f'models: [{{name: qwen, replicas: [{{name: r0, url: "{url}"{extra}}}]}}]\n' + TEAMS


def warnings_of(shown: str) -> list[str]:
    return [line.removeprefix("warning: ") for line in shown.splitlines() if line.startswith("warning: ")]


def test_everything_understood_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with server(vllm(metrics=metrics(800_000, 829_008)), []) as a, server(vllm(), []) as b:
        text = f"""\
models:
  - name: qwen
    aliases: [default, fast]
    replicas:
      - {{name: tp2, url: "{a}", serves: [long], concurrency: {{max: 64}}}}
      - {{name: dp0, url: "{b}", serves: [short], concurrency: {{max: 48}}, context_tokens: 65536}}
    routing: {{long_tokens: 12345, overflow: false}}
    queue: {{depth: 77, wait_s: {{short: 11, long: 222}}}}
teams:
  - name: research
    models: [qwen]
    limits: {{concurrency: 0}}
    keys: [{{id: alice, sha256: "{"a" * 64}", expires: 9999-01-31}}]
"""
        assert check(tmp_path, text) == 0
        shown = capsys.readouterr()
    rows = {words[0]: words[1:] for line in shown.out.splitlines() if (words := line.split())}
    assert rows["tp2"] == ["up", "131,072", "1,629,008", "2", "64", "long"]
    assert rows["dp0"] == ["up", "65,536", "1,600,000", "1", "48", "short"]
    assert {a, b} <= rows.keys()
    assert rows["model"] == ["qwen", "aliases", "default,", "fast"]
    assert "12,345 prompt tokens; stays in its class" in shown.out
    assert "77 places; waits 11 s (short), 222 s (long)" in shown.out
    assert rows["research"] == ["qwen", "alice", "(until", "9999-01-31", "23:59", "UTC)", "suspended"]
    assert (warnings_of(shown.out), shown.err) == ([], "")


def test_fits_80_columns_without_colour_or_cut_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://{'a-long-host-name.' * 4}example.org:8000"
    name = "r" * 64
    text = f'models: [{{name: qwen, replicas: [{{name: {name}, url: "{url}"}}]}}]\n' + TEAMS
    assert check(tmp_path, text, "--no-probe") == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("Replica") : shown.index("Team")]
    assert max(map(len, table.splitlines())) <= 80
    first_column = "".join(line.split("  ")[0].strip() for line in table.splitlines())
    assert name + url in first_column
    assert "\x1b" not in shown
    assert "…" not in shown


def test_no_probe_asks_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str | None] = []
    with server(vllm(), seen) as url:
        assert check(tmp_path, one(url), "--no-probe") == 0
    assert seen == []
    assert "replicas were not probed" in capsys.readouterr().out


def test_faults_are_lines_on_stderr_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, "models: 5\nserver: {prot: 1}\n") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        f"{tmp_path}/gateway.yaml:1: models: must be a list",
        f"{tmp_path}/gateway.yaml:2: server.prot: unknown key (did you mean port?)",
    ]


def test_an_unreachable_replica_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], closed_url: str
) -> None:
    assert check(tmp_path, one(closed_url)) == 1
    shown = capsys.readouterr()
    assert "down" in shown.out
    assert shown.err == f"error: replica r0 of model qwen ({closed_url}) is unreachable: connection refused\n"


def test_a_replica_that_does_not_serve_the_model_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(vllm(models=b'{"data":[{"id":"other","max_model_len":131072}]}'), []) as url:
        assert check(tmp_path, one(url)) == 1
        line = f"error: replica r0 of model qwen ({url}) serves other, not qwen (set upstream_name)\n"
    assert capsys.readouterr().err == line


FINDINGS = [
    (vllm(models=b"<html>"), "", "/v1/models lists no model (is this a vLLM server?)"),
    (vllm(models=401), "", "/v1/models: HTTP 401 (is api_key right?)"),
    (vllm(metrics=404), "", "/metrics: HTTP 404"),
    (vllm(), ", context_tokens: 200000", "context_tokens 200,000 is more than its max_model_len 131,072"),
    (vllm(), ", context_tokens: 8000", "serves short, but its context 8,000 is below long_tokens 16,000"),
    (
        vllm(metrics=metrics(128_000, 128_000)),
        "",
        "KV capacity 128,000 tokens is smaller than its context 131,072: a full-length call cannot run",
    ),
    (
        vllm(metrics=metrics(160_000)),
        "",
        "concurrency.max 96 is more than its KV capacity of 160,000 tokens holds (about 80 calls of 2,000 tokens)",
    ),
]


@pytest.mark.parametrize(("pages", "extra", "warning"), FINDINGS, ids=[row[2][:40] for row in FINDINGS])
def test_what_is_odd_about_a_replica_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pages: Pages, extra: str, warning: str
) -> None:
    with server(pages, []) as url:
        assert check(tmp_path, one(url, extra)) == 0
    assert warnings_of(capsys.readouterr().out) == [f"replica r0: {warning}"]


def test_an_expired_key_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = one("http://gpu1:8000").replace("id: alice", "id: alice, expires: 2020-02-29")
    assert check(tmp_path, text, "--no-probe") == 0
    assert warnings_of(capsys.readouterr().out) == ["key alice of team research expired at 2020-02-29 23:59 UTC"]


def test_g2_the_replicas_key_is_sent_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM", "canary-secret")
    monkeypatch.setenv("ADMIN", "canary-admin-key-1")
    seen: list[str | None] = []
    with server(vllm(models=401), seen) as url:
        text = 'auth: {admin_key: "${ADMIN}"}\n' + one(url, ', api_key: "${UPSTREAM}"')
        assert check(tmp_path, text) == 0
    assert set(seen) == {"Bearer canary-secret"}
    shown = capsys.readouterr()
    assert "canary" not in shown.out + shown.err


def found_at(url: str, timeout_s: float) -> Found:
    replica = ReplicaSpec("r0", url, frozenset(CallClass), 48, 96)
    return asyncio.run(survey([ModelSpec("qwen", "qwen", (), (replica,))], timeout_s))["r0"]


def test_a_silent_replica_is_down_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert found_at(url, 0.2).down == "no answer within 0.2 s"


def test_each_way_of_being_down_has_its_words() -> None:
    with server({"health": 503}, []) as url:
        assert found_at(url, 2.0).down == "HTTP 503"
        assert found_at(url.replace("http", "https"), 2.0).down == "TLS failed: wrong version number"
    assert found_at("http://no-such-host.invalid:1", 10.0).down == "host name not found"

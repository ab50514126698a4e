"""The gateway and simulated replicas as real processes, for tests that talk to them over sockets."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.vllm_server import free_port

KEY = "sk-e2e-key-of-the-tests"
ADMIN_KEY = "sk-e2e-admin-key-of-the-tests"
START_S = 20.0
STOP_S = 30.0
LOG_TAIL_LINES, LOG_LINE_CHARS = 20, 2_000


@dataclass(frozen=True)
class Service:
    """A running process: where it listens and what it logged so far."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def log_text(self) -> str:
        """Everything written to stdout and stderr."""
        return self.log.read_text(errors="replace")

    @property
    def log_tail(self) -> str:
        """Its end, short enough for a failure's message."""
        return "\n".join(line[:LOG_LINE_CHARS] for line in self.log_text.splitlines()[-LOG_TAIL_LINES:])


@contextmanager
def service(arguments: list[str], port: int, ready_path: str) -> Iterator[Service]:
    """Run ``python -m gateway ARGUMENTS`` until the end of the block.

    It is ended by SIGTERM and must then exit 0 without a traceback in its log.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-e2e-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", *arguments],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Service(f"http://127.0.0.1:{port}", process, log)
        try:
            _wait_until_ready(running, ready_path)
            yield running
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_S)
            assert code == 0, f"exit code {code} after SIGTERM:\n{running.log_tail}"
            assert "Traceback" not in running.log_text, running.log_tail
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_until_ready(running: Service, path: str) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if (code := running.process.poll()) is not None:
            raise AssertionError(f"exited with {code} at the start:\n{running.log_tail}")
        try:
            if httpx.get(running.url + path, timeout=2.0).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{path} was not 200 after {START_S:.0f} s:\n{running.log_tail}")


@contextmanager
def gateway_process(models: list[dict[str, Any]], **sections: Mapping[str, Any]) -> Iterator[Service]:
    """A gateway in front of ``models`` (as in the settings file), with one team and its key ``KEY``.

    ``sections`` are laid over those of the settings file: ``server={"drain_s": 1}``.
    """
    port = free_port()
    settings: dict[str, Any] = {
        "server": {"port": port, "probe_interval_s": 0.5, **sections.pop("server", {})},
        "auth": {"admin_key": ADMIN_KEY},
        "models": models,
        "teams": [{"name": "tests", "keys": [{"id": "e2e", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}]}],
        **sections,
    }
    with tempfile.TemporaryDirectory(prefix="gateway-e2e-") as folder:
        path = Path(folder, "gateway.yaml")
        path.write_text(json.dumps(settings, indent=1))  # JSON is YAML
        with service(["serve", "--config", str(path)], port, "/readyz") as running:
            yield running


@contextmanager
def sim_process(profile: str, speed: float) -> Iterator[Service]:
    """One simulated vLLM with the numbers of ``profile``, ``speed`` times as fast."""
    port = free_port()
    arguments = ["sim", "--profile", profile, "--port", str(port), "--speed", str(speed)]
    with service(arguments, port, "/health") as running:
        yield running

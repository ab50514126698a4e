"""One real vLLM with a tiny random model, started for as long as tests need it.

``python -m tests.e2e.vllm_server`` keeps one up until Ctrl-C; ``GATEWAY_VLLM_URL`` makes the tests use that one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.e2e.vllm_install import Unavailable, is_installed, why_not_file

ROOT = Path(__file__).resolve().parents[2]
MODEL = "qwen"
CONTEXT_TOKENS = 32_768
START_S = 300.0  # 75-110 s on two idle cores
STOP_S = 20.0
PROGRESS_S = 10.0
LOG_TAIL_LINES = 30

FLAGS = [
    "--load-format=dummy",
    "--dtype=float32",
    "--enforce-eager",
    f"--max-model-len={CONTEXT_TOKENS}",
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    # A random model would fill a grammar's optional whitespace until max_tokens.
    '--structured-outputs-config={"backend": "xgrammar", "disable_any_whitespace": true}',
    f"--served-model-name={MODEL}",
]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Tool calls by JSON schema: the tags used otherwise leave room for endless whitespace, see FLAGS.
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",
    # One thread is plenty for this model; a second one spins, and starves vLLM's own server of a two-core machine.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


def vllm_venv() -> Path:
    """Where ``make test-vllm`` installs vLLM."""
    return Path(os.environ.get("GATEWAY_VLLM_VENV") or ROOT / ".venv-vllm").absolute()


def require_installed(venv: Path) -> None:
    """Raises ``Unavailable`` with the reason why there is no vLLM in ``venv``."""
    if is_installed(venv):
        return
    why_not = why_not_file(venv)
    if why_not.exists():
        raise Unavailable(f"vLLM could not be installed: {why_not.read_text()}")
    raise Unavailable(f"no vLLM in {venv}; make test-vllm installs it")


@contextmanager
def vllm_server(venv: Path) -> Iterator[str]:
    """Yield the base URL of a fresh vLLM; its whole process group is gone afterwards.

    Only one runs at a time on a machine (it takes 2 GB and both cores): others wait their turn.

    Raises:
        Unavailable: there is none in ``venv``.
        RuntimeError: it is there and did not start (with the end of its log).
    """
    require_installed(venv)
    with _turn(), tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        model, log = Path(folder, "model"), Path(folder, "vllm.log")
        subprocess.run([venv / "bin/python", ROOT / "tests/e2e/vllm_model.py", model], check=True)
        port = free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [venv / "bin/vllm", "serve", model, "--host=127.0.0.1", f"--port={port}", *FLAGS],
                env={**os.environ, **ENVIRONMENT},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_until_healthy(process, url, log)
                yield url
            finally:
                _kill_group(process)


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def say(message: str) -> None:
    """A progress line that pytest's capturing lets through."""
    print(f"vllm: {message}", file=sys.__stderr__, flush=True)


@contextmanager
def _turn() -> Iterator[None]:
    with Path(tempfile.gettempdir(), "gateway-tests-vllm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    started_s = time.monotonic()
    next_progress_s = started_s
    while (now_s := time.monotonic()) < started_s + START_S:
        if now_s >= next_progress_s:
            say(f"starting on {url}, {now_s - started_s:.0f} s")
            next_progress_s = now_s + PROGRESS_S
        if process.poll() is not None:
            raise RuntimeError(f"vLLM exited with {process.returncode}:\n{_tail(log)}")
        try:
            if httpx.get(f"{url}/health", timeout=2.0).status_code == 200:
                say(f"up after {now_s - started_s:.0f} s")
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"vLLM was not healthy after {START_S:.0f} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """The engine runs in processes of its own, so a signal to the server alone could leave them."""
    try:
        process.terminate()
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        say("did not stop by itself, killing it")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    """Keep one up until Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with vllm_server(vllm_venv()) as url:
            say(f"export GATEWAY_VLLM_URL={url}  (Ctrl-C stops it)")
            signal.pause()
    except KeyboardInterrupt:
        say("stopped")


if __name__ == "__main__":
    main()

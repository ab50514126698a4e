"""``gateway sim`` as a process."""

import signal
import subprocess
import sys

import httpx
import pytest

from gateway.sim.profiles import D3

COMMAND = [sys.executable, "-c", "import typer; from gateway.cli.sim import sim; typer.run(sim)"]


def test_serves_until_told_to_stop():
    with subprocess.Popen([*COMMAND, "--profile", "d3", "--port", "0", "--speed", "20"], stdout=subprocess.PIPE) as sim:
        try:
            line = sim.stdout.readline().decode()
            url = line.split(" at ")[1].split(",")[0]
            assert D3.hardware in line
            assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "qwen"
            port = url.rsplit(":", 1)[1]
            taken = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=20, check=False)
            assert taken.returncode == 1
            assert taken.stderr == f"gateway sim: cannot listen on 127.0.0.1:{port}: the port is in use\n"
        finally:
            sim.send_signal(signal.SIGTERM)
        assert sim.wait(10) == 0


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--profile", "D99"], "there are D1"), (["--speed", "0"], "above 0")]
)
def test_bad_arguments_are_one_line(arguments, words):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1

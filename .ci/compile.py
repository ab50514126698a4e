"""Makes ``build/compiled``: the gateway with its data path compiled by mypyc (called by ``make compile``).

The sources stay as they are: the copy holds them and, beside the modules of the data path, their compiled form, which
Python prefers. ``PYTHONPATH=build/compiled .venv/bin/gateway serve …`` runs it. Needs a C compiler.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "compiled"
STAMP = TARGET / ".complete"
# What runs for each call and chunk. msgspec's structs stay out (they are built when a class body runs, which compiled
# classes do not do), and so does what is not hot.
HOT = {
    "policy": "estimate health keys retry routing",
    "proxy": "answer connection datapath downlink exchange front gate model pool record request tasks tokens turn "
    "upstream",
    "telemetry": "metrics series",
    "wire": "document endpoints facts headers sse watch",
}


ALONGSIDE = ("tests", "loadtests", "config", "pyproject.toml", "README.md", "Makefile")


def modules():
    """The sources to compile, relative to the copy."""
    return [f"gateway/{package}/{name}.py" for package, names in HOT.items() for name in names.split()]


def fresh():
    """Whether the copy is newer than every source."""
    if not STAMP.exists():
        return False
    made = STAMP.stat().st_mtime
    return all(
        path.stat().st_mtime < made for name in ("gateway", *ALONGSIDE[:2]) for path in (ROOT / name).rglob("*.py")
    )


def main():
    if fresh():
        return
    if not (shutil.which("cc") or shutil.which("gcc")):
        sys.exit("compile: no C compiler here; on Debian and Ubuntu: apt install gcc python3-dev")
    print("compile: the data path, about a minute", flush=True)
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(ROOT / "gateway", TARGET / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    for (
        name
    ) in ALONGSIDE:  # so that the tests can be run there: from that folder everything imports the compiled gateway
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, TARGET / name)
    mypyc = Path(sys.executable).with_name("mypyc")
    done = subprocess.run([str(mypyc), *modules()], cwd=TARGET, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit("compile: mypyc failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-20:]))
    shutil.rmtree(TARGET / "build")
    STAMP.touch()
    print("compile: build/compiled is ready: PYTHONPATH=build/compiled .venv/bin/gateway --version", flush=True)


if __name__ == "__main__":
    main()

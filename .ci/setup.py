"""Makes ``.venv`` with the locked dependencies and the ``gateway`` command (called by ``make setup``).

Needs nothing but the standard library, and parses on any Python 3 so that an old one can say what is wrong.
Settings of pip that would change what is installed (constraints, a target folder) are switched off; indexes and
certificates stay as the machine has them, for the lock file's hashes decide which files are good.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
OLDEST = (3, 11)
NEWER_NAMES = ("python3.13", "python3.12", "python3.11", "python3.14", "python3.15")
TAIL_LINES = 15


def fail(message):
    sys.exit("setup: " + message)


def say(message):
    print("setup: " + message, flush=True)


def runs(python, code):
    """Whether ``python`` exists and runs ``code`` without complaint."""
    try:
        return subprocess.run([str(python), "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def find_python():
    """A Python that is new enough: this one, else one of the usual names."""
    new_enough = "import sys; sys.exit(sys.version_info < %r)" % (OLDEST,)
    for name in (sys.executable, *NEWER_NAMES):
        path = shutil.which(name)
        if path and runs(path, new_enough):
            return path
    raise SystemExit("setup: Python %d.%d or newer is needed, this is %s" % (*OLDEST, sys.version.split()[0]))


def make_venv():
    """Create the environment, or keep one that still works."""
    if runs(PYTHON, "import pip, sys; sys.exit(sys.version_info < %r)" % (OLDEST,)):
        return
    python = find_python()
    if not runs(python, "import ensurepip, venv"):
        fail("%s has no venv with pip; on Debian and Ubuntu: apt install python3-venv" % python)
    say("making .venv with %s" % python)
    if subprocess.run([python, "-m", "venv", "--clear", str(VENV)], check=False).returncode:
        fail("could not make .venv with %s (its message is above)" % python)


def pip(*arguments, total=0):
    """Run pip, one line a package; its last lines are shown if it fails."""
    settings = {
        "PIP_CONSTRAINT": os.devnull,
        "PIP_USER": "0",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    environment = {k: v for k, v in os.environ.items() if k not in ("PIP_TARGET", "PIP_PREFIX", "PIP_REQUIREMENT")}
    command = [str(PYTHON), "-m", "pip", "install", "--no-color", "--progress-bar", "off", *arguments]
    tail, done = [], 0
    with subprocess.Popen(
        command,
        cwd=str(ROOT),
        env={**environment, **settings},
        universal_newlines=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        for line in process.stdout:
            tail = [*tail[-TAIL_LINES:], line]
            word, _, rest = line.partition(" ")
            if total and word in ("Collecting", "Processing", "Requirement", "Ignoring"):
                done += 1
                if word in ("Collecting", "Processing"):
                    say("[%d/%d] %s" % (done, total, os.path.basename(rest.split()[0])))
            elif total and word == "Installing":
                say("unpacking")
    if process.returncode:
        fail("pip could not install the dependencies:\n" + "".join(tail))


def main():
    os.environ.pop("PYTHONHOME", None)
    make_venv()
    pinned = sum("==" in line and not line.startswith((" ", "#")) for line in LOCK.read_text().splitlines())
    say("installing %d locked dependencies" % pinned)
    pip("--require-hashes", "--no-deps", "-r", str(LOCK), total=pinned)
    say("installing the gateway command")
    pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    (VENV / ".ready").write_text("")
    say("done: .venv/bin/gateway")


main()

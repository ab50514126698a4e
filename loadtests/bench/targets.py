"""What can be measured. A further proxy is one small class here and its name in ``ALL``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from loadtests.bench.target import SECRET, Site, Target
from loadtests.bench.wire import MODEL
from loadtests.peers.litellm import LiteLLM
from loadtests.peers.production_stack import ProductionStack
from loadtests.peers.routers import SglangCacheAware, VllmCacheAware, VllmRoundRobin


class Direct(Target):
    """The stand-in itself: what the others' delays are compared with."""

    name = "direct"

    def command(self, site: Site) -> None:  # noqa: ARG002 (there is nothing to start)
        """Nothing to start."""
        return


class Nginx(Target):
    """nginx with one worker, keep-alive upstream connections, no buffering of answers and no access log."""

    name = "nginx"
    balance: ClassVar[str] = ""  # nginx's own word for how to choose; without one it takes turns

    def missing(self) -> str | None:
        """nginx is a package of the system."""
        return None if self._binary() else "nginx is not installed (Debian, Ubuntu: apt-get install nginx-light)"

    @staticmethod
    def _binary() -> str | None:
        return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")

    def version(self) -> str | None:
        """As nginx says it."""
        found = subprocess.run([self._binary() or "nginx", "-v"], capture_output=True, text=True, check=False)
        return found.stderr.strip().removeprefix("nginx version: ")

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        config = site.folder / "nginx.conf"
        config.write_text(self._config(site))
        return [str(self._binary()), "-p", str(site.folder), "-c", str(config), "-e", str(site.folder / "error.log")]

    @classmethod
    def _config(cls, site: Site) -> str:
        user = "user root;\n" if os.geteuid() == 0 else ""  # its worker must reach the folder, which is ours alone
        servers = "".join(f"    server {url.removeprefix('http://')};\n" for url in site.upstream_urls)
        temporary = "".join(
            f"  {kind}_temp_path tmp;\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""{user}daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off;
{temporary}  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  upstream replicas {{
{cls.balance}{servers}    keepalive 1024;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
  }}
  server {{
    listen 127.0.0.1:{site.port} backlog=4096;
    client_max_body_size 64m;
    client_body_buffer_size 2m;  # a body of 1 MB is held in memory, not in a file
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


class Naive(Target):
    """A FastAPI route that forwards with httpx, see ``loadtests/baseline.py``."""

    name = "fastapi+httpx"

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        where = ["--port", str(site.port), "--upstream", site.upstream_urls[0]]
        return [sys.executable, "-m", "loadtests.baseline", *where]


class Naivest(Naive):
    """The same with a client for each call, as most examples do it; without streams, which it would have to hold."""

    name = "fastapi+httpx-per-call"

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        return [*super().command(site), "--client-per-call"]


class Gateway(Target):
    """This project, one worker, with keys, routing, metrics and the usage watcher on.

    As nginx runs without its access log, ``log_level: warning`` leaves out the lines of calls that went well.
    """

    name = "gateway"

    def missing(self) -> str | None:
        """The command comes with the project's environment."""
        return None if importlib.util.find_spec("gateway") else "the gateway is not installed (make setup)"

    def version(self) -> str | None:
        """The commit that is checked out."""
        folder = Path(__file__).parent
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() or None

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        config = site.folder / "gateway.yaml"
        config.write_text(self._config(site))
        return [sys.executable, "-m", "gateway", "serve", "--config", str(config)]

    @staticmethod
    def _config(site: Site) -> str:
        first, *others = site.upstream_urls
        served = [(first, "long"), *((url, "short") for url in others)]
        replicas = "".join(
            f"      - {{name: r{number}, url: '{url}', serves: [{serves}], concurrency: {{min: 1024, max: 1024}}}}\n"
            for number, (url, serves) in enumerate(served)
        )
        return f"""server: {{host: 127.0.0.1, port: {site.port}, workers: 1, drain_s: 1, log_level: warning}}
state: {{kind: memory}}
auth: {{required: true}}
models:
  - name: {MODEL}
    replicas:
{replicas}teams:
  - name: bench
    keys: [{{id: bench, sha256: "{hashlib.sha256(SECRET.encode()).hexdigest()}"}}]
"""


class Compiled(Gateway):
    """The same with its data path compiled by mypyc (``make compile``)."""

    name = "gateway-compiled"
    folder = Path(__file__).parent.parent.parent / "build" / "compiled"

    def missing(self) -> str | None:
        """It is made apart."""
        return None if (self.folder / ".complete").exists() else "not compiled (make compile)"

    def command(self, site: Site) -> list[str]:
        """See ``Target``."""
        return ["env", f"PYTHONPATH={self.folder}", "PYTHONSAFEPATH=1", *super().command(site)]


ALL: tuple[Target, ...] = (
    Direct(),
    Nginx(),
    Naive(),
    Naivest(),
    Gateway(),
    Compiled(),
    VllmRoundRobin(),
    VllmCacheAware(),
    SglangCacheAware(),
    ProductionStack(),
    LiteLLM(),
)


def chosen(names: str | None) -> list[Target]:
    """The targets called ``names`` (commas between), all if ``None``. Raises ValueError naming what is unknown."""
    if names is None:
        return list(ALL)
    by_name = {target.name: target for target in ALL}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in by_name]:
        raise ValueError(f"no such target: {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [target for target in ALL if target.name in wanted]

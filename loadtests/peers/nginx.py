"""nginx with ``least_conn``: what an administrator would put up in ten minutes."""

from __future__ import annotations

from loadtests.bench.targets import Nginx
from loadtests.peers.peer import Peer


class LeastConnections(Nginx, Peer):
    """The replica with the fewest open requests; knows nothing of lengths, caches or caps."""

    name = "nginx"
    balance = "    least_conn;\n"

"""The keep-alive pool of one replica.

vLLM closes idle connections after 5 s, so idle ones are dropped after ``IDLE_S`` < 5 s; what still meets that race
is repeated once on a fresh connection. The pool has no size of its own: permits bound what is under way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.clock import Clock
from gateway.proxy.connection import ConnectFailed, Response, Stale, UpstreamConnection

IDLE_S = 4.0


class Origin(NamedTuple):
    """Where a replica listens. ``host_header`` is what ``Host`` says."""

    host: str
    port: int
    tls: bool

    @property
    def host_header(self) -> bytes:
        """``host:port`` with IPv6 addresses in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


def origin_of(url: str) -> Origin:
    """The origin of an ``http`` or ``https`` URL (already validated by settings)."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host = (parts.hostname or "").encode("idna").decode("ascii")
    return Origin(host, parts.port or (443 if tls else 80), tls)


class Upstream:
    """Connections to one replica: ``send`` a request over an idle one or a new one."""

    def __init__(self, origin: Origin, clock: Clock, *, connect_s: float, verify_tls: bool = True) -> None:
        self.origin = origin
        self.connect_s = connect_s
        self._clock = clock
        self._idle: list[UpstreamConnection] = []
        self._all: set[UpstreamConnection] = set()
        self._closed = False
        self._ssl = ssl_context(verify=verify_tls) if origin.tls else None

    @property
    def idle_connections(self) -> int:
        """Connections waiting for a request."""
        return len(self._idle)

    @property
    def open_connections(self) -> int:
        """Connections that are open, idle or not."""
        self._all = {connection for connection in self._all if not connection.closed}
        return len(self._all)

    async def send(self, pieces: Sequence[bytes]) -> Response:
        """Send one request; its response once the first body byte is there.

        Raises:
            UpstreamFault: no connection, or it failed before that byte.
        """
        kept = self._take_idle()
        if kept is not None:
            try:
                return await kept.perform(pieces)
            except Stale:
                pass  # the keep-alive race: nothing came back, so a fresh connection may say it again
            except BaseException:
                kept.abort()
                raise
        fresh = await self._connect()
        try:
            return await fresh.perform(pieces)
        except BaseException:
            fresh.abort()
            raise

    def sweep(self, now_s: float) -> None:
        """Close connections that were idle for too long; called by the data path's sweep."""
        while self._idle and (self._idle[0].closed or now_s - self._idle[0].idle_since_s >= IDLE_S):
            self._idle.pop(0).abort()
        if len(self._all) > 64:
            self._all = {connection for connection in self._all if not connection.closed}

    def close(self) -> None:
        """Close idle connections and keep none from now on; those under way finish."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _take_idle(self) -> UpstreamConnection | None:
        now = self._clock.monotonic()
        while self._idle:
            connection = self._idle.pop()  # the most recent: the rest may expire
            if not connection.closed and now - connection.idle_since_s < IDLE_S:
                return connection
            connection.abort()
        return None

    def _put_back(self, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.abort()
            return
        connection.idle_since_s = self._clock.monotonic()
        self._idle.append(connection)

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self._put_back, loop),
                    self.origin.host,
                    self.origin.port,
                    ssl=self._ssl,
                    server_hostname=self.origin.host if self._ssl else None,
                )
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {self.connect_s:g} s") from error
        except ssl.SSLError as error:
            raise ConnectFailed(f"TLS: {error.reason or 'handshake failed'}") from error
        except OSError as error:
            raise ConnectFailed(error.strerror or type(error).__name__) from error
        self._all.add(connection)
        return connection


def ssl_context(*, verify: bool) -> ssl.SSLContext:
    """TLS towards replicas, trusting whom the machine trusts; without ``verify`` anyone."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

"""Who may see what: clients' keys and the administrator's."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Protocol

from fastapi import Request

from gateway.clock import Clock
from gateway.control.responses import KeyGuessing
from gateway.domain import Key
from gateway.errors import Forbidden, InvalidKey
from gateway.ports import Directory
from gateway.wire.headers import credentials


class Pacer(Protocol):
    """Slows those who try keys."""

    async def hold(self, address: str) -> bool:
        """Return when a bad key from ``address`` may be answered; ``False`` closes the connection instead."""
        ...


class Access:
    """Checks the key a request carries. ``admin_key`` ``None``: nobody is administrator."""

    def __init__(self, directory: Directory, clock: Clock, pacer: Pacer, admin_key: str | None) -> None:
        self._directory = directory
        self._clock = clock
        self._pacer = pacer
        self._admin_digest = _digest(admin_key) if admin_key else None

    async def client(self, request: Request) -> Key:
        """The client's key. Raises ``InvalidKey``."""
        secret = credentials(request.scope["headers"])
        key = self._directory.find(secret, self._clock.wall())
        if key is None:
            raise await self._turn_away(request, secret, "your key")
        return key

    async def admin(self, request: Request) -> None:
        """Return for the administrator. Raises ``InvalidKey``, or ``Forbidden`` for a client's key."""
        secret = credentials(request.scope["headers"])
        if secret is not None and self._is_admin(secret):
            return
        if self._is_client(secret):
            raise Forbidden("This is for the administrator's key, not for clients' keys.")
        if self._admin_digest is None:
            raise InvalidKey("Nobody may see this: no auth.admin_key is configured.")
        raise await self._turn_away(request, secret, "the administrator's key")

    def _is_admin(self, secret: str) -> bool:
        # Digests of equal length are compared in constant time, so that timing tells neither length nor content.
        return self._admin_digest is not None and hmac.compare_digest(_digest(secret), self._admin_digest)

    def _is_client(self, secret: str | None) -> bool:
        """Whether ``secret`` is somebody's key; an open gateway knows everyone as nobody in particular."""
        now_s = self._clock.wall()
        key = self._directory.find(secret, now_s)
        return key is not None and key != self._directory.find(None, now_s)

    async def _turn_away(self, request: Request, secret: str | None, wanted: str) -> InvalidKey:
        if secret is None:
            return InvalidKey(f"No key was given: send {wanted} as 'Authorization: Bearer ...' or 'x-api-key: ...'.")
        if await self._pacer.hold(request.client.host if request.client else ""):
            return InvalidKey("This key is not known here, or no longer valid.")
        return KeyGuessing("Too many wrong keys from this address.")


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()

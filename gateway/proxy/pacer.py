"""Slows those who try keys: the first bad ones of a minute are answered at once, further ones wait their turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from aiolimiter import AsyncLimiter


class _Visitor:
    """One address: its leaky bucket and how many of its bad keys wait right now."""

    __slots__ = ("limiter", "waiting")

    def __init__(self, per_minute: int) -> None:
        self.limiter = AsyncLimiter(per_minute, 60)
        self.waiting = 0


class Pacer:
    """Holds back the answers to bad keys, address by address. Who shows a good key never comes here.

    ``per_minute`` bad keys are free; further ones wait for their turn, one every ``60 / per_minute`` seconds, but no
    longer than ``wait_max_s``. Bounded too are those waiting for one address and in all, and the addresses remembered
    (the least recently seen is forgotten first).
    """

    def __init__(
        self,
        *,
        per_minute: int = 10,
        wait_max_s: float = 5.0,
        waiters_per_address: int = 8,
        waiters_max: int = 1_024,
        addresses_max: int = 4_096,
    ) -> None:
        self._per_minute = per_minute
        self._wait_max_s = wait_max_s
        self._waiters_per_address = waiters_per_address
        self._waiters_max = waiters_max
        self._addresses_max = addresses_max
        self._visitors: OrderedDict[str, _Visitor] = OrderedDict()
        self._waiting = 0

    async def hold(self, address: str) -> bool:
        """Return when a bad key from ``address`` may be answered, after ``wait_max_s`` at the latest.

        ``False``, at once, if too many wait already: close the connection.
        """
        visitor = self._visit(_origin(address))
        if visitor.waiting == 0 and visitor.limiter.has_capacity():
            await visitor.limiter.acquire()  # does not wait
            return True
        if visitor.waiting >= self._waiters_per_address or self._waiting >= self._waiters_max:
            return False
        visitor.waiting += 1
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_max_s):
                await visitor.limiter.acquire()
        except TimeoutError:
            pass
        finally:
            visitor.waiting -= 1
            self._waiting -= 1
        return True

    def _visit(self, origin: str) -> _Visitor:
        visitor = self._visitors.get(origin)
        if visitor is None:
            visitor = self._visitors[origin] = _Visitor(self._per_minute)
            if len(self._visitors) > self._addresses_max:
                self._visitors.popitem(last=False)
        else:
            self._visitors.move_to_end(origin)
        return visitor


def _origin(address: str) -> str:
    """Return what counts as one visitor: an IPv4 address, or the /64 network an IPv6 host can pick addresses from."""
    try:
        parsed = ip_address(address)
    except ValueError:  # a Unix socket, or a test's name
        return address[:64]
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or int(parsed) >> 64)
    return str(parsed)

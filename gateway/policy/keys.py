"""Who may enter: secrets are known by their SHA-256 only."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from gateway.domain import Key, Team

SECRET_LENGTH_MAX = 512


class KeyTable:
    """Finds the key of a secret (``ports.Directory``). Immutable: a reload makes a new one.

    ``open_to`` is the team of callers without a known key where keys are not required (``auth.required: false``).
    Raises ``ValueError`` for a hash that is not 64 hex digits, and for two keys with the same secret.

    A dict looks digests up, and its timing tells nothing useful: whoever probes cannot choose digests, only secrets,
    and how far the SHA-256 of a guess agrees with a stored one says nothing about the secret behind it.
    """

    __slots__ = ("_by_digest", "_otherwise")

    def __init__(self, keys: Iterable[Key], open_to: Team | None = None) -> None:
        self._by_digest: dict[bytes, Key] = {}
        for key in keys:
            known = self._by_digest.setdefault(_digest(key), key)
            if known is not key:
                raise ValueError(f"keys {known.id!r} and {key.id!r} have the same secret")
        self._otherwise = None if open_to is None else Key(id="anonymous", team=open_to, sha256="")

    def find(self, secret: str | None, now_s: float) -> Key | None:
        """The key whose secret this is; without one, the anonymous key of an open gateway, or ``None``.

        A key counts as unknown from ``expires_at_s`` on (``now_s``: Unix time).
        """
        if secret is None or len(secret) > SECRET_LENGTH_MAX:
            return self._otherwise
        # surrogatepass: any str has a digest, and different ones have different digests
        key = self._by_digest.get(sha256(secret.encode("utf-8", "surrogatepass")).digest())
        if key is None or (key.expires_at_s is not None and now_s >= key.expires_at_s):
            return self._otherwise
        return key


def _digest(key: Key) -> bytes:
    digest = bytes.fromhex(key.sha256)
    if len(digest) != 32:
        raise ValueError(f"key {key.id!r}: sha256 must be 64 hex digits")
    return digest

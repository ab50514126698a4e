"""Keys: known by hash, with an end, and nothing else gets in."""

from __future__ import annotations

from hashlib import sha256

import pytest

from gateway.domain import Key, Team
from gateway.policy.keys import SECRET_LENGTH_MAX, KeyTable

TEAM = Team("research")


def key(secret: str, name: str = "alice", expires_at_s: float | None = None) -> Key:
    digest = sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
    return Key(id=name, team=TEAM, sha256=digest, expires_at_s=expires_at_s)


ALICE, BOB = key("sk-alice"), key("sk-bob", "bob", expires_at_s=100.0)
TABLE = KeyTable((ALICE, BOB))


@pytest.mark.parametrize(
    ("secret", "now_s", "found"),
    [
        ("sk-alice", 0.0, ALICE),
        ("sk-bob", 99.9, BOB),
        ("sk-bob", 100.0, None),
        ("sk-Alice", 0.0, None),
        ("sk-alice ", 0.0, None),
        ("", 0.0, None),
        (None, 0.0, None),
        (ALICE.sha256, 0.0, None),  # who steals the hashes cannot enter with them
        ("\ud800", 0.0, None),
        ("ключ\x00", 0.0, None),
        ("x" * 10_000_000, 0.0, None),
    ],
)
def test_find(secret: str | None, now_s: float, found: Key | None) -> None:
    assert TABLE.find(secret, now_s) is found


def test_secret_length_is_bounded() -> None:
    longest, too_long = "x" * SECRET_LENGTH_MAX, "x" * (SECRET_LENGTH_MAX + 1)
    table = KeyTable((key(longest, "a"), key(too_long, "b")))
    assert table.find(longest, 0.0) is not None
    assert table.find(too_long, 0.0) is None


def test_lone_surrogates_have_digests_of_their_own() -> None:
    table = KeyTable((key("a?"),))
    assert table.find("a\ud800", 0.0) is None
    assert KeyTable((key("a\ud800"),)).find("a\ud800", 0.0) is not None


def test_open_gateway_takes_everyone_but_knows_its_keys() -> None:
    table = KeyTable((ALICE, BOB), open_to=Team("everyone"))
    for secret in (None, "EMPTY", "x" * 10_000):
        found = table.find(secret, 0.0)
        assert found is not None
        assert (found.id, found.team.name) == ("anonymous", "everyone")
    assert table.find("sk-alice", 0.0) is ALICE
    expired = table.find("sk-bob", 1_000.0)
    assert expired is not None
    assert expired.team.name == "everyone"


def test_the_anonymous_key_has_no_secret() -> None:
    assert KeyTable((), open_to=None).find("", 0.0) is None


def test_faulty_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="'alice' and 'carol' have the same secret"):
        KeyTable((ALICE, key("sk-alice", "carol")))
    with pytest.raises(ValueError, match="64 hex digits"):
        KeyTable((Key("dave", TEAM, "abcd"),))
    with pytest.raises(ValueError):
        KeyTable((Key("dave", TEAM, "z" * 64),))


def test_upper_case_hex_is_the_same_hash() -> None:
    assert KeyTable((Key("alice", TEAM, ALICE.sha256.upper()),)).find("sk-alice", 0.0) is not None

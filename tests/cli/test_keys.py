"""G1: a key is shown once and only its hash goes into the settings, in a line that can be pasted as it is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gateway.cli import build, run
from gateway.cli.keys import new_secret, yaml_line
from gateway.settings import load


def test_g1_new_key_lets_its_secret_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build("keys"), ["keys", "new", "--id", "alice"]) == 0
    lines = capsys.readouterr().out.splitlines()
    secret, line = lines[1].strip(), lines[3]  # the line goes in as it is printed, its indentation included
    assert re.fullmatch(r"gk-[A-Za-z0-9_-]{43}", secret)
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "models: [{name: m, replicas: [{name: r, url: http://gpu1:8000}]}]\n"
        f"teams:\n  - name: t\n    keys:\n{line}\n",
        encoding="utf-8",
    )
    key = load(config, {}).compile().keys[0]
    assert (key.id, key.sha256) == ("alice", hashlib.sha256(secret.encode()).hexdigest())


def test_g1_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(build("keys"), ["keys", "new"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_secrets_differ_and_so_do_ids_that_nobody_chose(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    for _ in range(2):
        assert run(build("keys"), ["keys", "new"]) == 0
    ids = re.findall(r"\{id: (key-[0-9a-f]{8}),", capsys.readouterr().out)
    assert len(set(ids)) == 2


@pytest.mark.parametrize("key_id", ["a b", "-a", "ä", "x" * 65, 'a", admin: "b', "a\nb"])
def test_an_id_the_settings_would_refuse_is_one_line(key_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build("keys"), ["keys", "new", f"--id={key_id}"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("--id: must be 1 to 64 letters")
    assert shown.err.count("\n") == 1


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
    | st.sampled_from(["1", "1e3", "0x1F", "true", "NULL", "2027-01-31", "1.5", "no", "1_000"])
)
def test_the_line_reads_back_whatever_the_id(key_id: str) -> None:
    assert YAML(typ="safe", pure=True).load(yaml_line(key_id, "gk-x"))[0] == {
        "id": key_id,
        "sha256": hashlib.sha256(b"gk-x").hexdigest(),
    }

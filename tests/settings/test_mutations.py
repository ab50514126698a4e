"""Whatever is done to a settings file, loading it ends in settings or in ``SettingsError``, never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gateway.settings import SettingsError, load

EXAMPLE = Path(__file__).parents[2] / "config" / "gateway.example.yaml"
TEXT = EXAMPLE.read_text(encoding="utf-8")
NASTY = (
    "\t", "${", "${A}",
    "${A:-", "*a", "&a ", "!!python/object:os.system ", "<<: ", "? ", "- ", "[", "]", "{", "}", ": ",
    "\x00", "\ufeff", "\u2028", "%YAML 1.1\n---\n", "%FOO\n", "---\n", "...\n", "|\n", ">\n", '"\\x', '"\\U00110000"',
    '"\\UFFFFFFFF"', "'", "#", ".nan", "1e999", "0x", "0o9", "1:60", "2027-13-99", "2027-01-01T99:99:99", "!!int ",
    "!!float x", "!!bool x", "!!binary x", "!!set ", "!!timestamp x", "~", "\U0001f600", "9" * 5_000,
)  # fmt: skip
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ends_well(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    lines = [f"{path}: usable"]
    try:
        load(path, {"A": "x"}).compile()
    except SettingsError as error:
        lines = error.faults
    assert lines
    assert all(line.startswith(str(path)) and line.isprintable() for line in lines)


@pytest.mark.parametrize("nasty", NASTY, ids=ascii)
@pytest.mark.parametrize("before", ["", "server:", "host: ", "port: ", "- name: ", "expires: ", "sha256: ", "limits:"])
def test_nasty_text_in_likely_places(tmp_path: Path, before: str, nasty: str) -> None:
    ends_well(tmp_path / "f.yaml", TEXT.replace(before, before + nasty, 1).encode())


@QUICK
@given(st.integers(0, len(TEXT)), st.integers(0, 40), st.one_of(st.sampled_from(NASTY), st.text(max_size=12)))
def test_text_replaced_anywhere(tmp_path: Path, start: int, length: int, new: str) -> None:
    mutated = TEXT[:start] + new + TEXT[start + length :]
    ends_well(tmp_path / "f.yaml", mutated.encode("utf-8", "surrogatepass"))


@QUICK
@given(st.binary(max_size=200))
def test_bytes_that_are_no_settings(tmp_path: Path, raw: bytes) -> None:
    ends_well(tmp_path / "f.yaml", raw)


@QUICK
@given(st.data())
def test_a_value_of_any_kind_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    document = YAML(typ="safe", pure=True).load(TEXT)
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text("aZ0.-/:@ é\t${}", max_size=30),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text("abname_", max_size=6), inner, max_size=3)
            ),
            max_leaves=5,
        )
    )
    path = tmp_path / "f.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(document, file)
    ends_well(path, path.read_bytes())

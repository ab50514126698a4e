"""Every fault is one line with file, line and key (F7 and "bad YAML: one clear line")."""

# ruff: noqa: E501  (the rows hold the exact lines)

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import SettingsError, load

HASH_A, HASH_B = "a" * 64, "b" * 64
NAME_RULE = "must be 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
MODEL_RULE = "must be 1 to 128 letters, digits or any of . _ - / : @ +, starting with a letter or digit"
WHEN = "must be a date (2027-01-31) or a date and time with zone (2027-01-31T18:00:00+02:00)"
BASE = f"""\
server: {{port: 8080}}
state: {{kind: memory}}
auth: {{required: true, admin_key: "0123456789abcdef"}}
models:
  - name: qwen
    aliases: [default]
    replicas:
      - {{name: tp2, url: http://gpu1:8000, concurrency: {{min: 48, max: 64}}}}
      - name: dp0
        url: http://gpu2:8000
        concurrency:
          min: 48
          max: 64
    queue: {{depth: 256}}
    timeouts: {{connect_s: 5}}
teams:
  - name: research
    models: [qwen]
    limits: {{concurrency: 24}}
    keys:
      - {{id: alice, sha256: "{HASH_A}"}}
"""


def faults_of(path: Path, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(path, env or {})
    return [line.replace(f"{path.parent}/", "") for line in caught.value.faults]


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "gateway.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_base_of_the_rows_below_is_without_fault(tmp_path: Path) -> None:
    assert load(write(tmp_path, BASE), {}).compile().models[0].name == "qwen"


ROWS = [
    # (what to replace, by what, the line)
    ("{port: 8080}", "{prot: 8080}", "1: server.prot: unknown key (did you mean port?)"),
    ("{port: 8080}", "{port: 65536}", "1: server.port: must be <= 65535"),
    ("{port: 8080}", "{port: -1}", "1: server.port: must be >= 0"),
    ("{port: 8080}", "{port: true}", "1: server.port: must be a number"),
    ("{port: 8080}", "{port: 80.5}", "1: server.port: must be a whole number"),
    ("{port: 8080}", "{port: http}", "1: server.port: must be a whole number"),
    ("{port: 8080}", "{port: [1]}", "1: server.port: must be a whole number"),
    ("{port: 8080}", '{port: "${PORT}"}', "1: server.port: environment variable PORT is not set (${PORT:-…} would give a default)"),
    ("{port: 8080}", '{host: "${}"}', "1: server.host: malformed ${…}: write ${NAME} or ${NAME:-default}"),
    ("{port: 8080}", '{host: "a b"}', "1: server.host: must be a host name or an address, without port"),
    ("{port: 8080}", "{drain_s: .nan}", "1: server.drain_s: must be a finite number"),
    ("{port: 8080}", "{drain_s: .inf}", "1: server.drain_s: must be a finite number"),
    ("{port: 8080}", "{drain_s: -.inf}", "1: server.drain_s: must be a finite number"),
    ("{port: 8080}", "{drain_s: 1e400}", "1: server.drain_s: must be a finite number"),
    ("{port: 8080}", "{drain_s: -1}", "1: server.drain_s: must be >= 0"),
    ("{port: 8080}", "{drain_s: 86401}", "1: server.drain_s: must be <= 86400"),
    ("{port: 8080}", "{header_read_s: 0}", "1: server.header_read_s: must be > 0"),
    ("{port: 8080}", "{body_bytes_max: 0}", "1: server.body_bytes_max: must be >= 1"),
    ("{port: 8080}", "{metrics_open: 1}", "1: server.metrics_open: must be true or false"),
    ("{port: 8080}", "{log_level: loud}", "1: server.log_level: must be 'debug', 'info', 'warning' or 'error'"),
    ("{port: 8080}", "{cors_origins: example.org}", "1: server.cors_origins: must be a list"),
    ("{port: 8080}", "{cors_origins: [example.org]}", "1: server.cors_origins[0]: must be an origin like http://host:8000"),
    ("{port: 8080}", "5", "1: server: must be a mapping"),
    ("{port: 8080}", "!x {port: 8080}", "1: server: tag !x is not supported"),
    ("{port: 8080}", "{port: !!int x}", "1: server.port: is no int"),
    ("{port: 8080}", "{port: 1, port: 2}", "1: server.port: duplicate key (first on line 1)"),
    ("{port: 8080}", "{8: 1}", "1: server.8: keys must be plain strings"),
    ("{port: 8080}", "&a {port: *a}", "1: server.port: an alias to a place around itself"),
    ("{port: 8080}", "{workers: 2}", "1: server.workers: must be 1 with state.kind: memory (each worker would count caps and queues for itself)"),
    ("kind: memory", "kind: redis", "2: state.kind: redis is not supported by this version, which keeps its state in memory: use memory and workers: 1"),
    ("kind: memory", "kind: etcd", "2: state.kind: must be 'memory' or 'redis'"),
    ("0123456789abcdef", "0123456789", "3: auth.admin_key: must have at least 16 characters"),
    ("0123456789abcdef", "0123456789 abcdef", "3: auth.admin_key: must be printable ASCII without blanks (it travels in a header)"),
    ("required: true", "required: maybe", "3: auth.required: must be true or false"),
    ("name: qwen", "name: q wen", f"5: models[0].name: {MODEL_RULE}"),
    ("name: qwen", "name: 7", "5: models[0].name: must be a string (quote it if it looks like something else)"),
    ("name: qwen", "nmae: qwen", "5: models[0].name: is required|5: models[0].nmae: unknown key (did you mean name?)"),
    ("[default]", "[default, default]", "6: models[0].aliases[1]: model name or alias default is already used at models[0].aliases[0]"),
    ("[default]", "[qwen]", "6: models[0].aliases[0]: model name or alias qwen is already used at models[0].name"),
    ("name: tp2", "name: dp0", "9: models[0].replicas[1].name: replica name dp0 is already used at models[0].replicas[0].name"),
    ("name: tp2", "name: größe", f"8: models[0].replicas[0].name: {NAME_RULE}"),
    ("name: tp2", f"name: {'x' * 65}", f"8: models[0].replicas[0].name: {NAME_RULE}"),
    ("http://gpu2:8000", "http://GPU1:8000/", "10: models[0].replicas[1].url: replica URL http://gpu1:8000 is already used at models[0].replicas[0].url"),
    ("http://gpu2:8000", "http://gpu2:8000/v1", "10: models[0].replicas[1].url: must end after host and port (no path such as /v1)"),
    ("http://gpu2:8000", "http://u:p@gpu2:8000", "10: models[0].replicas[1].url: must hold no user name or password"),
    ("http://gpu2:8000", "http://gpu2:8000?a=b", "10: models[0].replicas[1].url: must hold no query and no fragment"),
    ("http://gpu2:8000", "gpu2:8000", "10: models[0].replicas[1].url: must be a URL like http://host:8000"),
    ("http://gpu2:8000", "ftp://gpu2", "10: models[0].replicas[1].url: must be a URL like http://host:8000"),
    ("http://gpu2:8000", "http://gpu2:99999", "10: models[0].replicas[1].url: is not a URL that can be used"),
    ("http://gpu2:8000", "http://[::1", "10: models[0].replicas[1].url: is not a URL that can be used"),
    ("http://gpu2:8000", '"http://gpu 2:8000"', "10: models[0].replicas[1].url: must be a URL without blanks or special characters"),
    ("          min: 48\n          max: 64", "          min: 96\n          max: 64", "13: models[0].replicas[1].concurrency.max: must be >= min"),
    ("          min: 48\n          max: 64", "          min: 128", "12: models[0].replicas[1].concurrency.min: must be <= max (which is 96 where absent)"),
    ("          max: 64", "          max: 0", "13: models[0].replicas[1].concurrency.max: must be >= 1"),
    ("          max: 64", "          max: 4097", "13: models[0].replicas[1].concurrency.max: must be <= 4096"),
    ("          max: 64", "          maximum: 64", "13: models[0].replicas[1].concurrency.maximum: unknown key"),
    ("{depth: 256}", "{wait_s: {short: -0.1}}", "14: models[0].queue.wait_s.short: must be >= 0"),
    ("{depth: 256}", "{depth: -1}", "14: models[0].queue.depth: must be >= 0"),
    ("connect_s: 5", "prefill_tokens_per_s: 0", "15: models[0].timeouts.prefill_tokens_per_s: must be > 0"),
    ("connect_s: 5", "connect: 5", "15: models[0].timeouts.connect: unknown key (did you mean connect_s?)"),
    ("    queue: {", "    routing: {policy: random}\n    queue: {", "14: models[0].routing.policy: must be 'least_inflight' or 'round_robin'"),
    ("    queue: {", "    targets: {ttft_s: 2}\n    queue: {", "14: models[0].targets: unknown key"),
    ("teams:\n", "database: {url: x}\nteams:\n", "16: database: unknown key"),
    ("models: [qwen]", "models: [gpt]", "18: teams[0].models[0]: unknown model gpt"),
    ("models: [qwen]", "models: [default]", "18: teams[0].models[0]: default is an alias: write qwen"),
    ("name: research", "name: anonymous", "17: teams[0].name: anonymous is built in, for callers without a key"),
    ("concurrency: 24", "concurrency: -1", "19: teams[0].limits.concurrency: must be >= 0"),
    ("concurrency: 24", "concurrency: .nan", "19: teams[0].limits.concurrency: must be a finite number"),
    ("concurrency: 24", "concurrency: .inf", "19: teams[0].limits.concurrency: must be a finite number"),
    ("concurrency: 24", "concurrency: 1.5", "19: teams[0].limits.concurrency: must be a whole number"),
    ("concurrency: 24", "tokens_per_dya: 1", "19: teams[0].limits.tokens_per_dya: unknown key (did you mean tokens_per_day?)"),
    ("    limits:", "    weight: 0\n    limits:", "19: teams[0].weight: must be > 0"),
    ("    limits:", "    weight: .nan\n    limits:", "19: teams[0].weight: must be a finite number"),
    ("    limits:", "    priority: high\n    limits:", "19: teams[0].priority: must be 'interactive', 'standard' or 'batch'"),
    (HASH_A, "…", "21: teams[0].keys[0].sha256: must be 64 hex digits (`gateway keys new` prints them)"),
    ("{id: alice,", "{id: alice, expires: 2027-02-30,", f"21: teams[0].keys[0].expires: {WHEN}"),
    ("{id: alice,", "{id: alice, expires: 2027,", f"21: teams[0].keys[0].expires: {WHEN}"),
    ("{id: alice,", '{id: alice, expires: "2027-01-31T18:00:00",', "21: teams[0].keys[0].expires: needs a zone, e.g. 2027-01-31T18:00:00Z"),
    ("{id: alice,", f'{{id: alice, sha256: "{HASH_B}"}}\n      - {{id: alice,', "22: teams[0].keys[1].id: key id alice is already used at teams[0].keys[0].id"),
    ("{id: alice,", f'{{id: bob, sha256: "{HASH_A.upper()}"}}\n      - {{id: alice,', f"22: teams[0].keys[1].sha256: key hash {HASH_A} is already used at teams[0].keys[0].sha256"),
    (BASE[BASE.index("teams:") :], "teams: []\n", "16: teams: is required while auth.required is true (nobody could call)"),
    (BASE[BASE.index("models:\n") : BASE.index("teams:")], "", "1: models: is required"),
    (BASE[BASE.index("models:\n") : BASE.index("teams:")], "models: []\n", "4: models: must have at least one entry"),
    (BASE[BASE.index("      - {name: tp2") : BASE.index("    queue:")], "", "7: models[0].replicas: is required"),
    (BASE[BASE.index("teams:") :], "teams: [{name: a}, {name: a}]\n", "16: teams[1].name: team name a is already used at teams[0].name"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), ROWS, ids=[row[2] for row in ROWS])
def test_f7_each_fault_is_one_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert BASE.count(old) >= 1
    found = faults_of(write(tmp_path, BASE.replace(old, new, 1)))
    assert found == [f"gateway.yaml:{line}" for line in expected.split("|")]


UNREADABLE = [
    (b"", "gateway.yaml: is empty"),
    (b"# only a comment\n", "gateway.yaml: is empty"),
    (b"- a\n- b\n", "gateway.yaml:1: must be a mapping with the sections of the settings"),
    (b"models:\n\t- name: qwen\n", "gateway.yaml:2: not valid YAML: tab used for indentation (YAML wants spaces)"),
    (b"a: b: c\n", "gateway.yaml:1: not valid YAML: mapping values are not allowed here"),
    (b"a: 1\nb: [1\n", "gateway.yaml:3: not valid YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>'"),
    (b"a: 1\nb: {x: ${X}}\n", "gateway.yaml:2: not valid YAML: while parsing a flow mapping expected ',' or '}', but got '{' (quote strings that hold ${…}: \"${NAME}\")"),
    (b"a: *nowhere\n", "gateway.yaml:1: not valid YAML: found undefined alias 'nowhere'"),
    (b"a: 1\n--- \nb: 2\n", "gateway.yaml:2: not valid YAML: expected a single document in the stream but found another document"),
    (b"a: 1\nb: \x01\n", "gateway.yaml:2: not valid YAML: character U+0001 is not allowed"),
    (b"a: 1\nb: \xff\xfe\n", "gateway.yaml:2: not UTF-8 text"),
    (b"a: " + b"[" * 800, "gateway.yaml: nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "expected"), UNREADABLE, ids=[row[1] for row in UNREADABLE])
def test_what_is_no_yaml_is_one_line(tmp_path: Path, raw: bytes, expected: str) -> None:
    assert faults_of(write(tmp_path, raw)) == [expected]


def test_missing_file_and_directory_are_one_line(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "absent.yaml") == ["absent.yaml: no such file"]
    (tmp_path / "folder").mkdir()
    assert faults_of(tmp_path / "folder") == ["folder: is a directory, not a settings file"]


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    assert faults_of(write(tmp_path, b"#" * 5_000_000)) == ["gateway.yaml: larger than 4194304 bytes"]


def test_aliases_cannot_grow_a_small_file_without_bound(tmp_path: Path) -> None:
    bomb = "x0: &x0 [1]\n" + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert faults_of(write(tmp_path, bomb)) == ["gateway.yaml: more than 200000 values (aliases are copied out)"]


def test_all_faults_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = BASE.replace("port: 8080", "port: x").replace("concurrency: 24", "concurrency: -1").replace(HASH_A, "z")
    assert [line.split(": ")[0] for line in faults_of(write(tmp_path, text))] == [
        f"gateway.yaml:{n}" for n in (1, 19, 21)
    ]


@pytest.mark.parametrize("secret", ["hunter2-canary", "hunter2 canary with blanks"])
def test_g2_no_fault_quotes_a_secret(tmp_path: Path, secret: str) -> None:
    text = BASE.replace("0123456789abcdef", "${ADMIN}").replace(
        "url: http://gpu2:8000", 'url: "http://user:${ADMIN}@gpu2"\n        api_key: "${ADMIN}\\n"'
    )
    lines = faults_of(write(tmp_path, text), {"ADMIN": secret})
    assert len(lines) == 3
    assert not any("hunter2" in line for line in lines)

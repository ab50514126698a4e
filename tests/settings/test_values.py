"""What a good file comes to mean: environment, defaults, dates, secrets, warnings."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.domain import CallClass, Limits, Priority
from gateway.settings import Settings, load

MODELS = "models:\n  - name: qwen\n    replicas:\n      - {name: r0, url: http://gpu1:8000}\n"
TEAMS = f'teams:\n  - name: research\n    keys: [{{id: alice, sha256: "{"a" * 64}"}}]\n'


def loaded(folder: Path, text: str, **env: str) -> Settings:
    path = folder / "gateway.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, env)


def test_a_small_file_has_the_documented_defaults(tmp_path: Path) -> None:
    settings = loaded(tmp_path, MODELS + TEAMS)
    compiled = settings.compile()
    model, server = compiled.models[0], compiled.server
    assert (server.host, server.port, server.workers, server.body_bytes_max) == ("127.0.0.1", 8080, 1, 33_554_432)
    assert (model.upstream_name, model.aliases) == ("qwen", ())
    assert (model.replicas[0].cap_min, model.replicas[0].cap_max) == (48, 96)
    assert model.replicas[0].serves == {CallClass.SHORT, CallClass.LONG}
    assert (compiled.keys[0].id, compiled.keys[0].team.name) == ("alice", "research")
    assert compiled.teams[0].limits == Limits()
    assert compiled.anonymous is None
    assert settings.warnings == ()


def test_everything_given_reaches_the_domain(tmp_path: Path) -> None:
    text = """\
server: {port: 9000, cors_origins: ["https://Chat.example.org:443/"]}
models:
  - name: Qwen/Qwen3-32B
    upstream_name: /models/qwen
    aliases: [default]
    replicas:
      - name: r0
        url: https://[::1]:8443/
        serves: [long]
        concurrency: {max: 8}
        context_tokens: 1000
        verify_tls: false
    routing: {policy: round_robin, long_tokens: 5, overflow: false}
    queue: {depth: 1, wait_s: {short: 2, long: 3}}
    timeouts: {connect_s: 1, first_byte_s: 2, prefill_tokens_per_s: 3, idle_s: 4, total_s: 5, write_stall_s: 6}
    retry: {attempts_max: 1, budget_share: 0.5, budget_burst: 2}
    breaker: {failures: 2, open_s: 3}
teams:
  - {name: t, weight: 2, priority: batch, models: [Qwen/Qwen3-32B], limits: {tokens_per_day: 0}}
"""
    compiled = loaded(tmp_path, text).compile()
    model, team = compiled.models[0], compiled.teams[0]
    replica = model.replicas[0]
    assert compiled.server.cors_origins == ("https://chat.example.org",)
    assert (model.name, model.upstream_name, model.aliases) == ("Qwen/Qwen3-32B", "/models/qwen", ("default",))
    assert (replica.url, replica.cap_min, replica.cap_max) == ("https://[::1]:8443", 8, 8)
    assert (replica.serves, replica.context_tokens, replica.verify_tls) == ({CallClass.LONG}, 1000, False)
    assert (model.routing.policy, model.routing.long_tokens, model.routing.overflow) == ("round_robin", 5, False)
    assert (model.queue.depth, model.queue.wait_short_s, model.queue.wait_long_s) == (1, 2.0, 3.0)
    timeouts = model.timeouts
    assert (timeouts.connect_s, timeouts.first_byte_s, timeouts.prefill_tokens_per_s) == (1.0, 2.0, 3.0)
    assert (timeouts.idle_s, timeouts.total_s, timeouts.write_stall_s) == (4.0, 5.0, 6.0)
    assert (model.retry.attempts_max, model.retry.budget_share, model.retry.budget_burst) == (1, 0.5, 2.0)
    assert (model.breaker.failures, model.breaker.open_s) == (2, 3.0)
    assert (team.weight, team.priority, team.models) == (2.0, Priority.BATCH, {"Qwen/Qwen3-32B"})
    assert team.limits.suspended


def test_environment_fills_any_string(tmp_path: Path) -> None:
    text = 'server: {port: "${PORT:-9}", host: "${HOST}", metrics_open: "${OPEN}", drain_s: "${D:-1}.5"}\n'
    server = loaded(tmp_path, text + MODELS + TEAMS, HOST="gw.local", OPEN="True", D="").server
    assert (server.port, server.host, server.metrics_open, server.drain_s) == (9, "gw.local", True, 1.5)


def test_environment_values_are_not_read_as_yaml_or_filled_again(tmp_path: Path) -> None:
    text = 'auth: {admin_key: "${KEY}"}\n'
    auth = loaded(tmp_path, text + MODELS + TEAMS, KEY="${HOME}{a:1,b:[2]}").auth
    assert auth.admin_key is not None
    assert auth.admin_key.get_secret_value() == "${HOME}{a:1,b:[2]}"


def test_an_empty_secret_is_no_secret(tmp_path: Path) -> None:
    text = 'auth: {admin_key: "${KEY:-}"}\n' + MODELS.replace("8000}", '8000, api_key: "${UP:-}"}') + TEAMS
    compiled = loaded(tmp_path, text).compile()
    assert compiled.auth.admin_key is None
    assert compiled.models[0].replicas[0].api_key is None


def test_keys_without_a_value_count_as_absent(tmp_path: Path) -> None:
    text = "server:\nstate:\nauth: {admin_key: null}\n" + MODELS + TEAMS + "    limits:\n    models:\n"
    assert loaded(tmp_path, text).compile().teams[0].models is None


def test_byte_order_mark_and_anchors_are_welcome(tmp_path: Path) -> None:
    text = (
        "\ufeff"
        + MODELS
        + "    timeouts: &t {connect_s: 1}\n"
        + MODELS.replace("models:\n", "").replace("qwen", "other").replace("r0", "r1")
        + "    timeouts: *t\n"
        + TEAMS
    )
    assert [model.timeouts.connect_s for model in loaded(tmp_path, text).compile().models] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2027-01-31", datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC)),
        ("2027-01-31T18:00:00+02:00", datetime(2027, 1, 31, 16, tzinfo=UTC)),
        ("2027-01-31 18:00:00Z", datetime(2027, 1, 31, 18, tzinfo=UTC)),
        ("'9999-12-31'", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_g1_expiry_is_a_day_to_its_end_or_a_moment_with_zone(tmp_path: Path, written: str, moment: datetime) -> None:
    text = MODELS + TEAMS.replace("id: alice", f"id: alice, expires: {written}")
    assert loaded(tmp_path, text).compile().keys[0].expires_at_s == pytest.approx(moment.timestamp())


def test_g2_secrets_are_in_no_repr(tmp_path: Path) -> None:
    text = 'auth: {admin_key: "${A}"}\n' + MODELS.replace("8000}", '8000, api_key: "${B}"}') + TEAMS
    settings = loaded(tmp_path, text, A="canary-admin-0123", B="canary-upstream")
    compiled = settings.compile()
    assert compiled.models[0].replicas[0].api_key == "canary-upstream"
    shown = repr(settings) + str(settings) + repr(compiled) + settings.model_dump_json()
    assert "canary" not in shown


def test_without_required_keys_everyone_is_anonymous(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "auth: {required: false}\nserver: {host: 0.0.0.0}\n" + MODELS)
    compiled = settings.compile()
    assert compiled.anonymous is not None
    assert [team.name for team in compiled.teams] == ["anonymous"]
    assert settings.warnings == (
        "auth.required is false: anyone who reaches the gateway may call, as team anonymous",
        "server.host 0.0.0.0 is open to the network and auth.required is false",
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_without_keys_is_warned_of_once(tmp_path: Path, host: str) -> None:
    settings = loaded(tmp_path, f'auth: {{required: false}}\nserver: {{host: "{host}"}}\n' + MODELS)
    assert len(settings.warnings) == 1


WARNINGS = [
    ("limits: {tokens_per_minute: 5}", "teams[0].limits.tokens_per_minute is read but not enforced by this version"),
    ("weight: 2", "teams[0].weight is read but has no effect in this version"),
    ("priority: batch", "teams[0].priority is read but has no effect in this version"),
]


@pytest.mark.parametrize(("line", "warning"), WARNINGS)
def test_f7_what_has_no_effect_yet_is_said(tmp_path: Path, line: str, warning: str) -> None:
    assert loaded(tmp_path, MODELS + TEAMS + f"    {line}\n").warnings == (warning,)


def test_f7_a_limit_of_zero_is_enforced_and_needs_no_warning(tmp_path: Path) -> None:
    settings = loaded(tmp_path, MODELS + TEAMS + "    limits: {tokens_per_minute: 0}\n")
    assert settings.warnings == ()
    assert settings.compile().teams[0].limits.suspended


def test_what_is_hardly_wanted_is_warned_of(tmp_path: Path) -> None:
    text = """\
models:
  - name: a
    routing: {overflow: false}
    replicas: [{name: r0, url: http://gpu1:8000, serves: [short], concurrency: {min: 1, max: 2}}]
  - name: b
    replicas: [{name: r1, url: http://gpu1:8000, serves: [short]}]
teams: [{name: t}]
"""
    assert loaded(tmp_path, text).warnings == (
        "teams: no team has a key, so nobody can call",
        "models[0]: no replica serves long, so long calls find no replica (routing.overflow is false)",
        "models[1]: no replica serves long, so long calls run on the others",
        "models[1].replicas[0] is the same server as models[0].replicas[0]: their caps add up on it",
        "models[0].replicas[0].concurrency.min is read but has no effect in this version: the cap is max",
    )

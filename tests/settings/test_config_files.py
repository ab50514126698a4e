"""The files in ``config/`` load as they are, say what the deployments need, and the example knows every setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from gateway.domain import CallClass
from gateway.settings import load
from gateway.settings.sections import Sections

CONFIG = Path(__file__).parents[2] / "config"
EXAMPLE = CONFIG / "gateway.example.yaml"
DEPLOYMENTS = ("D1", "D2", "D3", "D4", "D5", "D6")
LONGEST_PREFILL_S = {"D3": 89.7, "D4": 128.7, "D6": 128.7}  # measured, 240K tokens
CAPS = {"D1": [64], "D2": [32], "D3": [96], "D4": [64], "D5": [48, 48], "D6": [64, 48, 48]}


def test_every_file_here_is_known() -> None:
    assert {path.name for path in CONFIG.glob("*.yaml")} == {EXAMPLE.name, *(f"{name}.yaml" for name in DEPLOYMENTS)}


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_loads_without_any_environment_and_opens_to_nobody(path: Path) -> None:
    settings = load(path, {})
    assert settings.auth.required
    assert settings.auth.admin_key is None
    assert all(key.sha256.startswith("0" * 48) for key in settings.compile().keys)
    assert settings.warnings == (
        "teams[0].keys[0].sha256 is a placeholder: put the line that `gateway keys new` prints",
    )


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployment_caps_and_classes(name: str) -> None:
    model = load(CONFIG / f"{name}.yaml", {}).compile().models[0]
    assert [replica.cap_max for replica in model.replicas] == CAPS[name]
    assert {call_class for replica in model.replicas for call_class in replica.serves} == set(CallClass)


@pytest.mark.parametrize(("name", "prefill_s"), LONGEST_PREFILL_S.items())
def test_e5_a_240k_prefill_fits_the_first_byte_timeout_twice(name: str, prefill_s: float) -> None:
    timeouts = load(CONFIG / f"{name}.yaml", {}).compile().models[0].timeouts
    first_byte_s = timeouts.first_byte_s + 240_000 / timeouts.prefill_tokens_per_s
    assert 2 * prefill_s < first_byte_s < timeouts.total_s


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployment_tells_the_vllm_command_with_room_for_the_cap(name: str) -> None:
    text = (CONFIG / f"{name}.yaml").read_text(encoding="utf-8")
    replicas = load(CONFIG / f"{name}.yaml", {}).compile().models[0].replicas
    seats = [int(found) for found in re.findall(r"--max-num-seqs (\d+)", text)]
    ports = re.findall(r"--port (\d+)", text)
    assert [replica.url.rpartition(":")[2] for replica in replicas] == ports
    assert all(replica.cap_max <= seat for replica, seat in zip(replicas, seats, strict=True))
    assert text.count("--enable-prompt-tokens-details") >= len(replicas)
    assert text.count("--max-model-len") == len(replicas)


def test_example_shows_every_setting_with_its_default() -> None:
    shown = dict(_leaves(YAML(typ="safe", pure=True).load(EXAMPLE)))
    known = dict(_fields(Sections))
    assert shown.keys() == known.keys()
    given = {"name", "url", "id", "sha256", "admin_key", "api_key", "serves", "cors_origins", "aliases"}
    for path, default in known.items():
        if path.rpartition(".")[2] not in given:
            assert shown[path] == default, path


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _leaves(value[0], path + "[]")
    else:
        yield path, value


def _fields(spec: type[BaseModel], path: str = "") -> Iterator[tuple[str, object]]:
    for name, field in spec.model_fields.items():
        here = f"{path}.{name}" if path else name
        inner = next((found for found in (field.annotation, *get_args(field.annotation)) if _is_spec(found)), None)
        if inner is None:
            yield here, field.default
        else:
            yield from _fields(inner, here if inner is field.annotation else here + "[]")


def _is_spec(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)

"""Traces: replayed as written, converted as told."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.workloads.ask import Due, Kind
from loadtests.workloads.convert import convert
from loadtests.workloads.prompt import prompt_tokens
from loadtests.workloads.trace import Line, read, replay
from tests.loadtests.test_workloads import shared

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.0,0,5
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 2100, "output_length": 52, "hash_ids": [0, 1, 2, 3, 4]}
{"timestamp": 3500, "input_length": 1700, "output_length": 26, "hash_ids": [0, 1, 5, 6]}
{"timestamp": 3000, "input_length": 2560, "output_length": 7, "hash_ids": [0, 1, 2, 3, 7]}
{"timestamp": 9000, "input_length": 600, "output_length": 9, "hash_ids": [8, 9]}
"""


def lines_of(text: str, folder: Path) -> list[Line]:
    source, target = folder / "source", folder / "trace.jsonl"
    source.write_text(text)
    assert convert(source, target) == target.read_text().count("\n")
    return read(target)


def asks(lines: list[Line], **options: float) -> list[Due]:
    return list(replay(lines, seed=1, seconds=options.pop("seconds", 600), **options).arrivals[0])


def test_a_trace_is_replayed_as_written() -> None:
    lines = [Line(12.0, 300, 5, shared_prefix_tokens=160), Line(10.0, 400, 7, shared_prefix_tokens=320, team="b")]
    first, second = asks(lines)
    assert (first.at_s, second.at_s) == (0.0, 2.0)
    assert [prompt_tokens(due.ask.prompt) for due in (first, second)] == [400, 300]
    assert [due.ask.output_tokens for due in (first, second)] == [7, 5]
    assert (first.ask.team, first.ask.kind) == ("b", Kind.TRACE)
    assert shared(first.ask.blocks(), second.ask.blocks()) == 161 // 16


def test_rate_and_length_of_a_replay() -> None:
    lines = [Line(float(second), 100, 5) for second in range(100)]
    assert [due.at_s for due in asks(lines, rate=2.0, seconds=10.0)] == [number / 2 for number in range(20)]


def test_a_request_smaller_than_its_frame_or_prefix_keeps_its_size() -> None:
    tiny, whole = asks([Line(0, 1, 1), Line(1, 64, 1, shared_prefix_tokens=64)])
    assert prompt_tokens(tiny.ask.prompt) == 4  # one word in one message
    assert prompt_tokens(whole.ask.prompt) == 64


@pytest.mark.parametrize("text", [AZURE, AZURE_2024])
def test_azure(text: str, tmp_path: Path) -> None:
    first, second = lines_of(text, tmp_path)
    assert first.arrival_s == 0.0
    assert second.arrival_s == pytest.approx(4.314579 if text is AZURE else 0.007405, abs=1e-6)
    assert (first.prompt_tokens, first.output_tokens) == ((374, 44) if text is AZURE else (2162, 5))
    assert first.shared_prefix_tokens == 0


def test_mooncake_prefixes_are_shared_as_its_hashes_say(tmp_path: Path) -> None:
    lines = lines_of(MOONCAKE, tmp_path)
    assert [line.arrival_s for line in lines] == [0.0, 2.0, 2.5, 8.0]
    assert [line.shared_prefix_tokens for line in lines] == [2048, 2048, 1024, 0]
    one, two, three, alone = (due.ask for due in asks(lines))
    assert shared(one.blocks(), two.blocks()) == (1 + 2048) // 16
    assert shared(one.blocks(), three.blocks()) == shared(two.blocks(), three.blocks()) == (1 + 1024) // 16
    assert shared(one.blocks(), alone.blocks()) == 0
    assert [prompt_tokens(ask.prompt) for ask in (one, two, three, alone)] == [2100, 2560, 1700, 600]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,tokens\n1,2\n", "no column"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ('{"timestamp": 1}\n', "line 1"),
    ],
)
def test_what_is_no_trace_is_said(text: str, said: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(text)
    with pytest.raises(ValueError, match=said):
        convert(source, tmp_path / "target")


@pytest.mark.parametrize(
    "line", ['{"arrival_s": 0}', "nonsense", '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 0}']
)
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 1}\n\n' + line)
    with pytest.raises(ValueError, match="line 3"):
        read(path)


def test_an_empty_trace_is_no_workload() -> None:
    with pytest.raises(ValueError, match="no lines"):
        replay([], seed=1, seconds=10)

"""Public traces as lines for ``trace``: what their columns tell and nothing else.

Azure LLM inference traces (2023 and 2024, CSV): TIMESTAMP, ContextTokens, GeneratedTokens. They tell nothing of
shared prefixes, so there are none.
Mooncake traces (JSONL): timestamp (ms), input_length, output_length, hash_ids: one id for each block of 512
tokens, equal for equal prefixes.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import msgspec

from loadtests.workloads.trace import LINES_MAX, Line

MOONCAKE_BLOCK_TOKENS = 512
_FRACTION_DIGITS = 6


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def convert(source: Path, target: Path, *, lines_max: int = LINES_MAX) -> int:
    """Write ``source`` (its columns tell which it is) as a trace; the number of lines written.

    Requests without a token of prompt or answer are left out. Raises ``ValueError`` saying what is wrong, ``OSError``.
    """
    if not 1 <= lines_max <= LINES_MAX:
        raise ValueError(f"lines are 1 to {LINES_MAX}")
    with source.open(encoding="utf-8-sig", newline="") as file:
        start = file.read(1)
        file.seek(0)
        lines = (mooncake if start == "{" else azure)(file, lines_max)
    if not lines:
        raise ValueError(f"{source}: no requests in it")
    first_s = min(line.arrival_s for line in lines)
    encoder = msgspec.json.Encoder()
    with target.open("wb") as out:
        for line in sorted(lines, key=lambda one: one.arrival_s):
            arrival_s = round(line.arrival_s - first_s, _FRACTION_DIGITS)
            out.write(encoder.encode(msgspec.structs.replace(line, arrival_s=arrival_s)) + b"\n")
    return len(lines)


def azure(file: TextIO, lines_max: int) -> list[Line]:
    """The requests of an Azure trace. Raises ``ValueError`` naming the bad line."""
    rows = csv.DictReader(file)
    wanted = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
    if missing := wanted - set(rows.fieldnames or ()):
        raise ValueError(f"no column {', '.join(sorted(missing))}: this is no Azure trace")
    lines = []
    for number, row in enumerate(rows, 2):
        try:
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            arrival_s = _moment(row["TIMESTAMP"]).timestamp()
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {error}") from None
        if prompt > 0 and output > 0:
            lines.append(Line(arrival_s, prompt, output, team="azure"))
        if len(lines) == lines_max:
            break
    return lines


def _moment(text: str) -> datetime:
    """A timestamp, UTC where it names no zone; a fraction of seven digits (2023) is cut to microseconds."""
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def mooncake(file: TextIO, lines_max: int) -> list[Line]:
    """The requests of a Mooncake trace, each with the texts its prefix shares. Raises ``ValueError``."""
    found: list[_Mooncake] = []
    decoder = msgspec.json.Decoder(_Mooncake)
    for number, raw in enumerate(file, 1):
        try:
            one = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: {error}") from None
        if one.input_length > 0 and one.output_length > 0:
            found.append(one)
        if len(found) == lines_max:
            break
    uses = Counter(block for one in found for block in set(one.hash_ids))
    return [_line(one, list(_texts(one.hash_ids, one.input_length, uses))) for one in found]


def _line(one: _Mooncake, texts: Sequence[tuple[int, int]]) -> Line:
    return Line(
        arrival_s=one.timestamp / 1_000,
        prompt_tokens=one.input_length,
        output_tokens=one.output_length,
        shared_prefix_tokens=sum(tokens for _, tokens in texts),
        prefix=tuple(texts),
        team="mooncake",
    )


def _texts(ids: Sequence[int], tokens: int, uses: Counter[int]) -> Iterator[tuple[int, int]]:
    """The leading blocks that others have too, a text for each stretch of them with equally many users.

    Where two requests part ways the number of users falls, so both are cut there, and before it they are cut alike.
    """
    shared = [block for block in ids[: tokens // MOONCAKE_BLOCK_TOKENS] if uses[block] > 1]
    cuts = [0, *(at for at, (one, other) in enumerate(pairwise(shared), 1) if uses[one] != uses[other]), len(shared)]
    for start, stop in pairwise(cuts):
        if stop > start:
            yield shared[start], (stop - start) * MOONCAKE_BLOCK_TOKENS

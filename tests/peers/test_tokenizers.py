"""Ids of tokenizers next to transformers, on ten thousand fuzzed texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.llm.tokenizers import tokenizer_from_folder
from tests.llm.fuzzed_text import fuzzed_texts
from tests.llm.model_files import LLAMA2_TOKENIZER, model_file
from tests.llm.test_tokenizers import bpe_json

transformers = pytest.importorskip("transformers")

SPECIALS = ["<s>", "</s>", "<unk>", "<|end|>"]


def unigram_json() -> dict[str, Any]:
    """A unigram vocabulary of few pieces, with spaces as in SentencePiece."""
    pieces = [
        "<s>",
        "</s>",
        "<unk>",
        *"▁abcdefghijklmnopqrstuvwxyz0123456789.,'",
        "▁the",
        "ing",
        "▁a",
    ]
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    vocabulary = [[piece, -float(n % 7)] for n, piece in enumerate(pieces)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": n, "content": piece, "special": True, **flags} for n, piece in enumerate(pieces[:3])
    ]
    return {
        "added_tokens": added,
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": spaces,
        "post_processor": None,
        "decoder": spaces,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocabulary, "byte_fallback": False},
    }


def llama_json() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model_file(LLAMA2_TOKENIZER).read_bytes())
    return found


@pytest.mark.parametrize("make", [bpe_json, unigram_json, llama_json])
@pytest.mark.parametrize(
    "flags", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}]
)
def test_ids_are_those_of_transformers(make: Any, flags: dict[str, bool], tmp_path: Path) -> None:
    whole = make()
    names = [token["content"] for token in whole["added_tokens"]]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **flags}
    config |= {"bos_token": names[0], "eos_token": names[-1]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    ours = tokenizer_from_folder(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    unigram = whole["model"]["type"] == "Unigram"
    for text in fuzzed_texts(200 if flags else 10_000, 23, SPECIALS):
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False)
        expected = theirs.encode(text, add_special_tokens=True)
        assert ours.encode(text, special=True, add_bos=True) == expected
        if not (unigram and any(name in text for name in names)):
            # transformers makes special tokens of their names in unigram vocabularies in any case.
            theirs.split_special_tokens = theirs.backend_tokenizer.encode_special_tokens = True
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
            theirs.split_special_tokens = theirs.backend_tokenizer.encode_special_tokens = False

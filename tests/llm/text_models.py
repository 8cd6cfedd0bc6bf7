"""Folders of tiny models with tokenizers of the kinds that models have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from ostinato.llm.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from tests.llm.tiny_llm import TEMPLATE
from tests.llm.tiny_models import load_expected, write_folder

#: Tokens of a vocabulary.
SIZE = 400

_TEXTS = (
    "The sea is blue, and the boats on the sea are white. She doesn't know why they're here.",
    "def add(first, second):\n    return first + second\n\nprint(add(12, 345))",
    "One, two, three: 1 2 3. Four? 2024! naïve café Привет 你好 😀",
)

_SPECIAL = ("<unk>", "<s>", "</s>", "<|im_end|>")


def byte_level_bpe(pre: str = "gpt-2") -> Tokenizer:
    """BPE of bytes, split as GGUF files' pre-tokenizer of a name does."""
    found = Tokenizer(models.BPE(ignore_merges=PRE_TOKENIZERS[pre].ignore_merges))
    patterns = PRE_TOKENIZERS[pre].patterns
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - 5,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(_TEXTS, trainer)
    found.add_tokens([AddedToken("<think>", normalized=False)])
    return found


def sentencepiece_bpe() -> Tokenizer:
    """BPE of characters with bytes as fallback, and BOS before a prompt."""
    pieces = [*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", *"abcdehinorstuw.,"]
    words = ["nd", "th", "the", "\u2581the", "an", "and", "\u2581s", "\u2581se", "\u2581sea", "er"]
    known = {*pieces, *words}
    merges = [  # all pairs that make a word, as converters list them
        (word[:cut], word[cut:])
        for word in words
        for cut in range(1, len(word))
        if {word[:cut], word[cut:]} <= known
    ]
    pieces += words
    found = Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    found.add_special_tokens(list(_SPECIAL))
    found.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    found.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return found


def unigram() -> Tokenizer:
    """A unigram model of SentencePiece, as XLM-RoBERTa has one."""
    pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    words = ["\u2581the", "\u2581sea", "\u2581", "\u2581and", "ing", "er"]
    pieces += [(piece, -2.0 - number) for number, piece in enumerate(words)]
    pieces += [(character, -9.0) for character in "abcdefghijklmnopqrstuvwxyz.,!?'0123456789"]
    found = Tokenizer(models.Unigram(pieces, 3, byte_fallback=False))
    found.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    found.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A +| +\z"), "")]
    )
    found.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always")
    found.decoder = decoders.Metaspace("\u2581", "always")
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return found


def wordpiece() -> Tokenizer:
    """WordPiece, as BERT has it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["the", "sea", "is", "blue", "##s", "##ing", "##er", "boat", "and", "."]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [*special, *words, *letters, *(f"##{letter}" for letter in letters)]
    found = Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    found.add_special_tokens(special)
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return found


#: By the name that GGUF files have for the kind.
TOKENIZERS: Mapping[str, Callable[[], Tokenizer]] = {
    "gpt2": byte_level_bpe,
    "llama": sentencepiece_bpe,
    "t5": unigram,
    "bert": wordpiece,
}


def write_text_model(
    folder: Path, family: str, tokenizer: Tokenizer, config: Mapping[str, Any], seed: int = 0
) -> Path:
    """Write a model with random weights for :data:`SIZE` tokens, and its tokenizer.

    Args:
        folder: of the model.
        family: the name of a model of ``expected``.
        tokenizer: of the model.
        config: changes of ``config.json``.
        seed: of the weights.
    """
    expected = load_expected(family)
    old = expected.config["vocab_size"]
    shapes = {
        name: [SIZE, *shape[1:]] if shape[0] == old else shape
        for name, shape in expected.shapes.items()
    }
    whole = {**expected.config, "vocab_size": SIZE, **config}
    write_folder(folder, whole, shapes, seed)
    write_text_files(folder, tokenizer)
    return folder


def write_text_files(folder: Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer, and a chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    bert = tokenizer.token_to_id("[CLS]") is not None
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    if not bert:
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>"}
    settings: dict[str, Any] = {**names, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

"""Tokenizers: ids of GGUF vocabularies and of ``tokenizer.json``, their bytes, hostile files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from ostinato.errors import InputError, ModelFormatError
from ostinato.frontends.gguf import GGUFFile
from ostinato.llm.tokenizers import (
    Tokenizer,
    tokenizer_from_folder,
    tokenizer_from_gguf,
    tokenizer_from_json,
)
from ostinato.llm.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from ostinato.llm.tokenizers.token_bytes import BYTE_OF_CHARACTER
from tests.llm.fuzzed_text import fuzzed_texts
from tests.llm.model_files import LLAMA2_TOKENIZER, SMOLLM2, model_file

CHARACTERS = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def byte_level_metadata(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    """A vocabulary of all bytes, some merges, a control token and a token of the user."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ"]
    pieces = [*CHARACTERS.values(), *(merge.replace(" ", "") for merge in merges)]
    pieces += ["<|im_end|>", "<|begin|>", "<tool>"]
    types = [1] * (len(pieces) - 3) + [3, 3, 4]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": pieces,
        "merges": merges,
        "token_type": np.array(types, np.int32),
        "bos_token_id": pieces.index("<|begin|>"),
        "eos_token_id": pieces.index("<|im_end|>"),
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "h", "e", "l", "o", "▁h", "el", "lo", "▁hel", "▁hello", "▁w", "é"]
    scores = [0.0] * len(pieces) + [-float(n) for n in range(len(words))]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words)
    metadata = {
        "model": "llama",
        "tokens": pieces + words,
        "scores": np.array(scores, np.float32),
        "token_type": np.array(types, np.int32),
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def unigram_metadata(**changes: Any) -> dict[str, Any]:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁hello", "wor", "ld", "▁w", "o", "l", "<", ">"]
    scores = [0.0] * 4 + [-float(n) for n in range(1, len(pieces) - 3)]
    metadata = {
        "model": "t5",
        "tokens": pieces,
        "scores": np.array(scores, np.float32),
        "token_type": np.array([3, 3, 3, 2] + [1] * (len(pieces) - 4), np.int32),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "add_bos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def wordpiece_metadata(**changes: Any) -> dict[str, Any]:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "▁hello",
        "▁wor",
        "ld",
        "▁,",
        "▁中",
        "s",
    ]
    metadata = {
        "model": "bert",
        "tokens": pieces,
        "token_type": np.array([3, 2, 3, 3, 3] + [1] * (len(pieces) - 5), np.int32),
        "cls_token_id": 2,
        "bos_token_id": 2,
        "seperator_token_id": 3,
        "eos_token_id": 3,
        "unknown_token_id": 1,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def pieces_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[str | None]:
    return [tokenizer.piece(token) for token in tokenizer.encode(text, **options)]


# -- kinds of vocabularies -------------------------------------------------------------------------


def test_byte_level_bpe() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    assert pieces_of(tokenizer, "hello wo") == ["hello", "Ġwo"]
    assert pieces_of(tokenizer, "123") == ["1", "2", "3"], "digits stand alone"
    assert pieces_of(tokenizer, "é") == [CHARACTERS[0xC3], CHARACTERS[0xA9]]
    assert tokenizer.vocabulary_size == 256 + 10 + 3
    assert tokenizer.bos == tokenizer.id_of("<|begin|>")
    assert tokenizer.end_tokens == {tokenizer.eos} == {tokenizer.id_of("<|im_end|>")}


def test_special_tokens_are_parsed_where_the_caller_says_so() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    assert pieces_of(tokenizer, "h<|im_end|>", special=True) == ["h", "<|im_end|>"]
    assert pieces_of(tokenizer, "h<|im_end|>") == ["h", *"<|im_end|>"]
    assert pieces_of(tokenizer, "h<tool>") == ["h", "<tool>"], "no special token, but the user's"
    assert tokenizer.decode(tokenizer.encode("h<|im_end|>", special=True)) == "h"
    ids = tokenizer.encode("h<|im_end|>", special=True)
    assert tokenizer.decode(ids, special=True) == "h<|im_end|>"


def test_the_tokens_around_a_prompt_are_those_of_the_file() -> None:
    plain = tokenizer_from_gguf(byte_level_metadata("smollm"))
    assert pieces_of(plain, "h", add_bos=True) == ["h"]
    named = tokenizer_from_gguf(byte_level_metadata("llama-bpe"))
    assert pieces_of(named, "h", add_bos=True) == ["<|begin|>", "h"]
    assert pieces_of(named, "h") == ["h"]
    both = tokenizer_from_gguf(byte_level_metadata(add_bos_token=True, add_eos_token=True))
    assert pieces_of(both, "h", add_bos=True) == ["<|begin|>", "h", "<|im_end|>"]
    silent = tokenizer_from_gguf(byte_level_metadata("llama-bpe", add_bos_token=False))
    assert pieces_of(silent, "h", add_bos=True) == ["h"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_all_of_a_text(name: str) -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata(name))
    for text in fuzzed_texts(60, 5):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_pre_tokenizer_is_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"'newest', which is not known.*llama-bpe.*qwen2"):
        tokenizer_from_gguf(byte_level_metadata("newest"))
    with pytest.raises(ModelFormatError, match=r"no tokenizer\.ggml\.pre"):
        tokenizer_from_gguf(byte_level_metadata(pre=None))  # type: ignore[arg-type]


def test_sentencepiece_bpe() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
    assert pieces_of(tokenizer, "hello hello", add_bos=True) == ["<s>", "▁hello", "▁hello"]
    assert pieces_of(tokenizer, "</s>hello", special=True) == ["</s>", "▁hello"]
    assert pieces_of(tokenizer, "é€") == ["▁", "é", "<0xE2>", "<0x82>", "<0xAC>"]
    assert tokenizer.decode(tokenizer.encode("hello é€")) == "hello é€"
    assert tokenizer.leading_spaces == 1
    assert tokenizer.decode(tokenizer.encode("  hello")) == "  hello"
    bare = tokenizer_from_gguf(sentencepiece_metadata(add_space_prefix=False))
    assert pieces_of(bare, "hello") == ["h", "el", "lo"]
    assert bare.leading_spaces == 0


def test_a_continuation_begins_with_no_space_of_its_own() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata())
    continued = tokenizer.encode_continuation("el hello")
    assert [tokenizer.piece(token) for token in continued] == ["el", "▁hello"]
    assert tokenizer.encode_continuation("") == []
    plain = tokenizer_from_gguf(byte_level_metadata())
    assert plain.encode_continuation("hello") == plain.encode("hello")


def test_unigram() -> None:
    tokenizer = tokenizer_from_gguf(unigram_metadata())
    found = pieces_of(tokenizer, "  hello   world ", add_bos=True)
    assert found == ["<s>", "▁hello", "▁", "wor", "ld", "</s>"]
    assert pieces_of(tokenizer, "hello</s>", special=True) == ["▁hello", "</s>"]
    assert "</s>" not in pieces_of(tokenizer, "hello</s>"), "the model's own piece is kept apart"


def test_wordpiece() -> None:
    tokenizer = tokenizer_from_gguf(wordpiece_metadata())
    found = pieces_of(tokenizer, "Hello, WORLDs 中中 strange", add_bos=True)
    assert found == ["[CLS]", "hello", ",", "wor", "##ld", "##s", "中", "中", "[UNK]", "[SEP]"]
    ids, segments = tokenizer.encode_pair("hello", "worlds")
    assert [tokenizer.piece(token) for token in ids] == [
        *("[CLS]", "hello", "[SEP]", "wor", "##ld", "##s", "[SEP]")
    ]
    assert segments == [0, 0, 0, 1, 1, 1, 1]
    assert tokenizer.decode(ids) == "hello worlds"


# -- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level_metadata, sentencepiece_metadata])
def test_a_text_is_the_bytes_of_its_tokens(make: Any) -> None:
    tokenizer = tokenizer_from_gguf(make())
    for text in fuzzed_texts(300, 7, controls=False):
        ids = tokenizer.encode(text)
        data = b"".join(tokenizer.token_bytes(token) for token in ids)
        if tokenizer.leading_spaces and text:
            assert data.startswith(b" ")
            data = data[1:]
        # SentencePiece has no other spelling of a space than the sign that stands for it.
        assert data.decode() == (text.replace("▁", " ") if tokenizer.leading_spaces else text)
        assert data == tokenizer.decode_bytes(ids)


def test_broken_utf8_becomes_the_replacement_character() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    whole = tokenizer.encode("a😘b")
    assert tokenizer.decode(whole) == "a😘b"
    assert tokenizer.decode([*whole[:3], whole[-1]]) == "a\ufffdb"


def test_ids_without_a_piece_have_no_bytes() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    assert tokenizer.token_bytes(10_000) == b""
    assert tokenizer.piece(10_000) is None
    with pytest.raises(InputError, match="-1"):
        tokenizer.token_bytes(-1)
    with pytest.raises(InputError, match="from 0 to"):
        tokenizer.decode([1 << 40])


def test_text_is_checked() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    with pytest.raises(InputError, match=r"surrogate '\\ud800' at character 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(InputError, match="a text is a str, got bytes"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]
    assert tokenizer.encode("") == []


# -- damaged vocabularies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no vocabulary"),
        ({"model": "rwkv"}, "'rwkv', which is not known here"),
        ({"tokens": None}, "tokens is a list of strings"),
        ({"tokens": []}, "not empty"),
        ({"tokens": ["a", "a"], "token_type": None}, "tokens 0 and 1 are both 'a'"),
        ({"tokens": ["a\udcff"], "token_type": None}, "token 0 is no UTF-8"),
        ({"token_type": np.zeros(3, np.int32)}, "3 numbers for 269 tokens"),
        ({"scores": np.full(269, np.nan, np.float32)}, "score of token 0 is nan"),
        ({"merges": None}, "merges is a list"),
        ({"merges": ["h e", "zz y"]}, "merge 1 is no pair of tokens: 'zz y'"),
        ({"merges": ["he"]}, "merge 0 is no pair"),
        ({"eos_token_id": 300}, "eos_token_id is 300, beyond the 269 tokens"),
        ({"eos_token_id": "end"}, "eos_token_id is an integer, got 'end'"),
        ({"add_bos_token": "yes"}, "add_bos_token is a bool, got 'yes'"),
    ],
)
def test_a_damaged_vocabulary_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        tokenizer_from_gguf(byte_level_metadata(**changes))


def test_a_damaged_map_of_characters_is_refused() -> None:
    with pytest.raises(ModelFormatError):
        damaged = np.frombuffer(b"\xff" * 7, np.uint8)
        tokenizer_from_gguf(unigram_metadata(precompiled_charsmap=damaged))


# -- tokenizer.json --------------------------------------------------------------------------------


def bpe_json() -> dict[str, Any]:
    """A ``tokenizer.json`` of bytes with few merges."""
    vocabulary = {character: byte for byte, character in CHARACTERS.items()} | {"he": 256}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 257,
                "content": "<|end|>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["h", "e"]]},
    }


def test_a_folder(tmp_path: Path) -> None:
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    around = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps({**bpe_json(), "post_processor": around}))
    config = {
        "eos_token": {"content": "<|end|>"},
        "bos_token": "<s>",
        "add_bos_token": False,  # the file's own post-processor counts
        "added_tokens_decoder": {
            "257": {"content": "<|end|>", "special": True},
            "258": {"content": "<s>", "special": True},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = tokenizer_from_folder(tmp_path)
    assert (tokenizer.bos, tokenizer.eos) == (258, 257)
    assert tokenizer.end_tokens == {257}
    assert tokenizer.special_tokens == {257, 258}
    assert tokenizer.vocabulary_size == 259
    assert pieces_of(tokenizer, "he<s>", special=True, add_bos=True) == ["<s>", "he", "<s>"]
    assert pieces_of(tokenizer, "he<s>") == ["he", "<", "s", ">"]


def test_a_folder_without_tokenizer_json_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_bytes(b"")
    with pytest.raises(ModelFormatError, match=r"only vocab\.json.*save_pretrained"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"eos_token": 5}, "no token as eos_token: 5"),
        ({"added_tokens_decoder": []}, "no object as added_tokens_decoder"),
        (
            {"added_tokens_decoder": {"900": {"content": "<new>"}}},
            "the id 258, but tokenizer_config.json says '900'",
        ),
    ],
)
def test_a_damaged_configuration_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        tokenizer_from_json(json.dumps(bpe_json()).encode(), config)


def test_ids_far_beyond_the_vocabulary_are_refused() -> None:
    damaged = bpe_json()
    damaged["model"]["vocab"]["he"] = (1 << 32) - 1
    with pytest.raises(ModelFormatError, match="ids up to 4,294,967,295"):
        tokenizer_from_json(json.dumps(damaged).encode(), {})


def test_an_unknown_decoder_is_refused() -> None:
    strange = bpe_json() | {"decoder": {"type": "CTC", "pad_token": "<pad>"}}
    strange["decoder"] |= {"word_delimiter_token": "|", "cleanup": True}
    with pytest.raises(ModelFormatError, match=r"the step .*CTC.* not known here"):
        tokenizer_from_json(json.dumps(strange).encode(), {})


# -- real vocabularies -----------------------------------------------------------------------------


def test_smollm2_has_the_ids_of_its_own_tokenizer() -> None:
    """The ids are llama.cpp's; ``tests/peers/llm/test_llama_cpp.py`` compares many more."""
    tokenizer = tokenizer_from_gguf(GGUFFile(model_file(SMOLLM2)).metadata)
    prompt = "<|im_start|>user\nWhat's 2024?<|im_end|>\n"
    expected = [1, 4093, 198, 1780, 506, 216, 34, 32, 34, 36, 47, 2, 198]
    assert tokenizer.encode(prompt, special=True) == expected
    assert tokenizer.decode(expected, special=True) == prompt
    assert tokenizer.end_tokens == {0, 2}
    for text in fuzzed_texts(500, 11):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama2_as_gguf_has_the_ids_of_its_tokenizer_json() -> None:
    """Merges that follow from scores, in the place of the file's own."""
    data = model_file(LLAMA2_TOKENIZER).read_bytes()
    model = json.loads(data)["model"]
    vocabulary, merged = model["vocab"], [merge.replace(" ", "") for merge in model["merges"]]
    ranks = {piece: -float(rank) for rank, piece in reversed(list(enumerate(merged)))}
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    rest = len(pieces) - 259
    metadata = sentencepiece_metadata(
        tokens=pieces,
        scores=np.array([ranks.get(piece, -1e9) for piece in pieces], np.float32),
        token_type=np.array([2, 3, 3] + [6] * 256 + [1] * rest, np.int32),
    )
    from_gguf, library = tokenizer_from_gguf(metadata), Library.from_buffer(data)
    from_json = tokenizer_from_json(data, {"bos_token": "<s>", "eos_token": "</s>"})
    for text in fuzzed_texts(1000, 13, ["<s>", "</s>"]):
        expected = library.encode(text).ids
        assert from_gguf.encode(text, special=True, add_bos=True) == expected
        assert from_json.encode(text, special=True, add_bos=True) == expected
        assert from_gguf.encode(text) == from_json.encode(text)
        assert from_gguf.decode(expected) == from_json.decode(expected)

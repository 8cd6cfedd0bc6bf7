"""``tokenizer.model`` files, written by hand as protocol buffers."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

import ostinato as ost
from ostinato.llm.checkpoints import open_checkpoint
from ostinato.llm.loading import open_tokenizer
from ostinato.llm.quantize import quantize_file
from ostinato.llm.tokenizers import tokenizer_from_folder
from tests.llm.text_models import SIZE, byte_level_bpe, write_text_model

#: Pieces with scores and types: unknown, control, bytes, then those of text.
PIECES = (
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *((piece, -float(rank), 1) for rank, piece in enumerate(("th", "the", "\u2581the", "se"))),
    *((character, -100.0, 1) for character in "\u2581thesa"),
)


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    """A field of a message."""
    match value:
        case bytes():
            return varint(number << 3 | 2) + varint(len(value)) + value
        case float():
            return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value % (1 << 64))


def model_bytes(kind: int = 2, prefix: bool = True) -> bytes:
    """A file."""
    pieces = (
        field(1, field(1, text.encode()) + field(2, score) + field(3, type_number))
        for text, score, type_number in PIECES
    )
    trainer = field(3, kind) + field(40, 0) + field(41, 1) + field(42, 2) + field(43, -1)
    return b"".join(pieces) + field(2, trainer) + field(3, field(3, int(prefix)) + field(4, 0))


def test_texts_become_pieces(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(model_bytes())
    tokenizer = tokenizer_from_folder(tmp_path)

    def pieces(text: str) -> list[str | None]:
        return [tokenizer.piece(token) for token in tokenizer.encode(text)]

    assert pieces("the sea") == ["\u2581the", "\u2581", "se", "a"]
    assert pieces("bé") == ["\u2581", "<0x62>", "<0xC3>", "<0xA9>"]
    assert tokenizer.encode("the", add_bos=True)[0] == tokenizer.bos == 1
    assert tokenizer.eos == 2
    text = "the sea, 😀 <s>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 1 not in tokenizer.encode(text)
    assert 1 in tokenizer.encode(text, special=True)


def test_added_tokens_follow_the_pieces(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(model_bytes(prefix=False))
    count = len(PIECES)
    added = {str(count): {"content": "<|end|>", "special": True}, "1": {"content": "<s>"}}
    config = {"add_bos_token": False, "eos_token": "<|end|>", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer.encode("the<|end|>", special=True, add_bos=True)[-1] == count == tokenizer.eos
    assert tokenizer.encode("the", add_bos=True) == tokenizer.encode("the")
    config["added_tokens_decoder"] = {str(count + 1): {"content": "<|far|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ost.ModelFormatError, match=f"expected an id up to {count}"):
        tokenizer_from_folder(tmp_path)


def test_folders_with_them_are_written_as_files(tmp_path: Path):
    folder = write_text_model(tmp_path / "folder", "llama", byte_level_bpe(), {})
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model_bytes())
    path = quantize_file(folder, tmp_path / "model.gguf", "q8_0").path
    before, after = (open_tokenizer(source)[0] for source in (folder, path))
    assert after.vocabulary_size == SIZE == open_checkpoint(path).config.vocabulary
    for text in ("the sea", "  the\n", "é 😀"):
        assert after.encode(text, add_bos=True) == before.encode(text, add_bos=True)


def test_damaged_files_are_refused(tmp_path: Path):
    whole = model_bytes()
    file = tmp_path / "tokenizer.model"
    for wrong, message in (
        (b"", "has 0 pieces"),
        (whole[:-3], "damaged at byte"),
        (b"\xff" * 40, "damaged at byte"),
        (model_bytes(kind=3), "words or characters"),
        (field(1, field(1, b"\xff\xfe")) + whole, "piece 0 is no UTF-8"),
        (field(1, field(3, 77)) + whole, "piece 0 is damaged"),
    ):
        file.write_bytes(wrong)
        with pytest.raises(ost.ModelFormatError, match=message):
            tokenizer_from_folder(tmp_path)
    draw = random.Random(4)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        file.write_bytes(changed)
        try:
            tokenizer_from_folder(tmp_path).encode("the sea")
        except ost.ModelFormatError:
            continue


def test_other_vocabularies_say_what_to_do(tmp_path: Path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ost.ModelFormatError, match=r"only vocab\.json.*save_pretrained"):
        tokenizer_from_folder(tmp_path)

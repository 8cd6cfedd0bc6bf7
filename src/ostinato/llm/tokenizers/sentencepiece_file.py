"""Vocabularies of ``tokenizer.model`` files, which SentencePiece writes.

A file is one message of protocol buffers: pieces with scores and types, and the settings of the
trainer and of the normaliser. Its fields are read here, as values of GGUF metadata; the tokenizer
is then made as that of a GGUF file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["sentencepiece_metadata"]

_PREFIX: Final = "tokenizer.ggml."

#: Numbers of fields: of the file, of a piece, of the trainer's settings, of the normaliser's.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SUFFIX_SPACES = 3, 24
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPED = 2, 3, 4, 5

#: Special tokens by their name in GGUF metadata: the field of the trainer, and its default.
_TOKENS: Final = {"unknown": (40, 0), "bos": (41, 1), "eos": (42, 2), "padding": (43, -1)}

#: Kinds of vocabularies, by the number in the file and their name in GGUF metadata.
_KINDS: Final = {1: "t5", 2: "llama"}

_MOST_PIECES, _MOST_TYPE = 1 << 22, 6

#: Kinds of values: a number, 8 bytes, bytes after their length, 4 bytes.
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5


def sentencepiece_metadata(data: bytes, name: str) -> dict[str, Any]:
    """The vocabulary of a file, as values of GGUF metadata by whole key.

    Args:
        data: of the file.
        name: of the file, for messages.

    Raises:
        ModelFormatError: it is damaged, or of a kind that is not known.
    """
    pieces: list[bytes] = []
    trainer = normalizer = b""
    for number, value in _fields(data, name):
        if isinstance(value, bytes):
            if number == _PIECES:
                pieces.append(value)
            elif number == _TRAINER:
                trainer = value
            elif number == _NORMALIZER:
                normalizer = value
    if not pieces or len(pieces) > _MOST_PIECES:
        raise ModelFormatError(f"{name} has {len(pieces):,} pieces: it is no SentencePiece model")
    settings, rules = dict(_fields(trainer, name)), dict(_fields(normalizer, name))
    kind = _KINDS.get(_whole(settings.get(_MODEL_TYPE, 1), name))
    if kind is None:
        raise ModelFormatError(
            f"{name} is a SentencePiece model of words or characters; unigram and BPE are known"
        )
    if _whole(settings.get(_SUFFIX_SPACES, 0), name):
        raise ModelFormatError(f"{name} has spaces at the end of words, which is not computed")
    if not _whole(rules.get(_ESCAPED, 1), name):
        raise ModelFormatError(f"{name} has spaces that are not escaped, which is not computed")
    found = _vocabulary(pieces, name)
    prefix = bool(_whole(rules.get(_DUMMY_PREFIX, 1), name))
    found |= {"model": kind, "pre": "default", "add_space_prefix": prefix}
    merged = bool(_whole(rules.get(_EXTRA_SPACES, 1), name))
    charsmap = rules.get(_CHARSMAP, b"")
    if kind == "t5":
        found["remove_extra_whitespaces"] = merged
        if isinstance(charsmap, bytes) and charsmap:
            found["precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    for token, (number, default) in _TOKENS.items():
        chosen = _signed(_whole(settings.get(number, default), name))
        if 0 <= chosen < len(pieces):
            found[f"{token}_token_id"] = chosen
    return {f"{_PREFIX}{key}": value for key, value in found.items()}


def _vocabulary(pieces: list[bytes], name: str) -> dict[str, Any]:
    """Texts, scores and types of pieces; types have the numbers that GGUF files have taken over."""
    tokens: list[str] = []
    scores = np.zeros(len(pieces), np.float32)
    types = np.ones(len(pieces), np.int32)
    for number, piece in enumerate(pieces):
        fields = dict(_fields(piece, name))
        text, kind = fields.get(_TEXT, b""), _whole(fields.get(_TYPE, 1), name)
        score = fields.get(_SCORE, 0.0)
        if not isinstance(text, bytes) or not isinstance(score, float) or kind > _MOST_TYPE:
            raise ModelFormatError(f"{name}: piece {number:,} is damaged")
        scores[number], types[number] = score, kind
        try:
            tokens.append(text.decode())
        except UnicodeDecodeError:
            raise ModelFormatError(f"{name}: piece {number:,} is no UTF-8") from None
    return {"tokens": tokens, "scores": scores, "token_type": types}


# -- protocol buffers ------------------------------------------------------------------------------


def _fields(data: bytes, name: str) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a message: their numbers and values, a later one of a number after an earlier.

    Raises:
        ModelFormatError: the message ends within a field, or a field is of no known kind.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        key, at = _varint(view, at, name)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(view, at, name)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(view, at, name)
        elif kind in (_SHORT, _LONG):
            size = 4 if kind == _SHORT else 8
        else:
            raise _damaged(name, at)
        if size > len(view) - at:
            raise _damaged(name, at)
        part = bytes(view[at : at + size])
        at += size
        yield number, struct.unpack("<f", part)[0] if kind == _SHORT else part


def _varint(view: memoryview, at: int, name: str) -> tuple[int, int]:
    """A number in groups of seven bits, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            break
        octet = view[at]
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value & ((1 << 64) - 1), at
    raise _damaged(name, at)


def _damaged(name: str, at: int) -> ModelFormatError:
    return ModelFormatError(f"{name} is no SentencePiece model: it is damaged at byte {at:,}")


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int):
        raise ModelFormatError(f"{name} is no SentencePiece model: {value!r:.40} is no number")
    return value


def _signed(value: int) -> int:
    """A number of 32 bits with a sign, which a message has in 64."""
    return value - (1 << 64) if value >> 63 else value

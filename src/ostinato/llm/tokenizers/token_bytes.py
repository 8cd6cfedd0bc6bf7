"""Bytes that tokens stand for, by the steps of a tokenizer's decoder.

Every token has bytes of its own, and a text is their concatenation: what comes later changes
nothing, so a stream can show what it has. A character may be spread over several tokens.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BYTE_OF_CHARACTER", "TokenBytes"]


def _byte_alphabet() -> Iterator[tuple[str, int]]:
    """Characters that stand for bytes in vocabularies of byte-level BPE: GPT-2's."""
    following = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte), byte
        else:
            yield chr(following), byte
            following += 1


#: Byte by the character that stands for it in vocabularies of byte-level BPE.
BYTE_OF_CHARACTER: Final[Mapping[str, int]] = MappingProxyType(dict(_byte_alphabet()))

_HEXADECIMAL_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes of tokens.

    Args:
        decoder: of a ``tokenizer.json``, as parsed JSON; ``None``: pieces are words, with spaces
            between them.

    Attributes:
        leading_spaces: spaces that the first tokens of a text have for its beginning, at most, and
            that are no part of it.

    Raises:
        ModelFormatError: a step of the decoder is not known here.
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self.leading_spaces = 0
        self._replaced: list[tuple[str, str]] = []
        self._byte_level = self._byte_fallback = False
        self._continuing: str | None = None
        self._spaced = decoder is None
        if decoder is None:
            self.leading_spaces = 1
        else:
            for step in _steps(decoder):
                self._add(step)

    def _add(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
                self._replaced.append((old, new))
            case {"type": "Metaspace", "replacement": str(mark)} if mark:
                self._replaced.append((mark, " "))
                if step.get("prepend_scheme", "always") != "never":
                    self.leading_spaces = 1
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if start >= 0:
                self.leading_spaces = start
            case {"type": "WordPiece", "prefix": str(prefix)}:
                self._spaced, self._continuing, self.leading_spaces = True, prefix, 1
            case _:
                raise ModelFormatError(
                    f"the tokenizer has a decoder with the step {step!r:.120}, which is not known "
                    "here; known are ByteLevel, ByteFallback, Fuse, Metaspace, WordPiece, Replace "
                    "of a string, and Strip of leading spaces"
                )

    def of(self, piece: str, added: bool) -> bytes:
        """The bytes of a token.

        Args:
            piece: of the vocabulary.
            added: whether it is a token of its own, such as ``<s>``, and not made of others.
        """
        for old, new in self._replaced:
            piece = piece.replace(old, new)
        if self._spaced:
            continues = self._continuing and piece.startswith(self._continuing) and not added
            piece = piece.removeprefix(self._continuing or "") if continues else f" {piece}"
        if added:
            return piece.encode()
        if self._byte_fallback and (byte := _HEXADECIMAL_BYTE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        if self._byte_level:
            found = [BYTE_OF_CHARACTER.get(character, -1) for character in piece]
            return piece.encode() if -1 in found else bytes(found)
        return piece.encode()


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    match decoder:
        case {"type": "Sequence", "decoders": [*steps]}:
            for step in steps:
                yield from _steps(step)
        case _:
            yield decoder

"""The pieces of a GGUF vocabulary, their scores and types, each checked."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TokenType", "Vocabulary"]

#: Tokens of a vocabulary, at most: sixteen times the largest of today.
_MOST_TOKENS = 1 << 22

#: Characters of a piece, at most.
_LONGEST_PIECE = 1 << 16


class TokenType(IntEnum):
    """The types of tokens, by their numbers in files."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """The tokens of a file.

    Args:
        tokens: values of ``tokenizer.ggml.tokens``.
        scores: values of ``tokenizer.ggml.scores``; ``None``: all are 0.
        types: values of ``tokenizer.ggml.token_type``; ``None``: all are normal.

    Attributes:
        pieces: by id.
        ids: by piece.
        scores: by id, finite.
        types: by id.

    Raises:
        ModelFormatError: one of them is no list of its kind or of its length, pieces are no text or
            occur twice, or a score is not finite.
    """

    def __init__(self, tokens: object, scores: object, types: object) -> None:
        if not isinstance(tokens, list) or not tokens:
            raise ModelFormatError("tokenizer.ggml.tokens is a list of strings, and not empty")
        if len(tokens) > _MOST_TOKENS:
            raise ModelFormatError(f"a vocabulary of {len(tokens):,} tokens is not read")
        _check(tokens)
        self.pieces: list[str] = [
            piece or f"[EMPTY_{number}]" for number, piece in enumerate(tokens)
        ]
        self.ids = {piece: number for number, piece in enumerate(self.pieces)}
        if len(self.ids) < len(tokens):
            number = next(n for n, piece in enumerate(self.pieces) if self.ids[piece] != n)
            piece = self.pieces[number]
            raise ModelFormatError(
                f"tokens {number:,} and {self.ids[piece]:,} are both {piece!r:.80}"
            )
        count = len(tokens)
        self.scores = _numbers(scores, "scores", count, 0.0).astype(np.float64)
        if not np.isfinite(self.scores).all():
            number = int(np.flatnonzero(~np.isfinite(self.scores))[0])
            raise ModelFormatError(f"the score of token {number:,} is {self.scores[number]}")
        self.types = _numbers(types, "token_type", count, TokenType.NORMAL).astype(np.int64)

    def added(self) -> Iterator[int]:
        """The ids that stand for their text as a whole, and are not made of other tokens."""
        kinds = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
        return map(int, np.flatnonzero(np.isin(self.types, kinds)))


def _check(tokens: list[Any]) -> None:
    """Check all tokens at once, since there are some hundred thousand, or name the wrong one."""
    if {str}.issuperset(map(type, tokens)):
        try:
            "".join(tokens).encode()
        except UnicodeEncodeError:
            pass
        else:
            if max(map(len, tokens)) <= _LONGEST_PIECE:
                return
    for number, piece in enumerate(tokens):
        if not isinstance(piece, str):
            raise ModelFormatError(f"token {number:,} is no string: {piece!r:.80}")
        if len(piece) > _LONGEST_PIECE:
            raise ModelFormatError(f"token {number:,} has {len(piece):,} characters")
        try:
            piece.encode()
        except UnicodeEncodeError:
            raise ModelFormatError(f"token {number:,} is no UTF-8: {piece!a:.80}") from None


def _numbers(
    found: object, name: str, count: int, default: float
) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    if found is None:
        return np.full(count, default)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iuf":
        raise ModelFormatError(f"tokenizer.ggml.{name} is an array of numbers")
    if len(found) != count:
        raise ModelFormatError(
            f"tokenizer.ggml.{name} has {len(found):,} numbers for {count:,} tokens"
        )
    return found

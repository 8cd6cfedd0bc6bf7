"""Text of a stream of tokens, as far as it is certain."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Turns a stream of tokens into text, each part as soon as its characters are whole.

    A character may be spread over tokens: its bytes wait for the last of them. The parts together
    are the text of :meth:`Tokenizer.decode`, however the tokens are handed in.

    Args:
        tokenizer: of the tokens.
        at_start: whether the tokens begin a text, so that the space that SentencePiece puts before
            a text is dropped. An answer goes on with a text, and keeps its first space.
        shown: special tokens that are part of the text, by their names; others are left out.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, at_start: bool = False, shown: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_tokens.difference(shown)
        self._spaces = tokenizer.leading_spaces if at_start else 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Iterable[int]) -> str:
        """The text that further tokens complete.

        Raises:
            InputError: an id is negative, or beyond 32 bits.
        """
        data = b"".join(
            self._tokenizer.token_bytes(token) for token in tokens if token not in self._hidden
        )
        while self._spaces and data:
            if not data.startswith(b" "):
                self._spaces = 0
                break
            data, self._spaces = data[1:], self._spaces - 1
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest at the end of the stream: U+FFFD for bytes of no whole character, or nothing."""
        return self._decoder.decode(b"", final=True)

"""Text of answers: tokens become UTF-8, stop strings are found, and formats are parsed."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.llm.generation import ToolCall
    from ostinato.llm.sampling import Sampling
    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["AnswerPart", "PlainAnswer", "answer_format"]


@dataclass(frozen=True)
class AnswerPart:
    """Text of an answer that became final.

    Attributes:
        text: content.
        reasoning: text of the model's reasoning.
        tool_calls: calls of tools that became whole.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class PlainAnswer:
    """Plain text of one answer.

    Bytes of a character that is not whole are held back, and so is text that may be the beginning
    of a stop string.

    Args:
        tokenizer: makes bytes of tokens.
        stops: texts that end the answer.

    Attributes:
        stopped: the stop string that was found.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None

    def push(self, token: int, *, stops: bool) -> AnswerPart:
        """Text that ``token`` makes final; with ``stops``, stop strings are looked for."""
        if token in self._tokenizer.special_tokens:
            return AnswerPart()
        text = self._held + self._decoder.decode(self._tokenizer.token_bytes(token))
        self._held = ""
        if not stops or not self._stops:
            return AnswerPart(text)
        found = [(text.find(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            place, _, self.stopped = min(found)
            return AnswerPart(text[:place])
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return AnswerPart(text[: len(text) - keep])

    def finish(self) -> AnswerPart:
        """Text that was held back."""
        if self.stopped is not None:
            return AnswerPart()
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return AnswerPart(text)


def answer_format(tokenizer: Tokenizer, sampling: Sampling) -> Callable[[], PlainAnswer]:
    """Makes the plain text of each answer of a request."""
    return lambda: PlainAnswer(tokenizer, sampling.stop)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0

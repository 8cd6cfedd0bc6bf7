"""Text of answers: tokens become UTF-8, and stop strings end them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.text import Detokenizer, StopStrings
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.llm.generation import ToolCall
    from ostinato.llm.sampling import Sampling
    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["AnswerPart", "PlainAnswer", "plain_answers"]


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

    Args:
        detokenizer: makes text of tokens.
        stops: texts that end the answer.
    """

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops

    @property
    def stopped(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    def push(self, token: int, *, stops: bool) -> AnswerPart:
        """Text that ``token`` makes final; with ``stops``, stop strings are looked for."""
        text = self._detokenizer.add((token,))
        return AnswerPart(self._stops.add(text) if stops else text)

    def finish(self) -> AnswerPart:
        """Text that was held back."""
        if self.stopped is not None:
            return AnswerPart()
        rest = self._stops.add(self._detokenizer.finish())
        return AnswerPart(rest if self.stopped is not None else rest + self._stops.finish())


def plain_answers(tokenizer: Tokenizer, sampling: Sampling) -> Callable[[], PlainAnswer]:
    """Make the plain text of each answer of a request.

    Raises:
        InputError: too many stop strings, or too long ones.
    """
    StopStrings(sampling.stop)  # refused here rather than on the engine's thread
    return lambda: PlainAnswer(Detokenizer(tokenizer), StopStrings(sampling.stop))

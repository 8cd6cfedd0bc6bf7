"""Text of one answer, token by token: characters, stop strings, and the format of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.text.detokenizer import Detokenizer
from ostinato.llm.text.json_formats import PlainParser
from ostinato.llm.text.parts import AnswerPart, joined
from ostinato.llm.text.stops import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.llm.text.parts import AnswerParser
    from ostinato.llm.tokenizers import Tokenizer

__all__ = ["AnswerText"]


class AnswerText:
    """Text of one answer, as far as it is certain.

    Args:
        tokenizer: of the model.
        stops: texts that end the answer.
        parser: finds reasoning and calls of tools in the text; ``None``: all is content.
        markers: special tokens that the parser must see.

    Raises:
        InputError: a stop string is empty or too long.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        parser: AnswerParser | None = None,
        markers: Sequence[str] = (),
    ) -> None:
        shown = {tokenizer.id_of(marker) for marker in markers}
        self._characters = Detokenizer(tokenizer, shown={n for n in shown if n is not None})
        self._stops = StopStrings(stops)
        self._parser = parser or PlainParser()

    @property
    def stopped(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    def push(self, token: int, *, stops: bool = True) -> AnswerPart:
        """The part that a token makes certain.

        Args:
            token: its id.
            stops: whether stop strings that it completes end the answer.
        """
        text = self._characters.add((token,))
        text = self._stops.add(text) if stops else self._stops.pass_by(text)
        return self._parser.add(text) if text else AnswerPart()

    def finish(self) -> AnswerPart:
        """The text that was held back, at the end of the answer."""
        rest = "" if self.stopped else self._stops.add(self._characters.finish())
        rest += self._stops.finish()
        return joined([self._parser.add(rest), self._parser.finish()])

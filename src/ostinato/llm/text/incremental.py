"""A parser of a stream whose states are a generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.text.parts import AnswerPart, Scanner, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["IncrementalParser"]


class IncrementalParser:
    """An :class:`AnswerParser`: its :meth:`_parts` reads the scanner and yields what is certain."""

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._calls = 0  # calls of tools so far, which number them
        self._states = self._parts()

    def add(self, text: str) -> AnswerPart:
        """The part that is certain, given some more text."""
        self._scanner.text += text
        return joined(self._certain())

    def finish(self) -> AnswerPart:
        """The rest, at the end of the stream."""
        self._scanner.ended = True
        return joined(self._certain())

    def _certain(self) -> Iterator[AnswerPart]:
        for part in self._states:
            if part is None:
                return
            yield part

    def _parts(self) -> Iterator[AnswerPart | None]:
        """Parts of the answer, and ``None`` where more text must come."""
        raise NotImplementedError

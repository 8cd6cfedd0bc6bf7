"""Reasoning between tags at the beginning of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.llm.text.incremental import IncrementalParser
from ostinato.llm.text.parts import AnswerPart, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.llm.text.parts import AnswerParser

__all__ = ["ReasoningParser"]


class ReasoningParser(IncrementalParser):
    """Tells reasoning between tags from the answer behind it.

    Reasoning is at the beginning of an answer, if there is any. Spaces and line ends around it are
    no part of it, and those behind its end none of the answer.

    Args:
        inner: parses the answer.
        start: tag before reasoning.
        end: tag behind it.
        inside: whether the answer begins within reasoning, because the prompt ends with ``start``.
    """

    def __init__(
        self,
        inner: AnswerParser,
        *,
        start: str = "<think>",
        end: str = "</think>",
        inside: bool = False,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._start, self._end = start, end
        self._inside = inside

    def finish(self) -> AnswerPart:
        """The rest, at the end of the stream."""
        return joined([super().finish(), self._inner.finish()])

    def _parts(self) -> Iterator[AnswerPart | None]:
        scanner = self._scanner
        before = ""
        while not self._inside:
            before += scanner.spaces()
            starts = scanner.starts_with(self._start) if scanner.text or scanner.ended else None
            if starts is None:
                yield None
                continue
            if not starts:
                break
            scanner.take(len(self._start))
            self._inside = True
        if self._inside:
            yield from self._reasoning()
            yield from self._skip_spaces()
        else:
            scanner.text = before + scanner.text
        while True:
            yield self._inner.add(scanner.take(len(scanner.text)))
            yield None

    def _reasoning(self) -> Iterator[AnswerPart | None]:
        yield from self._skip_spaces()
        held, mark = "", None
        while mark is None:
            text, mark = self._scanner.until([self._end])
            text = held + text
            shown = text.rstrip()
            held = text[len(shown) :]
            yield AnswerPart(reasoning=shown)
            if mark is None:
                yield None

    def _skip_spaces(self) -> Iterator[AnswerPart | None]:
        while True:
            self._scanner.spaces()
            if self._scanner.text or self._scanner.ended:
                return
            yield None

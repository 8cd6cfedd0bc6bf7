"""Parts of answers: content, reasoning, calls of tools; and the scanner that finds them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.llm.generation import ToolCall
from ostinato.llm.text.stops import held_back
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["AnswerParser", "AnswerPart", "JsonEnd", "Scanner", "called_tool", "joined"]


@dataclass(frozen=True)
class AnswerPart:
    """A part of an answer that became final.

    Attributes:
        text: content.
        reasoning: text of the model's reasoning.
        tool_calls: calls of tools that became whole.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class AnswerParser(Protocol):
    """A parser of a stream of text. The parts together do not depend on how the text is cut."""

    def add(self, text: str) -> AnswerPart:
        """The part that is certain, given some more text."""
        ...

    def finish(self) -> AnswerPart:
        """The rest, at the end of the stream."""
        ...


def joined(parts: Iterable[AnswerPart]) -> AnswerPart:
    """Several parts as one."""
    parts = tuple(parts)
    return AnswerPart(
        "".join(part.text for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.tool_calls),
    )


class Scanner:
    """Text that was not parsed yet.

    Attributes:
        text: the text.
        ended: whether it is all that there will be.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = False

    def take(self, count: int) -> str:
        """Remove the first characters."""
        taken, self.text = self.text[:count], self.text[count:]
        return taken

    def until(self, marks: Sequence[str]) -> tuple[str, str | None]:
        """Remove the text before the first mark, and the mark.

        Returns:
            the text that is certainly before a mark, and the mark; ``None``: there is none yet. No
            mark may be the beginning of another.
        """
        found = [(at, mark) for mark in marks if (at := self.text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            before = self.take(at)
            self.take(len(mark))
            return before, mark
        held = 0 if self.ended else held_back(self.text, marks)
        return self.take(len(self.text) - held), None

    def spaces(self) -> str:
        """Remove spaces and line ends at the beginning."""
        return self.take(len(self.text) - len(self.text.lstrip(" \t\r\n")))

    def starts_with(self, mark: str) -> bool | None:
        """Whether the text begins with a mark; ``None``: more text must come to say."""
        if self.text.startswith(mark):
            return True
        return None if mark.startswith(self.text) and not self.ended else False


class JsonEnd:
    """The end of a JSON object or array in a stream: the brace that closes the first."""

    def __init__(self) -> None:
        self._depth = 0
        self._seen = 0
        self._in_string = self._escaped = False

    def find(self, text: str) -> int:
        """The length of the value at the beginning of a text that only grows; -1: not all yet."""
        for at in range(self._seen, len(text)):
            character = text[at]
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        self._seen = len(text)
        return -1


def called_tool(value: Any, number: int) -> ToolCall | None:
    """The call that a JSON value is; ``None``: it is none.

    Args:
        value: with a ``name``, and with ``arguments`` or ``parameters``.
        number: of the call within the answer.
    """
    match value:
        case {"name": str(name), "arguments": dict() | str() as arguments}:
            pass
        case {"name": str(name), "parameters": dict() | str() as arguments}:
            pass
        case {"function": {"name": str()} as function}:
            return called_tool(function, number)
        case {"name": str(name), **rest} if not rest.keys() - {"id", "type"}:
            arguments = {}
        case _:
            return None
    if not name:
        return None
    found = value.get("id")
    identifier = found if isinstance(found, str) and found else f"call_{number}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(identifier, name, text)

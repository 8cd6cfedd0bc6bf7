"""The text of a function under construction."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Writer"]


class Writer:
    """Lines of code, indented by the blocks that they stand in.

    Args:
        depth: the indentation of the first line, in blocks.
    """

    def __init__(self, depth: int = 0) -> None:
        self._lines: list[str] = []
        self._depth = depth
        self._numbers = count()

    def line(self, text: str) -> None:
        """A line of its own."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A block in braces after ``head``; what is declared in it is gone behind it."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def fresh(self, letter: str) -> str:
        """A name that no other variable of the function has."""
        return f"{letter}{next(self._numbers)}"

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

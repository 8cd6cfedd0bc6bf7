"""Sizes that follow from Variables, as the text that programs are stored with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.syntax import Cursor
from ostinato.lower.control import ENDLESS
from ostinato.variables import Expr, Symbol, Variable, evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.variables import Dim

__all__ = ["StoredSizes", "size_text"]

#: The first character of the names of loops' iterations, in lowering and in texts: in these, the
#: former begins a comment. No user's Variable has either.
_ITERATION, _STORED = "#", "\N{FULLWIDTH NUMBER SIGN}"


def size_text(size: Dim) -> str:
    """A size as text."""
    return str(size).replace(_ITERATION, _STORED)


class StoredSizes:
    """Reads such texts.

    Args:
        variables: name and bounds of a program's Variables.
        loops: the number of further ones, which count the iterations of loops.

    Attributes:
        names: of all of them, as texts have them.
    """

    def __init__(self, variables: Sequence[tuple[str, int, int]], loops: int = 0) -> None:
        self._known: dict[str, Expr] = {
            name: Variable(name, least, most) for name, least, most in variables
        }
        for number in range(len(variables), len(variables) + loops):
            name = f"{_STORED}{number}"
            self._known[name] = Expr({(Symbol(name, 0, ENDLESS),): 1}, 0)
        self.names = tuple(self._known)
        self._read: dict[str, Dim] = {}

    def read(self, text: str) -> Dim:
        """The size that a text is of, read once."""
        found = self._read.get(text)
        if found is None:
            whole = text.removeprefix("-").isdigit()
            found = int(text) if whole else Cursor(text, self._known).dim()
            self._read[text] = found
        return found

    def value(self, size: Dim, values: Sequence[int]) -> int:
        """A size at these values of all Variables."""
        if isinstance(size, int):
            return size
        return evaluate(size, dict(zip(self.names, values, strict=True)))

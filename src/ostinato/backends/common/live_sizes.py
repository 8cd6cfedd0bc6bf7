"""The sizes that inputs and outputs have in a run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.ir.syntax import Cursor
from ostinato.variables import Variable, evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.backends.common.program_image import External
    from ostinato.variables import Dim

__all__ = ["LiveSizes"]


class LiveSizes:
    """The sizes of a program's inputs and outputs, by the values of its Variables.

    Args:
        variables: name and bounds of the Variables.
        externals: inputs, then outputs; those whose sizes follow from Variables have them as text.
        extents: see :class:`~ostinato.backends.common.program_image.ProgramImage`.

    Attributes:
        variables: see above.
    """

    def __init__(
        self,
        variables: Sequence[tuple[str, int, int]],
        externals: Sequence[External] = (),
        extents: Sequence[tuple[int, int | str]] = (),
    ) -> None:
        self.variables = tuple(variables)
        self._externals = tuple(externals)
        self._extents = tuple(extents)

    @cached_property
    def _known(self) -> dict[str, Variable]:
        return {name: Variable(name, least, most) for name, least, most in self.variables}

    @cached_property
    def _symbolic(self) -> dict[int, Dim]:
        """By number, the sizes that follow from Variables."""
        texts = {i: external.size for i, external in enumerate(self._externals) if external.size}
        return {number: Cursor(text, self._known).dim() for number, text in texts.items()}

    def number(self, text: str, values: Sequence[int], bound: Mapping[str, int]) -> int:
        """A number that is given as text.

        Args:
            text: the number.
            values: of the Variables.
            bound: those that depend on data.
        """
        named = {name: value for (name, _, _), value in zip(self.variables, values, strict=False)}
        return evaluate(Cursor(text, self._known).dim(), {**named, **bound})

    def depends(self, number: int) -> bool:
        """Whether the size of an input or output follows from Variables."""
        return number in self._symbolic

    @property
    def partial(self) -> bool:
        """Whether runs use parts of the arena, see :meth:`extents`."""
        return bool(self._extents)

    def extents(self, values: Sequence[int]) -> list[tuple[int, int]]:
        """The offsets and sizes of what a run uses of the arena."""
        named = {n: v for (n, _, _), v in zip(self.variables, values, strict=True)}
        return [(offset, evaluate(size, named)) for offset, size in self._dims]

    @cached_property
    def _dims(self) -> list[tuple[int, Dim]]:
        """Extents, with their sizes as dims."""
        return [
            (offset, Cursor(size, self._known).dim() if isinstance(size, str) else size)
            for offset, size in self._extents
        ]

    def nbytes(self, number: int, values: Sequence[int]) -> int:
        """The size of an input or output in a run, at most where it depends on data."""
        size = self._symbolic.get(number)
        if size is None:
            return self._externals[number].nbytes
        named = {n: v for (n, _, _), v in zip(self.variables, values, strict=True)}
        return evaluate(size, named)

"""Operands of products that a thread copies in bulk: matrices in memory, by their tensor maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.cuda.abi import TensorMap
from ostinato.backends.cuda.render.tile_operands import CHUNK, chunks_along
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ostinato.lower.loopir.nodes import extent_of
from ostinato.variables import coefficient

if TYPE_CHECKING:
    from ostinato.backends.cuda.rules.product import Matmul
    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Symbol

__all__ = ["LINE_WORDS", "Matrix", "are_matrices", "matrices_of"]

LINE_WORDS = 32
"""Words of four bytes of a line of shared memory: see ``ost::panel``."""


def are_matrices(matmul: Matmul) -> bool:
    """Whether all operands are matrices of 16-bit floats that tensor maps describe.

    Of two right ones, both are stored by rows, or by columns.
    """
    same = {operand.dtype for operand in matmul.operands} == {matmul.a.dtype}
    if not same or matmul.a.dtype not in (FLOAT16, BFLOAT16) or matmul.acc != FLOAT32:
        return False
    sizes = [extent_of(axis) for axis in (matmul.m, matmul.n, *matmul.k)]
    if matmul.batch or len(matmul.k) != 1 or not all(isinstance(s, int) and s for s in sizes):
        return False
    return matrices_of(matmul) is not None


class Matrix(NamedTuple):
    """An operand in memory.

    Attributes:
        buffer: the number of the argument that it is in.
        offset: elements before it.
        rows, elements: its rows, and the elements of each.
        pitch: elements from one row to the next.
    """

    buffer: int
    offset: int
    rows: int
    elements: int
    pitch: int

    def map(self, lines: int) -> TensorMap:
        """Its tensor map for copies of so many lines of shared memory."""
        words, row_bytes = self.elements // 2, 2 * self.pitch
        extents = (words, self.rows, 1, row_bytes, LINE_WORDS, lines, 1)
        return TensorMap(self.buffer, 2 * self.offset, *extents, True)


def matrices_of(matmul: Matmul) -> tuple[Matrix, ...] | None:
    """The operands, the left one first; ``None``: one of them is no such matrix."""
    (k,) = matmul.k
    by_rows = chunks_along(matmul.b, k) is None
    right = (k, matmul.n) if by_rows else (matmul.n, k)
    axes = [(matmul.a, matmul.m, k), *((each, *right) for each in matmul.rights)]
    found = tuple(_matrix(*each) for each in axes)
    return None if None in found else tuple(each for each in found if each is not None)


def _matrix(operand: Scalar, outer: Symbol, inner: Symbol) -> Matrix | None:
    """An operand as a matrix that a tensor map describes; ``None``: it is none.

    Args:
        operand: its element.
        outer, inner: the axes of its rows in memory, and of the elements of these.
    """
    run = chunks_along(operand, inner)
    if run is None or run.bindings:
        return None
    along = coefficient(run.index, inner)
    across = None if along is None else coefficient(along[1], outer)
    if along is None or across is None or along[0] != 1:
        return None
    (pitch, offset), rows, elements = across, extent_of(outer), extent_of(inner)
    numbers = [size for size in (offset, rows, elements, pitch) if isinstance(size, int)]
    if len(numbers) < 4:
        return None
    made = Matrix(run.buffer, *numbers)
    aligned = made.pitch % CHUNK == made.offset % CHUNK == made.elements % 2 == 0
    return made if aligned and made.pitch >= made.elements else None

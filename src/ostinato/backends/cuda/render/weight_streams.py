"""The right operand of a matmul as a stream: rows in memory that a ring brings stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import TensorMap
from ostinato.backends.cuda.render.ring_stages import (
    CODE_COLUMNS,
    CODE_PIECE,
    COLUMNS,
    GROUPS,
    LINE,
    MOST_ROWS,
    PIECE,
)
from ostinato.backends.cuda.render.row_operands import FLOATS, INTEGERS, offset_of, rows_of, stored
from ostinato.backends.cuda.render.streamed_left import is_whole, left_of
from ostinato.backends.cuda.rules.joint_products import products_of
from ostinato.backends.cuda.rules.product import BlockwiseProduct
from ostinato.dtypes import FLOAT8, FLOAT32, INT8, INT32
from ostinato.lower.loopir.nodes import Load, extent_of, max_extent
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ostinato.backends.cuda.kernel import CudaKernel
    from ostinato.backends.cuda.render.row_operands import Rows
    from ostinato.backends.cuda.rules.product import Matmul

__all__ = ["Stream", "elements", "reads_by_stages", "rows_key", "stream_of", "streams_of"]

#: Codes with a scale of their own, at most: a warp takes so many at a time.
_MOST_BLOCK = 128

#: Columns are multiples of these bytes: tensor cores take 16 elements of 16 bits at a time.
_GRAIN = 32

#: Stages of a column from which on the left operand is awaited stage by stage.
_FEW_STAGES = 2 * GROUPS


@dataclass(frozen=True)
class Stream:
    """The right operand of a matmul as rows in memory.

    Attributes:
        rows: the matmul's columns.
        weights: their elements, or codes.
        scales: those of blocks of codes.
        columns: those of a stage.
        wide: whether a stage has all of a column: then a tile has the columns of all stages that
            are read at a time.
    """

    rows: int
    weights: Rows
    scales: Rows | None
    columns: int
    wide: bool

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.columns * GROUPS if self.wide else self.columns

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        scales = 0 if self.scales is None else self.scales.piece
        return self.columns * (self.weights.piece + scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        scales = 0 if self.scales is None else self.scales.nbytes
        return self.rows * (self.weights.nbytes + scales)

    @property
    def divided(self) -> bool:
        """Whether rows are lines, of which a copy brings several."""
        return self.weights.nbytes % LINE == 0

    def maps(self, positions: Sequence[int]) -> list[TensorMap]:
        """The tensor maps of the elements or codes, then of the scales.

        Args:
            positions: of the matmul's arguments among those of the kernel.
        """
        rows, weights = self.rows, self.weights
        lines = weights.nbytes // LINE if self.divided else 1
        words = (LINE if self.divided else weights.nbytes) // 4
        copied = LINE // 4, self.columns, weights.piece // LINE if self.divided else 1
        position = positions[weights.argument]
        found = [
            TensorMap(position, weights.offset, words, rows, lines, weights.nbytes, *copied, True)
        ]
        if (scales := self.scales) is not None:
            words, copied = scales.nbytes // 4, (scales.piece // 4, self.columns, 1)
            position = positions[scales.argument]
            found.append(
                TensorMap(position, scales.offset, words, rows, 1, scales.nbytes, *copied, False)
            )
        return found

    def at(self, places: Sequence[int]) -> Stream:
        """The same of a kernel that is one of several.

        Args:
            places: the positions of its arguments among those of all.
        """
        weights, scales = (
            None if rows is None else replace(rows, argument=places[rows.argument])
            for rows in (self.weights, self.scales)
        )
        assert weights is not None
        return replace(self, weights=weights, scales=scales)

    @property
    def tiles(self) -> int:
        """Tiles of columns."""
        return -(-self.rows // self.width)

    @property
    def arguments(self) -> list[int]:
        """The arguments that are fetched."""
        return [rows.argument for rows in (self.weights, self.scales) if rows is not None]


def stream_of(matmul: Matmul) -> Stream | None:
    """The right operand as rows, if a ring can bring them."""
    if matmul.batch or len(matmul.k) != 1 or max_extent(matmul.m) > MOST_ROWS:
        return None
    columns, depth = extent_of(matmul.n), extent_of(matmul.k[0])
    if not isinstance(columns, int) or not isinstance(depth, int) or not columns * depth:
        return None
    scales: Rows | None = None
    if isinstance(matmul, BlockwiseProduct):
        if matmul.group > _MOST_BLOCK or stored(matmul.a).dtype != INT8:
            return None
        weights = rows_of(matmul.b, matmul.n, matmul.pairs, CODE_PIECE)
        pieces = 2 * CODE_PIECE // matmul.group * stored(matmul.b_scale).dtype.itemsize
        scales = rows_of(matmul.b_scale, matmul.n, matmul.blocks, pieces)
        if scales is None or stored(matmul.b_scale).dtype not in FLOATS:
            return None
    else:
        weights = rows_of(matmul.b, matmul.n, matmul.k[0], PIECE)
        if weights is None or weights.nbytes % _GRAIN or not _multiplies(matmul):
            return None
    left = left_of(matmul)
    if weights is None or left is None:
        return None
    wide = weights.nbytes <= weights.piece and matmul.b.dtype != FLOAT32
    row = scales is not None and left.staged and max_extent(matmul.m) == 1
    return Stream(columns, weights, scales, CODE_COLUMNS if row else COLUMNS, wide)


def _multiplies(matmul: Matmul) -> bool:
    """Whether there is code for the operands' dtypes."""
    a, b = stored(matmul.a).dtype, stored(matmul.b).dtype
    if matmul.acc == INT32:
        return a in INTEGERS and b in INTEGERS
    if a in FLOAT8 and b in FLOAT8:
        return True
    return matmul.acc == FLOAT32 and matmul.a.dtype == matmul.b.dtype == b and b in FLOATS


def streams_of(kernel: CudaKernel) -> list[Stream]:
    """The right operands of all matmuls of a kernel, if a ring can bring all of them."""
    found = []
    for matmul, places in products_of(kernel):
        stream = stream_of(matmul)
        if stream is None:
            return []
        found.append(stream.at(places))
    return found


def rows_key(matmul: Matmul) -> tuple[tuple[int, ...], tuple[Hashable, ...]]:
    """The left operand of a matmul that has a stream, and how its tiles are multiplied.

    Products may be one of :class:`JointProducts` where both are the same: the arguments that have
    the left operand, and the rest. Stores that read anything else are not worth it: a step of a
    decoder with weights of 8 bits, whose sums have scales and zero points of their own, takes 1.01
    of the time on an H100.
    """
    stream, a = stream_of(matmul), stored(matmul.a)
    assert stream is not None
    depth = max_extent(matmul.k[0])
    if not isinstance(a, Load) or not is_whole(a, matmul) or stream.rows % stream.width:
        return (), (matmul,)
    start = offset_of(a.index, {matmul.m: depth, matmul.k[0]: 1})
    arguments, blocks = [a.buffer], None
    if isinstance(matmul, BlockwiseProduct):
        scale = stored(matmul.a_scale)
        scales = rows_of(matmul.a_scale, matmul.m, matmul.blocks, 0)
        if not isinstance(scale, Load) or scales is None:
            return (), (matmul,)
        arguments.append(scale.buffer)
        blocks = matmul.group, stored(matmul.b_scale).dtype, scale.dtype, scales.offset
    read = {number for number, arg in enumerate(matmul.args) if arg.reads}
    if start is None or read - {*arguments, *stream.arguments}:
        return (), (matmul,)
    dtypes = a.dtype, matmul.a.dtype, stored(matmul.b).dtype, matmul.b.dtype, matmul.acc
    rows = extent_of(matmul.m)
    return tuple(arguments), (type(matmul), rows, depth, start, *dtypes, stream.width, blocks)


def reads_by_stages(matmul: Matmul, argument: int) -> bool:
    """Whether warps may wait for the left operand stage by stage: an argument in packets.

    That is worth it where there are many stages: the last ones are what there is to wait for.
    """
    stream, a = stream_of(matmul), matmul.a
    if stream is None or isinstance(matmul, BlockwiseProduct) or stream.wide:
        return False
    if not isinstance(a, Load) or a.buffer != argument or a.bindings or a.dtype == FLOAT32:
        return False
    depth = max_extent(matmul.k[0])
    many = depth * a.dtype.itemsize >= _FEW_STAGES * PIECE
    return (
        many and is_whole(a, matmul) and offset_of(a.index, {matmul.m: depth, matmul.k[0]: 1}) == 0
    )


def elements(matmul: Matmul, argument: int) -> int:
    """The elements of an argument that :func:`reads_by_stages`; 0: it does not."""
    if not reads_by_stages(matmul, argument):
        return 0
    return max_extent(matmul.m) * max_extent(matmul.k[0])

"""Expert selection and staging: kernels for experts whose matrices are in a file.

Their code is not generated: they read files, which the native core does. Generated is the kernel
that packs a piece of a matrix, so that experts end up in panels like any others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.kernel import CpuKernel, CpuLoopNest
from ostinato.ir.graph import BaseGraph
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import KernelBuilder, cast, symbols_of
from ostinato.lower.loopir.nodes import Guard, Number, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.records import dataclass
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Arg
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim, Symbol

__all__ = ["PiecePacking", "SelectExperts", "StageExperts", "piece_packing"]

#: Bytes that are read at once: small enough to be packed out of the second-level cache.
_PIECE_BYTES = 256 << 10


@dataclass(frozen=True, eq=False)
class PiecePacking:
    """The packing of one expert's matrix, which is read piece by piece, into panels.

    Attributes:
        nest: the kernel that packs a piece: argument 0 is the piece, argument 1 where its part of
            the panels starts.
        pieces: of a matrix.
        piece_bytes: of a piece in the file; the last one may be shorter, and is then filled up.
        matrix_bytes: of a matrix in the file.
        stride: bytes from where one piece's part of the panels starts to where the next one's does.
        packed_bytes: of a packed matrix.
    """

    nest: CpuLoopNest
    pieces: int
    piece_bytes: int
    matrix_bytes: int
    stride: int
    packed_bytes: int

    @property
    def room(self) -> int:
        """Bytes of scratch memory for a piece."""
        return -(-self.piece_bytes // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory for a piece and for the kernel that packs it."""
        return self.room + self.nest.scratch_bytes


def piece_packing(
    dtype: DType, matrix: tuple[int, int], packed: TensorType, *, transposed: bool
) -> PiecePacking:
    """The packing of a matrix of a file.

    Args:
        dtype: of its elements.
        matrix: its rows, which are summed over, and its columns.
        packed: panels, ``[..., panels, rows, columns of a panel]``.
        transposed: whether the file has it column by column.
    """
    depth, columns = matrix
    panels, panel = ceil_div(columns, packed.shape[-1]), packed.shape[-1]
    assert isinstance(panels, int)
    assert isinstance(panel, int)
    rows = 1 if transposed else _rows_at_once(depth, columns * dtype.itemsize)
    shape = (panel, depth) if transposed else (rows, columns)
    graph = BaseGraph("piece")
    piece = graph.param("piece", shape, dtype)
    build = KernelBuilder({piece: LoweredBuffer(piece.type, Role.TEMP, "piece", piece)})
    target = LoweredBuffer(TensorType(packed.dtype, (panels, depth, panel)), Role.TEMP, "packed")
    if transposed:
        k, lane = build.axis(depth), build.axis(panel)
        value = cast(build.at(piece, (lane, k)), packed.dtype)
        at: tuple[Dim, ...] = (0, k, lane)
    else:
        which, k, lane = build.axis(panels), build.axis(rows), build.axis(panel)
        column = which * panel + lane
        value = cast(build.at(piece, (k, column)), packed.dtype)
        if columns % panel:
            inside = (columns - 1 - column,)
            value = Guard(inside, value, Number(0, packed.dtype), packed.dtype)
        at = (which, k, lane)
    index = linear_index(target.type.shape, at)
    store = Store(build.argument(target, writes=True), index, value)
    return PiecePacking(
        CpuLoopNest.of(block_nest(build, symbols_of(at), [store], ())),
        pieces=panels if transposed else depth // rows,
        piece_bytes=math.prod(shape) * dtype.itemsize,
        matrix_bytes=depth * columns * dtype.itemsize,
        stride=(depth if transposed else rows) * panel * packed.dtype.itemsize,
        packed_bytes=panels * depth * panel * packed.dtype.itemsize,
    )


def _rows_at_once(rows: int, row_bytes: int) -> int:
    """Rows of a piece: they divide all rows."""
    most = max(1, min(rows, _PIECE_BYTES // max(1, row_bytes)))
    return next(count for count in range(most, 0, -1) if rows % count == 0)


@dataclass(frozen=True, eq=False)
class SelectExperts(CpuKernel):
    """Selects the experts of an offload round, out of all that have rows.

    Arguments: the choice ``[3]``, that is where the list of rows starts, the round's number, and
    how many experts a round has; the list of rows by expert; the slot of each expert, or -1; then,
    to be written, the list of the round, with slots instead of experts; and the experts to be
    staged, those of slots 0, 1 and so on, -1 beyond the last. Round 0 is of resident experts and
    stages none; later ones are of the others.
    """

    args: tuple[Arg, ...]
    variables: tuple[Symbol, ...] = ()

    builtin: ClassVar[str | None] = "select_experts"

    @property
    def directing(self) -> Mapping[int, object]:
        return dict.fromkeys(range(3))

    def describe(self, text: KernelText) -> None:
        text.line(0, "select the experts of an offload round")
        text.head(self.args)

    @property
    def extent(self) -> int:
        return 1

    @property
    def parallel(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class StageExperts(CpuKernel):
    """Reads matrices of experts from a file, and packs them.

    Arguments: the source, a table for the device's runtime; the experts to be staged, -1 for none;
    then, to be written, the panels of as many matrices.

    Attributes:
        count: of experts at most.
        packing: how a matrix is packed.
    """

    args: tuple[Arg, ...]
    count: int
    packing: PiecePacking
    variables: tuple[Symbol, ...] = ()

    builtin: ClassVar[str | None] = "stage_experts"

    @property
    def directing(self) -> Mapping[int, object]:
        return dict.fromkeys(range(2))

    def describe(self, text: KernelText) -> None:
        text.line(0, f"stage up to {self.count} experts")
        text.head(self.args)
        packing = self.packing
        text.line(1, f"in {packing.pieces} pieces of {packing.piece_bytes} bytes each")

    @property
    def extent(self) -> int:
        """Pieces of all matrices."""
        return self.count * self.packing.pieces

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernel needs."""
        return self.packing.scratch_bytes

"""Expert selection and staging: kernels for experts whose matrices are in a file.

Their code is not generated: they read files, which the native core does. Generated is the kernel
that packs a piece of a matrix, so that experts end up in panels like any others.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from ostinato.backends.cpu.rules.kernel import CpuKernel, CpuLoopNest
from ostinato.backends.cpu.rules.packed_blocks import BlockPanels, PanelPacking
from ostinato.dtypes import UINT8
from ostinato.ir.graph import BaseGraph
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import KernelBuilder, cast, symbols_of
from ostinato.lower.loopir.nodes import Guard, Number, Store
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.ops.packed.formats import APART
from ostinato.records import dataclass
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.packing import PanelFormat
    from ostinato.ir.graph import Value
    from ostinato.ir.stored import MatrixLayout
    from ostinato.lower.loopir.nodes import Arg, Scalar
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.loopir.views import Indices
    from ostinato.variables import Dim, Symbol

__all__ = [
    "PiecePacking",
    "PieceRange",
    "SelectExperts",
    "StageExperts",
    "element_pieces",
    "piece_packing",
]

#: Bytes that are read at once: small enough to be packed out of the second-level cache.
_PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class PieceRange:
    """The bytes of a matrix, and of a piece of it, in a range of a file.

    Attributes:
        piece_bytes: of a piece; the last one may be shorter, and is then filled up.
        matrix_bytes: of a matrix.
    """

    piece_bytes: int
    matrix_bytes: int


@dataclass(frozen=True, eq=False)
class PiecePacking:
    """The packing of one expert's matrix, which is read piece by piece, into panels.

    Attributes:
        nest: the kernel that packs a piece: its arguments are what was read of each range, and
            last the place where its part of the panels starts.
        pieces: of a matrix.
        ranges: of the file that pieces are read from.
        stride: bytes from where one piece's part of the panels starts to where the next one's does.
        packed_bytes: of a packed matrix.
    """

    nest: CpuLoopNest
    pieces: int
    ranges: tuple[PieceRange, ...]
    stride: int
    packed_bytes: int

    @property
    def piece_bytes(self) -> int:
        """Bytes of the file in a piece."""
        return sum(part.piece_bytes for part in self.ranges)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the file that are read for a matrix."""
        return sum(part.matrix_bytes for part in self.ranges)

    @property
    def rooms(self) -> list[int]:
        """The start of each range's piece in scratch memory, and the end of the last one."""
        sizes = (-(-part.piece_bytes // 64) * 64 for part in self.ranges)
        return [*accumulate(sizes, initial=0)]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory for a piece and for the kernel that packs it."""
        return self.rooms[-1] + self.nest.scratch_bytes


def piece_packing(
    matmul: PackedMatmul, form: PanelFormat | None, packed: TensorType, layout: MatrixLayout
) -> PiecePacking:
    """The packing of the matrices of files.

    Args:
        matmul: packs the matrices where they are params.
        form: of the panels; ``None``: elements of the accumulator.
        packed: the type of the panels of all matrices.
        layout: of a matrix in its file.
    """
    if isinstance(form, BlockPanels):
        return _packed_pieces(matmul.spec.b, form, packed, layout)
    return element_pieces(matmul.spec.b.type, packed, layout)


def element_pieces(weight: TensorType, packed: TensorType, layout: MatrixLayout) -> PiecePacking:
    """The packing of matrices of numbers.

    Args:
        weight: their type, ``[experts, rows, columns]``; rows are summed over.
        packed: panels, ``[..., panels, rows, columns of a panel]``.
        layout: of a matrix in its file.
    """
    _, depth, columns = weight.shape
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    dtype, (pitch,) = weight.dtype, layout.pitches
    panels, panel = ceil_div(columns, packed.shape[-1]), packed.shape[-1]
    assert isinstance(panels, int)
    assert isinstance(panel, int)
    lines, length = layout.lines((depth, columns))
    at_once = panel if layout.transposed else _lines_at_once(depth, pitch)
    graph = BaseGraph("piece")
    piece = graph.param("piece", (at_once, pitch // dtype.itemsize), dtype)
    build = KernelBuilder({piece: LoweredBuffer(piece.type, Role.TEMP, "piece", piece)})
    target = LoweredBuffer(TensorType(packed.dtype, (panels, depth, panel)), Role.TEMP, "packed")
    if layout.transposed:
        k, lane = build.axis(depth), build.axis(panel)
        value = cast(build.at(piece, (lane, k * layout.step)), packed.dtype)
        at: tuple[Dim, ...] = (0, k, lane)
    else:
        which, k, lane = build.axis(panels), build.axis(at_once), build.axis(panel)
        column = which * panel + lane
        value = cast(build.at(piece, (k, column * layout.step)), packed.dtype)
        if columns % panel:
            inside = (columns - 1 - column,)
            value = Guard(inside, value, Number(0, packed.dtype), packed.dtype)
        at = (which, k, lane)
    index = linear_index(target.type.shape, at)
    store = Store(build.argument(target, writes=True), index, value)
    row_bytes = ((length - 1) * layout.step + 1) * dtype.itemsize
    return PiecePacking(
        CpuLoopNest.of(block_nest(build, symbols_of(at), [store], ())),
        pieces=panels if layout.transposed else depth // at_once,
        ranges=(PieceRange(at_once * pitch, (lines - 1) * pitch + row_bytes),),
        stride=(depth if layout.transposed else at_once) * panel * packed.dtype.itemsize,
        packed_bytes=panels * depth * panel * packed.dtype.itemsize,
    )


def _packed_pieces(
    weight: Value, form: BlockPanels, packed: TensorType, layout: MatrixLayout
) -> PiecePacking:
    """The packing of matrices of packed rows, each of which is a column of the panels."""
    _, columns, nbytes = weight.shape
    panels, blocks, panel_bytes = packed.shape[-3:]
    sizes = (columns, nbytes, panels, blocks, panel_bytes)
    assert all(isinstance(size, int) for size in sizes)
    columns, nbytes, panels, blocks, panel_bytes = map(int, sizes)  # type: ignore[arg-type]
    panel = panel_bytes // form.column_bytes
    at_once = _lines_at_once(panels, panel * sum(layout.pitches))
    graph = BaseGraph("piece")
    pieces = [
        graph.param(f"piece{i}", (at_once * panel, pitch), UINT8)
        for i, pitch in enumerate(layout.pitches)
    ]
    build = KernelBuilder({p: LoweredBuffer(p.type, Role.TEMP, p.name, p) for p in pieces})
    stored = APART[form.form.name] if layout.apart else form.form
    line_bytes = [stored.nbytes * blocks]
    if layout.apart:
        line_bytes.append(form.form.scale.nbytes * blocks)

    def octet(groups: Indices, column: Dim, block: Dim, byte: Dim, scale: bool) -> Scalar:
        if scale and layout.apart:
            return build.at(pieces[1], (column, block * form.form.scale.nbytes + byte))
        return build.at(pieces[0], (column, block * stored.nbytes + byte))

    for piece in pieces:  # in the order of the ranges, whichever is read first
        build.at(piece, (0, 0))
    target = TensorType(UINT8, (at_once, blocks, panel_bytes))
    buffer = LoweredBuffer(target, Role.TEMP, "packed")
    packing = PanelPacking(build, buffer, panel, form, octet, stored)
    return PiecePacking(
        CpuLoopNest.of(packing.nest(())),
        pieces=panels // at_once,
        ranges=tuple(
            PieceRange(at_once * panel * pitch, (columns - 1) * pitch + line)
            for pitch, line in zip(layout.pitches, line_bytes, strict=True)
        ),
        stride=at_once * blocks * panel_bytes,
        packed_bytes=panels * blocks * panel_bytes,
    )


def _lines_at_once(lines: int, line_bytes: int) -> int:
    """Lines of a piece: they divide all lines."""
    most = max(1, min(lines, _PIECE_BYTES // max(1, line_bytes)))
    return next(count for count in range(most, 0, -1) if lines % count == 0)


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

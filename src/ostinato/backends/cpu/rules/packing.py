"""Packed panels: the form in which a GEMM kernel reads its right operand.

A matmul of a few rows takes as long as its weights take to arrive, so panels hold the weights in
their own width: floats of 16 and 8 bits stay that wide, integers stay bytes or half bytes, and the
register tile widens what it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.builder import cast, symbols_of
from ostinato.lower.loopir.nodes import Guard, Number, Store
from ostinato.lower.loopir.views import VIEWS, linear_index
from ostinato.lower.rules.loops import block_nest
from ostinato.records import dataclass
from ostinato.variables import ceil_div, floor_div, prod

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Value
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Dim, Symbol

__all__ = ["TILE_ROWS", "BlockRows", "BlockScales", "PanelFormat", "pack_nest", "stored_dtype"]

TILE_ROWS = 16
"""Rows of a tile register of AMX."""


@dataclass(frozen=True)
class PanelFormat:
    """The format of the elements of panels.

    A row of a panel has an element for each column; here it has, for each column, those of
    ``steps`` consecutive positions of ``k``, which an instruction multiplies and adds together.

    Attributes:
        dtype: of an element in memory.
        steps: how many positions of ``k`` stand side by side.
        halves: whether an element is two 4-bit codes, the low one of this row, the high one of the
            row that would follow.
        run: positions of ``k`` that are side by side in the left operand, if not all of them are;
            no row of a panel has positions of two runs, and the last of each is zero at its end.
        tile_rows: rows of a panel that one instruction takes (AMX): panels have a multiple of them,
            zero beyond the last position of ``k``.
        tall: rows of the left operand that are multiplied at a time in tile registers (AMX), where
            there are as many; 0: none are.
        strip: columns of a *strip*, where a panel is one strip after the other, each with all
            positions of ``k``; ``None``: a row of a panel has all of its columns.
    """

    dtype: DType
    steps: int = 1
    halves: bool = False
    run: int | None = None
    tile_rows: int = 1
    tall: int = 0
    strip: int | None = None

    @property
    def depth(self) -> int:
        """Positions of ``k`` in one row of a panel."""
        return self.steps * (2 if self.halves else 1)

    def size(self, depth: Dim, panel: int) -> Dim:
        """Elements in memory of a panel of ``panel`` columns and ``depth`` positions of ``k``."""
        return prod(self.rows(depth)) * (self.steps * panel)

    def rows(self, depth: Dim) -> tuple[Dim, Dim]:
        """Runs of ``depth`` positions of ``k``, and rows of a panel in each."""
        run = depth if self.run is None else self.run
        rows = ceil_div(run, self.depth * self.tile_rows) * self.tile_rows
        return (1 if self.run is None else floor_div(depth, self.run)), rows

    def __str__(self) -> str:
        runs = "" if self.run is None else f" in runs of {self.run}"
        tiles = "" if self.tile_rows == 1 else f" in tiles of {self.tile_rows} rows"
        strips = "" if self.strip is None else f" in strips of {self.strip}"
        return f"{self.dtype.short}{' halves' * self.halves} by {self.steps}{runs}{tiles}{strips}"


@dataclass(frozen=True)
class BlockScales:
    """Operands that come in blocks along ``k``, each block with a scale of its own.

    The products of a block are summed on their own, in int32, and count as often as the product of
    the scales says. 4-bit codes stand for themselves less 8.

    Attributes:
        size: positions of ``k`` in a block.
        a: the argument with the left operand's scales, float32, those of a row side by side.
        a_index: where those of row ``m`` start; affine in ``m`` with a known step.
        b: the argument with the right operand's scales, packed as panels with a row per block.
        b_dtype: their element type.
    """

    size: int
    a: int
    a_index: Dim
    b: int
    b_dtype: DType


@dataclass(frozen=True)
class BlockRows:
    """The scales and sums of a left operand in blocks, beside panels of packed weights.

    Attributes:
        size: positions of ``k`` in a block; ``group``, in a group of a block.
        scales: the argument with a float32 for each block, those of a row side by side.
        scales_index: where those of row ``m`` start; affine in ``m`` with a known step.
        sums: the argument with the int32 sum of each group of positions, likewise.
        sums_index: where those of row ``m`` start.
    """

    size: int
    group: int
    scales: int
    scales_index: Dim
    sums: int
    sums_index: Dim

    def describe(self, text: KernelText) -> str:
        """The blocks in a line of a kernel's text."""
        left = f"f32 b{self.scales}[{text.dim(self.scales_index)}]"
        sums = f"i32 b{self.sums}[{text.dim(self.sums_index)}]"
        return f"blocks of {self.size} scaled by {left}, with sums {sums}"


def stored_dtype(weight: Value, narrow: Collection[DType]) -> DType:
    """The dtype in which panels hold ``weight``: its accumulator's, or a narrower one as exact.

    What was widened from one of ``narrow``, or is one of them, is kept as that.
    """
    node = weight.node
    wide = weight.dtype.accumulator
    if node.op.name in VIEWS:
        return stored_dtype(node.inputs[0], narrow)
    if node.op.name == "concat":
        found = {stored_dtype(part, narrow) for part in node.inputs}
        return found.pop() if len(found) == 1 else wide
    if node.op.name == "cast" and weight.dtype == wide:
        (source,) = node.inputs
        exact = source.dtype.accumulator == wide
        if source.dtype.is_narrow:
            exact = wide == FLOAT32 and source.dtype in narrow
        return stored_dtype(source, narrow) if exact else wide
    return weight.dtype if weight.dtype in narrow else wide


def pack_nest(
    build: KernelBuilder,
    spec: MatmulSpec,
    packed: LoweredBuffer,
    panel: int,
    variables: tuple[Symbol, ...],
) -> LoopNest:
    """The kernel that brings the right operand into panels, zero beyond the last column.

    Args:
        packed: ``[*groups, panels, strips, depth, columns of a strip]``.
    """
    groups = build.axes(spec.groups)
    *_, strips, _, width = packed.type.shape
    which, strip = build.axis(ceil_div(spec.n, panel)), build.axis(strips)
    k = build.axes(spec.k)
    lane = build.axis(width)
    column = which * panel + strip * width + lane
    dtype = packed.type.dtype
    value = cast(build.at(spec.b, spec.b_at(groups, k, column)), dtype)
    if not (isinstance(spec.n, int) and spec.n % panel == 0):
        value = Guard((spec.n - 1 - column,), value, Number(0, dtype), dtype)
    position = build.argument(packed, writes=True)
    at = (*groups, which, strip, linear_index(spec.k, k), lane)
    axes = symbols_of((*groups, which, strip, *k, lane))
    store = Store(position, linear_index(packed.type.shape, at), value)
    return block_nest(build, axes, [store], variables)

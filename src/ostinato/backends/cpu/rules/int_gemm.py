"""Matmuls and convolutions of 8-bit integers with packed weights of 8 or 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.gemm import sum_axes
from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
from ostinato.backends.cpu.rules.packing import BlockScales, PanelFormat
from ostinato.backends.cpu.rules.tiles import tile_for
from ostinato.dtypes import INT32, UINT8
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    IndexValue,
    Load,
    Number,
    Scalar,
    Store,
    max_extent,
)
from ostinato.lower.loopir.views import linear_index, unravel
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec, row_spec
from ostinato.records import dataclass, field, replace
from ostinato.variables import (
    Dim,
    axis,
    bounds,
    ceil_div,
    coefficient,
    floor_div,
    remainder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

__all__ = [
    "BlockwiseMatmul",
    "IntConv",
    "IntMatmul",
    "RowMatmul",
    "SteppedMatmul",
    "blockwise_matmul",
    "int_conv",
    "int_matmul",
]

_MOST_ROWS, _MOST_VECTORS = 9, 4


@dataclass(frozen=True, eq=False)
class RowMatmul(PackedMatmul):
    """Rows times a matrix, by tiles that take a row's elements side by side."""

    def reads_in_place(self, build: KernelBuilder) -> bool:
        """Whether they are, and rows are a known distance apart."""
        at = self.spec.axes(build)
        scalar = self.spec.left(build, at)
        if not isinstance(scalar, Load) or scalar.bindings:
            return False
        (m,), (k,) = symbols_of([at.m]), symbols_of(at.k)
        rows, columns = coefficient(scalar.index, m), coefficient(scalar.index, k)
        if rows is None or columns is None or not isinstance(rows[0], int):
            return False
        return columns[0] == 1 or max_extent(k) <= 1


@dataclass(frozen=True, eq=False)
class SteppedMatmul(RowMatmul):
    """Rows times a matrix whose panels hold several positions of ``k`` in a row.

    Attributes:
        run: positions of ``k`` side by side in the left operand, if not all of them are.
    """

    run: int | None = None

    def packed_buffer(
        self, panel: int, role: Role, form: PanelFormat | None = None
    ) -> LoweredBuffer:
        assert form is not None
        runs, rows = form.rows(self.spec.depth)
        panels = ceil_div(self.spec.n, panel)
        shape = (*self.spec.groups, panels, runs, rows, panel, form.steps)
        return LoweredBuffer(TensorType(form.dtype, shape), role, f"{self.spec.node.label}.packed")

    def pack_nest(
        self,
        build: KernelBuilder,
        packed: LoweredBuffer,
        panel: int,
        variables: tuple[Symbol, ...],
        form: PanelFormat | None = None,
    ) -> LoopNest:
        *groups, which, run, row, lane, step = at = build.axes(packed.type.shape)
        place = (tuple(groups), run, row, step)
        value = self._element(build, place, which * panel + lane, packed.type.shape[-1])
        position = build.argument(packed, writes=True)
        store = Store(position, linear_index(packed.type.shape, at), value)
        return block_nest(build, symbols_of(at), [store], variables)

    def _element(
        self, build: KernelBuilder, place: tuple[Indices, Dim, Dim, Dim], column: Dim, steps: Dim
    ) -> Scalar:
        """An element of a panel's row: zero where there is no weight.

        Args:
            place: the group, the run, the row within it and the step within that.
            steps: positions of ``k`` in a row.
        """
        spec = self.spec
        group, run, row, step = place
        length = spec.depth if self.run is None else self.run
        within = row * steps + step
        k = unravel(spec.k, run * length + within)
        weight = build.at(spec.b, spec.b_at(group, k, column))
        conditions = (length - 1 - within, spec.n - 1 - column)
        return _guarded(conditions, weight, Number(0, weight.dtype))


@dataclass(frozen=True, eq=False)
class IntMatmul(SteppedMatmul):
    """A matmul of 8-bit integers; panels hold several positions of ``k`` in a row."""

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """Panels are never narrower than a register: there is no other way to multiply bytes."""
        lanes = registers.vector_bytes // INT32.itemsize
        columns = [max(bounds(matmul.spec.n)[1], lanes) for matmul in (self, *others)]
        return tile_for(registers.vector_bytes, registers.count, INT32, self.spec.m, *columns)

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        """Four bytes a column where one instruction adds up as many products."""
        return PanelFormat(self.spec.b.dtype, 4 if registers.byte_dots else 2, run=self.run)


@dataclass(frozen=True, eq=False)
class IntConv(IntMatmul):
    """A convolution of 8-bit integers: rows are output positions, which are anywhere in memory."""

    def reads_in_place(self, build: KernelBuilder) -> bool:
        return self.spec.reads_in_place(build)


@dataclass(frozen=True, eq=False)
class BlockwiseMatmul(IntMatmul):
    """A matmul with 4-bit codes, in blocks of ``k`` that have scales.

    Registers are for the sums of a block; those of all blocks, which are needed once a block, may
    find themselves on the stack.

    Attributes:
        scales: those of the left operand and those of the right, as if they were multiplied.
    """

    scales: RowMatmul = field(kw_only=True)

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """A row has one sum more than columns: what codes of zero would come to.

        The time of a tile is that of its products, of repeating an element of each row, and of
        taking apart a row of the panel (``python -m bench.quantization``).
        """
        lanes = registers.vector_bytes // INT32.itemsize
        rows_in_all = bounds(self.spec.m)[1]
        widths = [-(-bounds(matmul.spec.n)[1] // lanes) for matmul in (self, *others)]

        def time(shape: tuple[int, int]) -> int:
            rows, vectors = shape
            tiles = -(-rows_in_all // rows) * sum(-(-width // vectors) for width in widths)
            return tiles * (rows * (vectors + 2) + 2 * vectors + 1)

        shapes = [
            (rows, vectors)
            for vectors in range(1, _MOST_VECTORS + 1)
            for rows in range(1, min(_MOST_ROWS, max(1, rows_in_all)) + 1)
            if rows * (vectors + 1) + 2 * vectors + 2 <= registers.count
        ]
        rows, vectors = min(shapes, key=time)
        return rows, vectors * lanes

    def panel_format(self, registers: RegisterFile) -> PanelFormat:
        return PanelFormat(UINT8, 4 if registers.byte_dots else 2, halves=True)

    def _element(
        self, build: KernelBuilder, place: tuple[Indices, Dim, Dim, Dim], column: Dim, steps: Dim
    ) -> Scalar:
        _, _, row, step = place
        low = row * (2 * steps) + step
        pair = (self._code(build, low, column), self._code(build, low + steps, column))
        high = Apply("bitwise_left_shift", (pair[1], Number(4, UINT8)), UINT8)
        return Apply("bitwise_or", (pair[0], high), UINT8)

    def _code(self, build: KernelBuilder, k: Dim, column: Dim) -> Scalar:
        """The code of one weight: 8, which stands for zero, where there is none."""
        rows, columns = self.spec.b.shape
        conditions = (rows * 2 - 1 - k, columns - 1 - column)
        pair = build.at(self.spec.b, (floor_div(k, 2), column))
        shift = IndexValue(remainder(k, 2) * 4, UINT8)
        moved = Apply("bitwise_right_shift", (pair, shift), UINT8)
        code = Apply("bitwise_and", (moved, Number(15, UINT8)), UINT8)
        return _guarded(conditions, code, Number(8, UINT8))

    @property
    def group(self) -> int:
        group: int = self.spec.node.attrs["group"]
        return group

    @property
    def packings(self) -> tuple[PackedMatmul, ...]:
        return (self, self.scales)

    def kernel(
        self,
        build: KernelBuilder,
        packed: Sequence[LoweredBuffer],
        tile: tuple[int, int],
        outputs: Outputs,
        variables: tuple[Symbol, ...],
        form: PanelFormat | None = None,
        number: int = 0,
    ) -> Gemm:
        """The kernel; ``packed`` are the panels of the codes and those of their scales."""
        _, scales = packed
        row = axis("m", self.spec.m)
        left = build.at(self.scales.spec.a, self.scales.spec.a_at((), row, (0,)))
        assert isinstance(left, Load)
        right = build.argument(scales, reads=True)
        kernel = super().kernel(build, packed, tile, outputs, variables, form, number)
        found = BlockScales(self.group, left.buffer, left.index, right, scales.type.dtype)
        return replace(kernel, scales=found)


def int_matmul(node: Node) -> IntMatmul:
    """``integer_matmul``: rows of bytes times matrices of bytes."""
    a, b = node.inputs
    rows = a.ndim > 0 and b.ndim == 2
    return IntMatmul(row_spec(node, a, b) if rows else matmul_spec(node))


def int_conv(lowering: ProgramBuilder, node: Node) -> IntConv:
    """``integer_conv``: an implicit GEMM of bytes, reading its input where it is, or a copy."""
    x = node.inputs[0]
    if not conv_spec(node, lowering.layout(x)).reads_in_place(lowering.helper_builder()):
        lowering.copy(x)
    spec, build = conv_spec(node, lowering.layout(x)), lowering.helper_builder()
    at = spec.axes(build)
    a = spec.left(build, at)
    assert isinstance(a, Load)
    runs = sum_axes(a.index, symbols_of(at.k))
    run = runs[-1].extent if runs else 1
    assert isinstance(run, int), "the dims of a weight are numbers"
    return IntConv(spec, run=None if run == spec.depth else run)


def blockwise_matmul(node: Node) -> BlockwiseMatmul:
    """``blockwise_matmul``: rows of bytes times a matrix of 4-bit codes, both with scales."""
    q, q_scales, codes, scales = node.inputs
    blocks = RowMatmul(row_spec(node, q_scales, scales))
    return BlockwiseMatmul(row_spec(node, q, codes), scales=blocks)


def _guarded(conditions: tuple[Dim, ...], body: Scalar, otherwise: Scalar) -> Scalar:
    """``body`` where every condition is ``>= 0``; those that surely are cost nothing."""
    open_ones = tuple(condition for condition in conditions if bounds(condition)[0] < 0)
    return Guard(open_ones, body, otherwise, body.dtype) if open_ones else body

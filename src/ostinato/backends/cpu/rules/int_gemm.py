"""Matmuls and convolutions of 8-bit integers with packed weights of 8 or 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.packing import BlockScales, PanelFormat
from ostinato.backends.cpu.rules.stepped_matmul import RowMatmul, SteppedMatmul, guarded
from ostinato.backends.cpu.rules.sum_axes import sum_axes
from ostinato.backends.cpu.rules.tiles import tile_of_least_time
from ostinato.dtypes import INT32, UINT8
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import (
    Apply,
    IndexValue,
    Load,
    Number,
    Scalar,
)
from ostinato.lower.rules.matmul_spec import conv_spec, matmul_spec, row_spec
from ostinato.records import dataclass, field, replace
from ostinato.variables import (
    Dim,
    axis,
    floor_div,
    remainder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.loopir.builder import KernelBuilder, Outputs
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

__all__ = [
    "BlockwiseMatmul",
    "IntConv",
    "IntMatmul",
    "blockwise_matmul",
    "int_conv",
    "int_matmul",
]

_MOST_ROWS, _MOST_VECTORS = 9, 4


@dataclass(frozen=True, eq=False)
class IntMatmul(SteppedMatmul):
    """A matmul of 8-bit integers; panels hold several positions of ``k`` in a row."""

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

        def fits(rows: int, vectors: int) -> bool:
            return rows * (vectors + 1) + 2 * vectors + 2 <= registers.count

        def time(rows: int, vectors: int) -> int:
            return rows * (vectors + 2) + 2 * vectors + 1

        columns = [matmul.spec.n for matmul in (self, *others)]
        most = _MOST_ROWS, _MOST_VECTORS
        return tile_of_least_time(registers, INT32, most, fits, time, self.spec.m, *columns)

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
        return guarded(conditions, code, Number(8, UINT8))

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

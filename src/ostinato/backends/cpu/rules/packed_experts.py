"""Grouped matmuls of 8-bit integers with packed weights, by the tiles of a single matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm, RowMatmul, expected_rows
from ostinato.backends.cpu.rules.packed_blocks import PackedBlockMatmul, packed_block_matmul
from ostinato.backends.cpu.rules.packing import BlockRows
from ostinato.dtypes import FLOAT32
from ostinato.lower.loopir.nodes import Load
from ostinato.records import dataclass, field, replace
from ostinato.variables import axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.dtypes import DType
    from ostinato.ir.graph import Node
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nodes import Store
    from ostinato.lower.program import LoweredBuffer
    from ostinato.variables import Dim, Symbol

__all__ = ["PackedRowMatmul", "packed_row_matmul"]


@dataclass(frozen=True, eq=False)
class PackedRowMatmul(RowMatmul):
    """A grouped matmul with packed weights ``[E, N, bytes]``.

    Attributes:
        blocks: the same matmul as one of rows with a matrix, which packs the panels.
    """

    blocks: PackedBlockMatmul = field(kw_only=True)

    @property
    def acc(self) -> DType:
        return FLOAT32

    @property
    def flops(self) -> Dim:
        return 2 * self.rows * self.blocks.spec.depth * self.blocks.spec.n

    @property
    def packings(self) -> list[PackedMatmul]:
        return [self.blocks]

    def axes(self) -> tuple[Dim, Dim, Dim]:
        spec = self.blocks.spec
        return axis("m", self.rows), axis("n", spec.n), axis("k", spec.depth)

    def kernel(
        self,
        build: KernelBuilder,
        matrices: Sequence[LoweredBuffer],
        groups: LoweredBuffer,
        left: Load,
        at: tuple[Dim, Dim, Dim],
        epilogue: Sequence[Store],
        variables: tuple[Symbol, ...],
    ) -> GroupedGemm:
        form = self.blocks.form
        scales, sums = (
            build.at(part.spec.a, (at[0], 0)) for part in (self.blocks.scales, self.blocks.sums)
        )
        assert isinstance(scales, Load)
        assert isinstance(sums, Load)
        made = super().kernel(build, matrices, groups, left, at, epilogue, variables)
        places = scales.buffer, scales.index, sums.buffer, sums.index
        rows = BlockRows(form.size, form.group, *places)
        fetch = None if made.prefetch is None else made.prefetch.of_packed_weights
        return replace(made, block_rows=rows, prefetch=fetch)


def packed_row_matmul(node: Node, registers: RegisterFile) -> PackedRowMatmul:
    """The matmul of a ``packed_grouped_block_matmul`` node."""
    w = node.inputs[3]
    blocks = packed_block_matmul(node)
    rows = expected_rows(blocks.spec.m, w.shape[0])
    tile = replace(blocks, spec=replace(blocks.spec, m=rows)).tile(registers)
    form = blocks.panel_format(registers)
    return PackedRowMatmul(node, blocks.spec.m, (w,), tile, form, True, registers, blocks=blocks)

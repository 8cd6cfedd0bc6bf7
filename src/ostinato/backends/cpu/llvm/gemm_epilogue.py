"""The epilogue of a GEMM: statements over the sums of an item, where they are in scratch memory."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.indices import Indices
from ostinato.backends.cpu.llvm.kernel import KernelFunction, counted_loop
from ostinato.backends.cpu.llvm.memory import address
from ostinato.backends.cpu.llvm.tile_epilogue import TileEpilogue
from ostinato.backends.cpu.llvm.types import I64
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import max_extent
from ostinato.records import dataclass
from ostinato.variables import Dim, Expr, axis, axis_symbol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm import transpose
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.rules.gemm import Gemm
else:
    transpose = LazyModule("ostinato.backends.cpu.llvm.transpose")

__all__ = ["GemmEpilogue", "Span"]


@dataclass(frozen=True)
class Span:
    """The rows of an item, or its columns.

    Attributes:
        first: the first one's number.
        count: how many there are.
    """

    first: Dim
    count: Dim


class GemmEpilogue:
    """The emitter of an epilogue that GEMMs share.

    Args:
        gemms: all of them, in the order of their sums' numbers; the first one has the epilogue.
        kernel: under construction.
        sums: where the sums of each are.
        turned: memory for their transposes.
    """

    def __init__(
        self,
        gemms: Sequence[Gemm],
        kernel: KernelFunction,
        sums: Sequence[ir.Value],
        turned: Sequence[ir.Value],
    ) -> None:
        self.gemms, self.gemm = gemms, gemms[0]
        self.kernel, self.builder = kernel, kernel.builder
        self.indices = Indices(kernel.builder)
        self.sums, self.turned = sums, turned

    def emit(self, item: Scope, rows: Span, columns: Span, start: Dim = 0) -> None:
        """The epilogue of rows and columns of an item, the axis along which it stores as lanes.

        Args:
            start: the number, within the item, of the first row. Only stores along columns may
                leave out rows in front.
        """
        c = self.gemm
        row, column = axis("m.row", rows.count), axis("n.column", columns.count)
        position = {c.m: rows.first + row, c.n: columns.first + column}

        def along_lanes(
            outer: Expr, lane: Expr, place: Dim, sizes: tuple[int, int], sums: Sequence[ir.Value]
        ) -> None:
            """The stores at every ``outer``, with the values of ``lane`` as lanes.

            ``sizes`` are those of an item: values of ``lane``, and of ``outer``.
            """
            statements = TileEpilogue(self.kernel, c, sums, place, position, (axis_symbol(outer),))
            plan = statements.plan(axis_symbol(lane), *sizes)
            statements.emit(axis_symbol(lane), plan, item)

        if c.stores_along_rows:
            for sums, turned in zip(self.sums, self.turned, strict=True):
                self._transpose(sums, turned, rows, item)
            sizes = c.block, min(c.panel, max_extent(c.n))
            along_lanes(column, row, column * c.padded_block + row, sizes, self.turned)
        else:
            sizes = c.panel, min(c.block, max_extent(c.m))
            along_lanes(row, column, (start + row) * c.panel + column, sizes, self.sums)

    def _transpose(self, sums: ir.Value, turned: ir.Value, rows: Span, item: Scope) -> None:
        c, b = self.gemm, self.builder
        size = transpose.square_size(math.gcd(c.panel, c.padded_block))
        count = self.indices.scalar(rows.count, item)

        def square(row: ir.Value, column: ir.Value) -> None:
            source = address(b, sums, c.acc, b.add(b.mul(row, I64(c.panel)), column))
            end = address(b, turned, c.acc, b.add(b.mul(column, I64(c.padded_block)), row))
            transpose.transpose_square(b, c.acc, size, (source, c.panel), (end, c.padded_block))

        def squares(row: ir.Value) -> None:
            trips = c.panel // size
            across = partial(square, row)
            counted_loop(b, I64(0), I64(c.panel), size, across, trips=trips, name="square")

        counted_loop(b, I64(0), count, size, squares, name="squares")

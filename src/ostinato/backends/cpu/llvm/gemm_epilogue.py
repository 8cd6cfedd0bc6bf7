"""The epilogue of a GEMM: statements over the sums of an item, where they are in scratch memory."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.indices import Indices
from ostinato.backends.cpu.llvm.kernel import KernelFunction, counted_loop
from ostinato.backends.cpu.llvm.memory import address
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.scalars import Scalars
from ostinato.backends.cpu.llvm.stages import StageEmitter
from ostinato.backends.cpu.llvm.types import I64
from ostinato.backends.cpu.llvm.vectors import plan_vectors, strip_mine
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.nodes import Accumulator, Load, Scalar, Stage, extent_of, max_extent
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import dataclass
from ostinato.variables import Dim, Expr, Symbol, axis, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm import transpose
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.rules.gemm import Gemm
else:
    transpose = LazyModule("ostinato.backends.cpu.llvm.transpose")

__all__ = ["GemmEpilogue", "Span", "axis_symbol"]


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

    def emit(self, item: Scope, rows: Span, columns: Span) -> None:
        """The epilogue of an item's rows and columns, the axis along which it stores as lanes."""
        c = self.gemm
        row, column = axis("m.row", rows.count), axis("n.column", columns.count)
        position = {c.m: rows.first + row, c.n: columns.first + column}

        def epilogue(place: Dim) -> _Moved:
            loads = [Load(len(c.args) + i, place, c.acc) for i in range(len(self.gemms))]
            return _Moved(loads, position)

        if c.stores_along_rows:
            for sums, turned in zip(self.sums, self.turned, strict=True):
                self._transpose(sums, turned, rows, item)
            along = epilogue(column * c.padded_block + row)
            self._run(along, column, row, c.block, self.turned, item)
        else:
            across = epilogue(row * c.panel + column)
            self._run(across, row, column, c.panel, self.sums, item)

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

    def _run(
        self,
        epilogue: _Moved,
        loop: Expr,
        lane: Expr,
        capacity: int,
        sums: Sequence[ir.Value],
        item: Scope,
    ) -> None:
        """The stores at every ``loop``, with ``lane`` (at most ``capacity`` values) as lanes."""
        c, b = self.gemm, self.builder
        loop_axis, inner_axis = axis_symbol(loop), axis_symbol(lane)
        stage = Stage((loop_axis,), tuple(map(epilogue.statement, c.epilogue)))
        dependences = Dependences((stage,))
        scalars = Scalars(b, LaneNamespace(), [*self.kernel.buffers, *sums], dependences)
        dtypes = [*(arg.dtype for arg in c.args), *(c.acc for _ in sums)]
        stages = StageEmitter(b, self.kernel.target, scalars, dtypes)
        target, rows = self.kernel.target, max_extent(loop_axis)
        plan = plan_vectors(inner_axis, capacity, [stage], target, dependences, repeats=rows)
        count = extent_of(inner_axis)
        strip_mine(
            b,
            inner_axis,
            (I64(0), self.indices.scalar(count, item)),
            count if isinstance(count, int) else None,
            plan.dividing(capacity),
            item,
            lambda shared, vectors: stages.columns(stage, shared, vectors),
        )


class _Moved(Rewriter):
    """Moves statements to an item's place, and puts its sums where the accumulators were."""

    def __init__(self, sums: Sequence[Load], position: Mapping[Symbol, Dim]) -> None:
        super().__init__(lambda dim: substitute(dim, position))
        self._sums = sums

    def scalar(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Accumulator):
            return self._sums[scalar.number]
        return super().scalar(scalar)


def axis_symbol(dim: Dim) -> Symbol:
    """The symbol that an axis consists of."""
    (symbol,) = symbols(dim)
    return symbol

"""Epilogues of register tiles: statements over sums that a tile has left in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.scalars import Scalars
from ostinato.backends.cpu.llvm.stages import StageEmitter
from ostinato.backends.cpu.llvm.types import I64
from ostinato.backends.cpu.llvm.vectors import plan_vectors, strip_mine
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.nodes import Accumulator, Load, Scalar, Stage, extent_of
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import replace
from ostinato.variables import Dim, Symbol, substitute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.llvm.scopes import Scope
    from ostinato.backends.cpu.llvm.vectors import VectorPlan
    from ostinato.backends.cpu.rules.gemm import Gemm
    from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm

__all__ = ["TileEpilogue"]

#: Vectors of an axis that are stored together.
_TOGETHER = 4


class TileEpilogue:
    """The emitter of an epilogue's statements, with the values of one axis as lanes.

    Args:
        kernel: under construction.
        gemm: has the statements, the kernel's arguments and the dtype of sums.
        sums: where those with each number are.
        place: the offset of a point's sum in each of them.
        position: by axis of the statements, the point.
        axes: those of the point that are outside of the lanes.
    """

    def __init__(
        self,
        kernel: KernelFunction,
        gemm: Gemm | GroupedGemm,
        sums: Sequence[ir.Value],
        place: Dim,
        position: Mapping[Symbol, Dim],
        axes: tuple[Symbol, ...] = (),
    ) -> None:
        self.builder, self.target = kernel.builder, kernel.target
        args = gemm.args
        loads = [Load(len(args) + number, place, gemm.acc) for number in range(len(sums))]
        moved = _Moved(loads, position)
        self.stage = Stage(axes, tuple(map(moved.statement, gemm.epilogue)))
        self.dependences = Dependences((self.stage,))
        self.scalars = Scalars(
            kernel.builder, LaneNamespace(), [*kernel.buffers, *sums], self.dependences
        )
        dtypes = [*(arg.dtype for arg in args), *(gemm.acc for _ in sums)]
        self.stages = StageEmitter(kernel.builder, kernel.target, self.scalars, dtypes)

    def plan(self, lane: Symbol, capacity: int, repeats: int) -> VectorPlan:
        """The vectors along an axis of at most ``capacity`` values.

        As many at a time as divide that many: none of a whole axis is left over. All of them where
        they are few and the statements short: neighbouring vectors are stored together.

        Args:
            repeats: how often an item goes over the axis.
        """
        plan = plan_vectors(
            lane, capacity, [self.stage], self.target, self.dependences, repeats=repeats
        )
        vectors = max(1, capacity // plan.width)
        if 1 < plan.unroll < vectors <= _TOGETHER:
            return replace(plan, unroll=vectors)
        return plan.dividing(capacity)

    def emit(self, lane: Symbol, plan: VectorPlan, scope: Scope) -> None:
        """The statements at all values of an axis."""
        count = extent_of(lane)
        strip_mine(
            self.builder,
            lane,
            (I64(0), self.scalars.indices.scalar(count, scope)),
            count if isinstance(count, int) else None,
            plan,
            scope,
            lambda shared, vectors: self.stages.columns(self.stage, shared, vectors),
        )


class _Moved(Rewriter):
    """Moves statements to a tile's place, and puts its sums where the accumulators were."""

    def __init__(self, sums: Sequence[Load], position: Mapping[Symbol, Dim]) -> None:
        super().__init__(lambda dim: substitute(dim, position))
        self._sums = sums

    def scalar(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Accumulator):
            return self._sums[scalar.number]
        return super().scalar(scalar)

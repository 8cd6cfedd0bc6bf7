"""Matmuls by instructions that multiply several neighbours along ``k``: their panels and tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.rules.packed_matmul import PackedMatmul
from ostinato.backends.cpu.rules.tiles import tile_for
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nodes import Guard, Load, Number, Scalar, Store, max_extent
from ostinato.lower.loopir.views import linear_index, unravel
from ostinato.lower.program import LoweredBuffer, Role
from ostinato.lower.rules.loops import block_nest
from ostinato.lower.rules.matmul_spec import row_spec
from ostinato.records import dataclass
from ostinato.variables import Dim, bounds, ceil_div, coefficient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cpu.rules.packing import PanelFormat
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node
    from ostinato.lower.loopir.builder import KernelBuilder
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Symbol

__all__ = ["RowMatmul", "SteppedMatmul", "guarded", "rows_times_matrix"]


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

    def tile(self, registers: RegisterFile, others: Sequence[PackedMatmul] = ()) -> tuple[int, int]:
        """Panels are never narrower than a register: there is no other way to multiply pairs."""
        acc = self.spec.acc
        lanes = registers.vector_bytes // acc.itemsize
        columns = [max(bounds(matmul.spec.n)[1], lanes) for matmul in (self, *others)]
        return tile_for(registers.vector_bytes, registers.count, acc, self.spec.m, *columns)

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
        return guarded(conditions, weight, Number(0, weight.dtype))


def rows_times_matrix(node: Node) -> MatmulSpec | None:
    """The matmul of a node as rows times one matrix of known size, if that is what it is."""
    a, b = node.inputs
    if len(a.shape) < 2 or len(b.shape) != 2 or not all(isinstance(size, int) for size in b.shape):
        return None
    return row_spec(node, a, b)


def guarded(conditions: tuple[Dim, ...], body: Scalar, otherwise: Scalar) -> Scalar:
    """``body`` where every condition is ``>= 0``; those that surely are cost nothing."""
    open_ones = tuple(condition for condition in conditions if bounds(condition)[0] < 0)
    return Guard(open_ones, body, otherwise, body.dtype) if open_ones else body

"""The loops of kernels whose rows carry a state: blocks of columns, then rows, then vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.expressions import expression_scalars
from ostinato.backends.cpu.llvm.kernel import counted_loop, stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, where
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.types import I64, call_intrinsic, register_type
from ostinato.backends.cpu.llvm.vectors import VectorPlan, strip_mine
from ostinato.lower.loopir.nodes import extent_of, max_extent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.kernel import KernelFunction
    from ostinato.backends.cpu.rules.sequence_states import SequenceStateKernel
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Scalar, Store
    from ostinato.variables import Symbol

__all__ = ["RowLoops", "Variable"]


class Variable:
    """A lane that loops change, in a stack slot that LLVM turns into a register."""

    def __init__(self, builder: ir.IRBuilder, dtype: DType, lanes: int) -> None:
        self._builder, self._dtype, self._lanes = builder, dtype, lanes
        self._type = register_type(dtype, lanes)
        self._slot = stack_slot(builder, self._type)
        self.value = Lane(builder, self._type(None), dtype, lanes)

    @property
    def value(self) -> Lane:
        loaded = self._builder.load(self._slot, typ=self._type)
        return Lane(self._builder, loaded, self._dtype, self._lanes)

    @value.setter
    def value(self, lane: Lane) -> None:
        self._builder.store(lane.value, self._slot)


class RowLoops:
    """The loops, and accesses to operands and the state in them.

    Args:
        described: the kernel.
        kernel: its function.
        values: the expressions that it evaluates.
    """

    def __init__(
        self, described: SequenceStateKernel, kernel: KernelFunction, values: Iterable[Scalar]
    ) -> None:
        self.described = described
        self.builder = kernel.builder
        self._kernel = kernel
        stores = [described.state] if described.y is None else [described.state, described.y]
        wanted = [described.first, *(b.value for b in described.state.bindings), *values]
        self.scalars = expression_scalars(kernel, described.args, wanted, stores)

    def run(self, vectors: Callable[[Scope, list[Scope]], None], head: Symbol | None) -> None:
        """Emit ``vectors`` for all rows of each step of the parallel range, and return.

        Args:
            vectors: takes the scope of a row, and that of each vector of columns.
            head: the axis whose values have the columns to themselves.
        """
        b, described = self.builder, self.described
        outermost = Scope(symbols=dict(self._kernel.variables))
        rows = self.scalars.indices.scalar(extent_of(described.row), outermost)

        def step(number: ir.Value) -> None:
            blocks = I64(described.blocks)
            at = {} if head is None else {head: b.udiv(number, blocks)}
            start = b.mul(b.urem(number, blocks), I64(described.width))
            columns, beyond = I64(max_extent(described.column)), b.add(start, I64(described.width))
            stop = b.select(b.icmp_signed("<", beyond, columns), beyond, columns)
            outer = outermost.child(symbols=at)

            def row(index: ir.Value) -> None:
                inside = outer.child(symbols={described.row: index})
                self.scalars.value(described.first, inside)
                for binding in described.state.bindings:
                    self.scalars.value(binding.value, inside)
                bounds = (start, stop)
                strip_mine(b, described.column, bounds, None, self._plan(), inside, vectors)

            counted_loop(b, I64(0), rows, 1, row, name="row")

        counted_loop(b, self._kernel.begin, self._kernel.end, 1, step, name="step")
        b.ret_void()

    def over(self, axis: Symbol, body: Callable[[dict[Symbol, ir.Value]], None]) -> None:
        """Emit ``body`` in a loop over an axis of a known size."""
        trips = _extent(axis)

        def iteration(index: ir.Value) -> None:
            body({axis: index})

        counted_loop(self.builder, I64(0), I64(trips), 1, iteration, trips=trips, name=axis.name)

    @staticmethod
    def number(value: int) -> ir.Value:
        """A position along an axis."""
        return I64(value)

    # -- values -----------------------------------------------------------------------------

    def variable(self, scope: Scope) -> Variable:
        """A sum that starts at zero."""
        return Variable(self.builder, self.described.acc, scope.width)

    def value(self, scalar: Scalar, scope: Scope) -> Lane:
        """An operand in the dtype of sums, in all lanes of a scope."""
        lane = self.scalars.value(scalar, scope).astype(self.described.acc)
        return broadcast(lane, scope.width)

    def state(self, scope: Scope) -> Lane:
        """The state that the row finds: zeros where it is the first one."""
        target = self.described.state
        dtype = self.described.args[target.buffer].dtype
        held = self.scalars.load(target.buffer, dtype, target.index, scope)
        held = broadcast(held.astype(self.described.acc), scope.width)
        return where(self.scalars.value(self.described.first, scope), 0.0, held)

    def store_state(self, lane: Lane, scope: Scope) -> None:
        """Store an element of the state."""
        self._store(self.described.state, lane, scope)

    def store_result(self, lane: Lane, scope: Scope) -> None:
        """Store an element of the row's result."""
        if self.described.y is not None:
            self._store(self.described.y, lane, scope)

    def multiplied_add(self, x: Lane, y: Lane, total: Lane) -> Lane:
        """``x * y + total``, in one rounding where there is an instruction for it."""
        kind = total.value.type
        bits = "f64" if total.dtype.itemsize == 8 else "f32"
        suffix = bits if total.lanes == 1 else f"v{total.lanes}{bits}"
        # fmuladd, not fma: without the instruction, fma would be a library call.
        operands = [x.value, y.value, total.value]
        return total.like(call_intrinsic(self.builder, f"llvm.fmuladd.{suffix}", kind, operands))

    def _store(self, target: Store, lane: Lane, scope: Scope) -> None:
        dtype = self.described.args[target.buffer].dtype
        self.scalars.store(target.buffer, dtype, target.index, lane, scope)

    def _plan(self) -> VectorPlan:
        target, described = self._kernel.target, self.described
        sizes = [arg.dtype.itemsize for arg in described.args]
        masks = target.vector_bytes >= 64 or (target.vector_bytes >= 32 and min(sizes) >= 4)
        lanes = target.lanes(described.acc.itemsize)
        return VectorPlan(lanes, max(1, described.width // lanes), masks)


def _extent(axis: Symbol) -> int:
    extent = extent_of(axis)
    assert isinstance(extent, int)
    return extent

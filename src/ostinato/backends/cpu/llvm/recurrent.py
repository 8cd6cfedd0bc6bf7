"""Rendering a :class:`~ostinato.backends.cpu.rules.recurrent.RecurrentKernel` as LLVM IR.

A block of sequences goes through all its steps before the next. At each step, panel by panel,
register tiles multiply the state with every gate's weights, and the op's own rule makes the new
state of the panel's columns of the sums. Where a GRU's candidate has to wait for the reset gates
of all columns, the panels are gone over twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.expressions import expression_scalars
from ostinato.backends.cpu.llvm.kernel import KernelFunction, counted_loop, kernel_module
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, where
from ostinato.backends.cpu.llvm.memory import address, load, store
from ostinato.backends.cpu.llvm.microkernel import tile_lanes
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.tiles import Tiles
from ostinato.backends.cpu.llvm.types import I8, I64
from ostinato.backends.cpu.llvm.vectors import VectorPlan, strip_mine
from ostinato.dtypes import INT64
from ostinato.lower.loopir.nodes import extent_of
from ostinato.ops.recurrent import gru_gates, gru_state, next_state, resets_first

if TYPE_CHECKING:
    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.recurrent import RecurrentKernel
    from ostinato.lower.loopir.nodes import Scalar, Store

__all__ = ["render"]

_XP = LaneNamespace()

#: Code for a vector of columns: takes the row within the block, and the scope.
_Body = Callable[["ir.Value", Scope], None]


def render(recurrent: RecurrentKernel, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it needs
    :attr:`RecurrentKernel.scratch_bytes` of scratch.
    """
    return kernel_module(recurrent, name, target, lambda k: _Renderer(recurrent, name, k).render())


class _Renderer:
    def __init__(self, recurrent: RecurrentKernel, name: str, kernel: KernelFunction) -> None:
        self.recurrent = recurrent
        self.kernel = kernel
        self.builder = kernel.builder
        self.scalars = expression_scalars(kernel, recurrent.args, _expressions(recurrent))
        self.tiles = Tiles(kernel, f"{name}.tile", recurrent.gemm, recurrent.heights)
        self.scratch = {
            part: kernel.builder.gep(kernel.scratch, [I64(start)], source_etype=I8)
            for part, start in recurrent.scratch_layout.items()
            if part != "end"
        }
        self.count: ir.Value = I64(0)  # rows of the block at hand
        self.sizes = {arg.dtype.itemsize for arg in recurrent.args}

    def render(self) -> None:
        b, rows = self.builder, self.recurrent.rows
        outermost = Scope(symbols=dict(self.kernel.variables))
        batch = self.scalars.indices.scalar(extent_of(self.recurrent.row), outermost)

        def block(index: ir.Value) -> None:
            first = b.mul(index, I64(rows))
            left = b.sub(batch, first)
            self.count = b.select(b.icmp_signed("<", left, I64(rows)), left, I64(rows))
            self._block(first, outermost.child())

        counted_loop(b, self.kernel.begin, self.kernel.end, 1, block, name="block")
        b.ret_void()

    def _block(self, first: ir.Value, scope: Scope) -> None:
        b, recurrent = self.builder, self.recurrent
        steps = self.scalars.indices.scalar(extent_of(recurrent.step), scope)
        self._columns(first, scope, self._enter)

        def step(number: ir.Value) -> None:
            at = b.sub(b.sub(steps, I64(1)), number) if recurrent.rule["reverse"] else number
            inside = scope.child(symbols={recurrent.step: at})
            odd = b.trunc(number, I8)
            self._step(first, inside, *self._states(b.and_(odd, I8(1))))

        counted_loop(b, I64(0), steps, 1, step, name="step")
        last, _ = self._states(b.and_(b.trunc(steps, I8), I8(1)))
        self._columns(first, scope, partial(self._leave, last))

    def _states(self, odd: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The addresses of the old and of the new ``h``, at a step of this parity."""
        b = self.builder
        is_odd = b.icmp_unsigned("!=", odd, I8(0))
        even_first, odd_first = self.scratch["h0"], self.scratch["h1"]
        old = b.select(is_odd, odd_first, even_first)
        return old, b.select(is_odd, even_first, odd_first)

    # -- the state --------------------------------------------------------------------------

    def _enter(self, row: ir.Value, scope: Scope) -> None:
        for part, value in zip(("h0", "c"), self.recurrent.initial, strict=False):
            self._put(self.scratch[part], row, scope, self._value(value, scope))

    def _leave(self, h: ir.Value, row: ir.Value, scope: Scope) -> None:
        parts = [h, self.scratch.get("c")]
        for part, target in zip(parts, self.recurrent.last, strict=False):
            if target is not None:
                self._write(target, self._get(part, row, scope), scope)

    def _step(self, first: ir.Value, scope: Scope, old: ir.Value, new: ir.Value) -> None:
        recurrent = self.recurrent
        gates = range(len(recurrent.x))
        if not resets_first(recurrent.rule):
            self._panels(first, scope, old, gates, partial(self._next_state, old, new))
            return
        self._panels(first, scope, old, gates[:2], partial(self._gru_gates, old))
        reset = self.scratch["reset"]
        self._panels(first, scope, reset, gates[2:], partial(self._gru_state, old, new))

    def _next_state(self, old: ir.Value, new: ir.Value, row: ir.Value, scope: Scope) -> None:
        recurrent = self.recurrent
        cell = [self.scratch["c"]] if "c" in self.scratch else []
        state = tuple(self._get(part, row, scope) for part in (old, *cell))
        weights = {
            name: [self._value(part, scope) for part in parts] for name, parts in recurrent.weights
        }
        x = [self._value(gate, scope) for gate in recurrent.x]
        products = [self._sum(gate, row, scope) for gate in range(len(recurrent.x))]
        after = next_state(_XP, x, products, state, weights, recurrent.rule)
        self._advance(row, scope, [new, *cell], state, after)

    def _gru_gates(self, old: ir.Value, row: ir.Value, scope: Scope) -> None:
        x = [self._value(gate, scope) for gate in self.recurrent.x[:2]]
        products = [self._sum(gate, row, scope) for gate in range(2)]
        update, reset = gru_gates(_XP, x, products, self.recurrent.rule)
        self._put(self.scratch["update"], row, scope, update)
        self._put(self.scratch["reset"], row, scope, reset * self._get(old, row, scope))

    def _gru_state(self, old: ir.Value, new: ir.Value, row: ir.Value, scope: Scope) -> None:
        h = self._get(old, row, scope)
        update = self._get(self.scratch["update"], row, scope)
        candidate = self._value(self.recurrent.x[2], scope) + self._sum(2, row, scope)
        after = gru_state(_XP, candidate, update, h, self.recurrent.rule)
        self._advance(row, scope, [new], (h,), (after,))

    def _advance(
        self,
        row: ir.Value,
        scope: Scope,
        parts: Sequence[ir.Value],
        before: Sequence[Lane],
        after: Sequence[Lane],
    ) -> None:
        """Notes the new state of a sequence, and its ``y``, if it is still running."""
        recurrent = self.recurrent
        y = after[0]
        if recurrent.length is not None:
            length = self.scalars.value(recurrent.length, scope)
            step = scope.find(lambda s: s.symbols.get(recurrent.step))
            live = length > Lane(self.builder, step, INT64, 1)
            after = [where(live, n, o) for n, o in zip(after, before, strict=True)]
            y = where(live, y, 0.0)
        for part, value in zip(parts, after, strict=True):
            self._put(part, row, scope, value)
        if recurrent.y is not None:
            self._write(recurrent.y, y, scope)

    # -- matmuls and columns ----------------------------------------------------------------

    def _panels(
        self, first: ir.Value, scope: Scope, a: ir.Value, gates: Sequence[int], body: _Body
    ) -> None:
        """Multiplies with every panel of ``gates``, and runs ``body`` over its columns."""
        b, recurrent = self.builder, self.recurrent
        depth, acc = recurrent.hidden, recurrent.acc

        def panel(number: ir.Value) -> None:
            for gate in gates:
                which = b.add(number, I64(gate * recurrent.panels))
                start = b.mul(which, I64(depth * recurrent.panel))
                weights = address(b, self.kernel.buffers[recurrent.r], acc, start)
                self.tiles.call(self.count, [a, a, weights, self._sums(gate)])
            start = b.mul(number, I64(recurrent.panel))
            self._rows(first, scope.child(), start, body)

        trips = recurrent.panels
        counted_loop(b, I64(0), I64(trips), 1, panel, trips=trips, name="panel")

    def _columns(self, first: ir.Value, scope: Scope, body: _Body) -> None:
        """Runs ``body`` for all rows of the block, panel by panel."""
        b, panels = self.builder, self.recurrent.panels

        def panel(number: ir.Value) -> None:
            start = b.mul(number, I64(self.recurrent.panel))
            self._rows(first, scope.child(), start, body)

        counted_loop(b, I64(0), I64(panels), 1, panel, trips=panels, name="panel")

    def _rows(self, first: ir.Value, scope: Scope, start: ir.Value, body: _Body) -> None:
        """Runs ``body`` for all rows of the block, over the columns of the panel at ``start``."""
        b, recurrent = self.builder, self.recurrent
        beyond = b.add(start, I64(recurrent.panel))
        hidden = I64(recurrent.hidden)
        whole = recurrent.hidden % recurrent.panel == 0
        stop = beyond if whole else b.select(b.icmp_signed("<", beyond, hidden), beyond, hidden)

        def row(number: ir.Value) -> None:
            inside = scope.child(symbols={recurrent.row: b.add(first, number)})
            strip_mine(
                b,
                recurrent.column,
                (start, stop),
                recurrent.panel if whole else None,
                self._plan(),
                inside,
                lambda _, vectors: body(number, vectors[0]),
            )

        counted_loop(b, I64(0), self.count, 1, row, name="row")

    def _plan(self) -> VectorPlan:
        target = self.kernel.target
        masks = target.vector_bytes >= 64 or (target.vector_bytes >= 32 and min(self.sizes) >= 4)
        return VectorPlan(tile_lanes(self.recurrent.gemm, target), 1, masks)

    # -- memory -----------------------------------------------------------------------------

    def _value(self, scalar: Scalar, scope: Scope) -> Lane:
        lane = self.scalars.value(scalar, scope).astype(self.recurrent.acc)
        return broadcast(lane, scope.width)

    def _write(self, target: Store, lane: Lane, scope: Scope) -> None:
        dtype = self.recurrent.args[target.buffer].dtype
        self.scalars.store(target.buffer, dtype, target.index, lane, scope)

    def _place(self, row: ir.Value, scope: Scope) -> ir.Value:
        """The address of a vector in a part of the state, where it may be whole."""
        b = self.builder
        return b.add(b.mul(row, I64(self.recurrent.pitch)), self._column(scope))

    def _column(self, scope: Scope) -> ir.Value:
        return scope.find(lambda s: s.symbols.get(self.recurrent.column))

    def _get(self, part: ir.Value, row: ir.Value, scope: Scope) -> Lane:
        acc = self.recurrent.acc
        return load(self.builder, part, acc, self._place(row, scope), scope.width)

    def _put(self, part: ir.Value, row: ir.Value, scope: Scope, lane: Lane) -> None:
        store(self.builder, part, self.recurrent.acc, self._place(row, scope), lane)

    def _sums(self, gate: int) -> ir.Value:
        recurrent = self.recurrent
        start = I64(gate * recurrent.rows * recurrent.panel)
        return address(self.builder, self.scratch["sums"], recurrent.acc, start)

    def _sum(self, gate: int, row: ir.Value, scope: Scope) -> Lane:
        b, panel = self.builder, self.recurrent.panel
        within = b.urem(self._column(scope), I64(panel))
        place = b.add(b.mul(row, I64(panel)), within)
        return load(b, self._sums(gate), self.recurrent.acc, place, scope.width)


def _expressions(recurrent: RecurrentKernel) -> list[Scalar]:
    found = [*recurrent.x, *recurrent.initial]
    found += [part for _, parts in recurrent.weights for part in parts]
    return found if recurrent.length is None else [*found, recurrent.length]

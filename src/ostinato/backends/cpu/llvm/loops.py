"""Rendering a :class:`~ostinato.lower.loopir.nest.LoopNest` as LLVM IR: the outer loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cpu.llvm.kernel import (
    KernelFunction,
    counted_loop,
    kernel_module,
    stack_slot,
    when,
)
from ostinato.backends.cpu.llvm.memory import address, fence_streams
from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.scalars import Scalars
from ostinato.backends.cpu.llvm.scopes import Scope
from ostinato.backends.cpu.llvm.stages import StageEmitter
from ostinato.backends.cpu.llvm.types import I64
from ostinato.backends.cpu.llvm.vectors import plan_vectors
from ostinato.dtypes import UINT8
from ostinato.lower.loopir.dependences import Dependence, Dependences, roots, written_buffers
from ostinato.lower.loopir.nodes import Reduce, Stage, extent_of, max_extent
from ostinato.variables import Dim, Symbol, bounds, ceil_div, provably_less

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.toolchain import TargetSpec
    from ostinato.backends.cpu.rules.kernel import CpuLoopNest
    from ostinato.lower.loopir.nest import LoopNest

__all__ = ["render"]


def render(nest: CpuLoopNest, name: str, target: TargetSpec) -> ir.Module:
    """A module with the kernel ``name``, and ``name_extent`` if its extent is symbolic.

    The kernel's signature is that of :mod:`ostinato.backends.cpu.llvm.kernel`; it reads and writes
    nothing but the elements that the nest names, and ``nest.scratch_bytes`` of scratch.

    Raises:
        OstinatoError: the nest refers to something that it does not define: a bug of lowering.
    """
    return kernel_module(nest, name, target, lambda k: _NestRenderer(nest, k).render())


class _NestRenderer:
    def __init__(self, nest: CpuLoopNest, kernel: KernelFunction) -> None:
        self.nest = nest
        self.kernel = kernel
        self.builder = kernel.builder
        self.dependences = Dependences(nest.stages)
        buffers = [*kernel.buffers, *_temps(nest, kernel)]
        self.scalars = Scalars(kernel.builder, LaneNamespace(), buffers, self.dependences)
        dtypes = [arg.dtype for arg in nest.args] + [temp.dtype for temp in nest.temps]
        self.streamed = nest.streamed if kernel.target.has_streaming_stores else None
        self.stages = StageEmitter(
            kernel.builder, kernel.target, self.scalars, dtypes, self.streamed, nest.fetched
        )

    def render(self) -> None:
        kernel = self.kernel
        with when(self.builder, self.builder.icmp_signed("<", kernel.begin, kernel.end)):
            outermost = Scope(symbols=dict(kernel.variables))
            self._hoist(outermost, self.nest.axes)
            self._outer_loop(outermost)
            if self.streamed is not None:
                fence_streams(self.builder)
        self.builder.ret_void()

    # -- the parallel range -----------------------------------------------------------------

    def _outer_loop(self, outermost: Scope) -> None:
        """Runs the points from ``begin`` to ``end``.

        The axes are found by division once and then counted on, like the digits of an odometer.
        """
        parallel_axes = self._parallel_axes()
        extents = [self.scalars.indices.scalar(extent, outermost) for _, extent in parallel_axes]
        slots = self._decode(self.kernel.begin, extents) if len(parallel_axes) > 1 else []

        def body(step: ir.Value) -> None:
            digits = [self.builder.load(slot) for slot in slots] or [step] * len(parallel_axes)
            symbols = {axis: d for (axis, _), d in zip(parallel_axes, digits, strict=True)}
            self._point(outermost.child(symbols=symbols))
            self._advance(slots, extents)

        counted_loop(self.builder, self.kernel.begin, self.kernel.end, 1, body, name="point")

    def _parallel_axes(self) -> list[tuple[Symbol, Dim]]:
        """The axes of the parallel range with their extents, blocks of the inner axis last."""
        parallel_axes = [(axis, extent_of(axis)) for axis in self.nest.axes]
        lane = self.nest.inner_axis
        if lane is not None:
            blocks = ceil_div(extent_of(lane), self.nest.block)
            parallel_axes.append((_block_of(lane, blocks), blocks))
        return parallel_axes

    def _decode(self, step: ir.Value, extents: Sequence[ir.Value]) -> list[ir.Value]:
        """Slots with the position of each axis at ``step``, outermost first."""
        b = self.builder
        slots: list[ir.Value] = []
        for extent in reversed(extents):
            slot = stack_slot(b, I64)
            b.store(b.urem(step, extent), slot)
            step = b.udiv(step, extent)
            slots.insert(0, slot)
        return slots

    def _advance(self, slots: Sequence[ir.Value], extents: Sequence[ir.Value]) -> None:
        b = self.builder
        carry: ir.Value = I64(1)
        for slot, extent in zip(reversed(slots), reversed(extents), strict=False):
            moved = b.add(b.load(slot), carry)
            turned = b.icmp_signed("==", moved, extent)
            b.store(b.select(turned, I64(0), moved), slot)
            carry = b.zext(turned, I64)

    # -- one point --------------------------------------------------------------------------

    def _point(self, point: Scope) -> None:
        if self.nest.inner_axis is None:
            for number, stage in enumerate(self.nest.stages):
                self.stages.row(stage, point, first=number == 0)
        else:
            self._lane_block(self.nest.inner_axis, point)

    def _lane_block(self, lane: Symbol, point: Scope) -> None:
        """All stages for one vector of points after another, through a block of them."""
        nest, b = self.nest, self.builder
        extent = extent_of(lane)
        block = point.symbols[_block_of(lane, ceil_div(extent, nest.block))]
        first = b.mul(block, I64(nest.block))
        end = self.scalars.indices.scalar(extent, point)
        beyond = b.add(first, I64(nest.block))
        stop = b.select(b.icmp_signed("<", beyond, end), beyond, end)
        count = min(max_extent(lane), nest.block)
        plan = plan_vectors(
            lane, count, nest.stages, self.kernel.target, self.dependences, nest.block
        )
        self._hoist(point, (lane,))

        def body(shared: Scope, vectors: Sequence[Scope]) -> None:
            for stage in nest.stages:
                self.stages.columns(stage, shared, vectors)

        statements = [statement for stage in nest.stages for statement in stage.statements]
        whole = _block_count(extent, nest.block)
        self.stages.strip_mine(statements, lane, (first, stop), whole, plan, point, body)

    def _hoist(self, scope: Scope, inner: Sequence[Symbol]) -> None:
        """Computes in ``scope`` what depends on no axis in it, from stages that surely run."""
        nest = self.nest
        blocked: set[Dependence] = set(inner)
        if nest.inner_axis is not None:
            blocked.add(nest.inner_axis)
        blocked.update(range(len(nest.args), len(nest.args) + len(nest.temps)))
        for stage in nest.stages:
            blocked |= written_buffers(stage)
            blocked.update(stage.axes)
            blocked.update(s.name for s in stage.statements if isinstance(s, Reduce))
        for stage in nest.stages:
            if _surely_runs(stage):
                starts = [root for s in stage.statements for root in roots(s)]
                self.scalars.hoist(starts, scope, frozenset(blocked))


def _surely_runs(stage: Stage) -> bool:
    return all(provably_less(0, extent_of(axis)) for axis in stage.axes)


def _block_count(extent: Dim, block: int) -> int | None:
    """Elements in every block, if they all have as many."""
    if isinstance(extent, int) and (extent <= block or extent % block == 0):
        return min(extent, block)
    return None


def _block_of(lane: Symbol, blocks: Dim) -> Symbol:
    """The axis that counts the blocks of ``lane``."""
    return Symbol(f"{lane.name}.block", 0, max(bounds(blocks)[1] - 1, 0), blocks)


def _temps(nest: LoopNest, kernel: KernelFunction) -> list[ir.Value]:
    """The address of each temp in the scratch memory."""
    pointers, offset = [], 0
    for temp in nest.temps:
        pointers.append(address(kernel.builder, kernel.scratch, UINT8, I64(offset)))
        offset += -(-temp.elements * temp.dtype.itemsize // 64) * 64
    return pointers

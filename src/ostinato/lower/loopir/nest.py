"""The loop nest: the kernel that every device can run, made of the statements of the loop IR."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import accesses_of_statements
from ostinato.lower.loopir.kernel import Access, Kernel
from ostinato.lower.loopir.nodes import Arg, Stage, Temp, extent_of
from ostinato.lower.loopir.rewrite import index_expressions
from ostinato.records import dataclass
from ostinato.variables import Dim, Symbol, ceil_div, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.lower.loopir import traffic
    from ostinato.lower.loopir.text import KernelText
else:
    traffic = LazyModule("ostinato.lower.loopir.traffic")

__all__ = ["LoopNest"]


@dataclass(frozen=True, eq=False)
class LoopNest(Kernel):
    """Stages, run in order for every point of the outer axes.

    Attributes:
        args: the buffers, in the order of the kernel's ``buffers``.
        temps: rows private to an outer point, numbered after the arguments.
        axes: the outer axes, outermost first; together they are the parallel range.
        inner_axis: an innermost outer axis whose consecutive points a device computes side by
            side, in blocks of ``block``; the axes of stages are plain loops then. ``None``: it is
            the last axis of each stage whose points are computed side by side (rows).
        block: points of ``inner_axis`` per step of the parallel range.
        stages: what runs for each point.
        variables: the graph's Variables in the order of ``vars``.
        parallel: whether outer points may run at the same time and in any order.
    """

    args: tuple[Arg, ...]
    axes: tuple[Symbol, ...]
    stages: tuple[Stage, ...]
    temps: tuple[Temp, ...] = ()
    inner_axis: Symbol | None = None
    block: int = 1024
    variables: tuple[Symbol, ...] = ()
    parallel: bool = True

    @property
    def outer_axes(self) -> tuple[Symbol, ...]:
        """All outer axes, outermost first: ``axes``, then ``inner_axis``."""
        return self.axes if self.inner_axis is None else (*self.axes, self.inner_axis)

    @property
    def extent(self) -> Dim:
        """The steps of the parallel range: points of ``axes``, times blocks of ``inner_axis``."""
        points = prod(extent_of(axis) for axis in self.axes)
        if self.inner_axis is None:
            return points
        return points * ceil_div(extent_of(self.inner_axis), self.block)

    def describe(self, text: KernelText) -> None:
        text.line(0, "loops, parallel" if self.parallel else "loops, in order")
        text.head(self.args)
        for number, temp in enumerate(self.temps, len(self.args)):
            text.line(1, f"temp b{number}: {temp.dtype.short}[{temp.elements}]")
        for axis in self.axes:
            text.line(1, f"for {text.axis(axis)}")
        if self.inner_axis is not None:
            text.line(1, f"inner {text.axis(self.inner_axis)} by {self.block}")
        for stage in self.stages:
            axes = ", ".join(text.axis(axis) for axis in stage.axes)
            text.line(1, f"stage for {axes}" if axes else "stage")
            for statement in stage.statements:
                text.statement(statement)

    def accesses(self) -> Iterator[Access]:
        for stage in self.stages:
            yield from accesses_of_statements(stage.statements)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        return self._reach.elements(position, writes=writes)

    def variable_free(self) -> bool:
        known = set(self.variables)
        if not known:
            return True
        dims = [symbol.extent for symbol in self.outer_axes]
        for stage in self.stages:
            dims += [symbol.extent for symbol in stage.axes]
            dims += index_expressions(stage.statements)
        return not any(symbols(dim) & known for dim in dims if dim is not None)

    @property
    def row_axis(self) -> Symbol | None:
        axes = self.outer_axes
        if not axes or not all(isinstance(extent_of(axis), int) for axis in axes):
            return None
        return axes[0]

    @cached_property
    def _reach(self) -> traffic.Reach:
        return traffic.Reach(self.stages, self.variables)

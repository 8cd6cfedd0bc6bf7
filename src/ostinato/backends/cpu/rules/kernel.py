"""The CPU's kernels: the interface of all kernels, plus launching and rendering."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ostinato.lower.loopir.kernel import Kernel
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import extent_of, max_extent
from ostinato.lower.rules.sizes import SizeStep
from ostinato.records import dataclass
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from ostinato.lower.loopir.nodes import Load, Store
    from ostinato.lower.loopir.text import KernelText
    from ostinato.variables import Dim

__all__ = ["GRAIN_POINTS", "CpuKernel", "CpuLoopNest", "CpuSizeStep"]

#: Points of a loop nest that take a few microseconds, well above what handing them out costs.
GRAIN_POINTS = 1 << 14


class CpuKernel(Kernel):
    """A kernel that the thread pool runs.

    Attributes:
        renderer: the module of :mod:`ostinato.backends.cpu.llvm` that renders it.
        builtin: the name of the native core's kernel that does the same, for which no code is
            generated; ``None``: there is none.
    """

    renderer: ClassVar[str] = ""
    builtin: ClassVar[str | None] = None

    @property
    def extent(self) -> Dim:
        """The steps of the parallel range."""
        raise NotImplementedError

    @property
    def grain(self) -> int:
        """The number of steps that are worth handing to a thread together."""
        return 1

    @property
    def parallel(self) -> bool:
        """Whether steps may run at the same time and in any order."""
        return True

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory that each thread needs while it runs the kernel."""
        return 0

    def extent_for(self, wanted: int) -> Dim:
        """The steps that compute the first ``wanted`` values of :attr:`row_axis`."""
        assert self.row_axis is not None
        size = extent_of(self.row_axis)
        assert isinstance(self.extent, int)
        assert isinstance(size, int)
        return self.extent // size * wanted


@dataclass(frozen=True, eq=False)
class CpuLoopNest(LoopNest, CpuKernel):
    """A loop nest, run block by block of its outer axes.

    Attributes:
        streamed: the store that goes past the caches; ``None``: there is none.
        fetched: the element whose line the first stage fetches at each of its points, to be written
            by the last one; ``None``: there is none.
    """

    streamed: Store | None = None
    fetched: Load | None = None

    renderer: ClassVar[str] = "loops"

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        if self.streamed is not None:
            text.line(1, f"stores to b{self.streamed.buffer} past the caches")
        if self.fetched is not None:
            place = f"b{self.fetched.buffer}[{text.dim(self.fetched.index)}]"
            text.line(1, f"first stage fetches the line of {place}, to be written")

    @staticmethod
    def of(nest: LoopNest) -> CpuLoopNest:
        """``nest`` as the CPU runs it."""
        return CpuLoopNest(
            nest.args,
            nest.axes,
            nest.stages,
            nest.temps,
            nest.inner_axis,
            nest.block,
            nest.variables,
            nest.parallel,
        )

    @property
    def grain(self) -> int:
        lanes = 1 if self.inner_axis is None else min(self.block, max_extent(self.inner_axis))
        points = sum(
            math.prod(map(max_extent, stage.axes)) * len(stage.statements) for stage in self.stages
        )
        return max(1, GRAIN_POINTS // max(1, lanes * points))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch for the temps, each starting at a multiple of 64."""
        return sum(-(-t.elements * t.dtype.itemsize // 64) * 64 for t in self.temps)

    def extent_for(self, wanted: int) -> Dim:
        return super().extent_for(wanted) if self.axes else ceil_div(wanted, self.block)


@dataclass(frozen=True, eq=False)
class CpuSizeStep(SizeStep, CpuKernel):
    """A step of the native core that binds or checks a size."""

    @staticmethod
    def of(step: SizeStep) -> CpuSizeStep:
        """``step`` as the CPU runs it."""
        return CpuSizeStep(step.args, step.variables, step.symbol, step.limit, step.problem)

    @property
    def extent(self) -> Dim:
        return 1

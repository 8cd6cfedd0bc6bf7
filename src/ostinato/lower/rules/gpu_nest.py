"""Loop nests as GPUs have them: the members of a group share each outer point, and its temps.

Temps are in memory that only a group sees. Where they are too large for it, they are in global
memory, in one more argument of the kernel, and a limited number of groups run at once.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

from ostinato.dtypes import UINT8
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.independence import is_concurrent
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Arg, Scan, Stage, max_extent
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.program import LoweredBuffer
from ostinato.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from ostinato.lower.loopir.text import KernelText
    from ostinato.lower.program import Call, Role
    from ostinato.variables import Symbol

__all__ = [
    "GpuLoopNest",
    "most_points",
    "power_below",
    "scratch_groups",
    "shares_points",
    "with_scratch",
]

#: Groups that run at once, and bytes of their temps, where temps are in global memory.
_MOST_GROUPS = 256
_MOST_SCRATCH = 64 << 20


@dataclass(frozen=True, eq=False)
class GpuLoopNest(LoopNest):
    """A loop nest, its outer points mapped to groups.

    Attributes:
        scratch_groups: the groups that have memory for their temps in the last argument; 0: temps
            are in shared memory, and the arguments are the nest's alone.
    """

    scratch_groups: int = 0

    @classmethod
    def with_groups(cls, nest: LoopNest, groups: int) -> Self:
        """``nest`` with memory for the temps of some groups in one more argument; 0: without."""
        args, stages = nest.args, nest.stages
        if groups:
            stages = tuple(_renumbered(stage, len(args)) for stage in stages)
            args = (*args, Arg(UINT8, reads=True, writes=True))
        return cls(
            args,
            nest.axes,
            stages,
            nest.temps,
            nest.inner_axis,
            nest.block,
            nest.variables,
            nest.parallel,
            groups,
        )

    @property
    @abstractmethod
    def scratch_bytes(self) -> int:
        """Bytes of the last argument; 0 if it is no memory for temps."""

    def describe(self, text: KernelText) -> None:
        super().describe(text)
        if self.scratch_groups:
            text.line(1, f"temps of {self.scratch_groups} groups in b{len(self.args) - 1}")


def _renumbered(stage: Stage, first: int) -> Stage:
    """A stage whose temps are numbered after one more argument."""
    rewriter = Rewriter(buffer=lambda number: number + (number >= first))
    return Stage(stage.axes, tuple(map(rewriter.statement, stage.statements)))


def with_scratch(call: Call, kernel: GpuLoopNest, role: Role) -> Call:
    """The call with a kernel of its nest, and the memory that this needs for temps.

    Args:
        call: of a loop nest.
        kernel: the nest as the device runs it.
        role: of such memory.
    """
    buffers = call.buffers
    if kernel.scratch_bytes:
        type_ = TensorType(UINT8, (kernel.scratch_bytes,))
        buffers = (*buffers, LoweredBuffer(type_, role, f"temps of {call.title}"))
    return replace(call, kernel=kernel, buffers=buffers)


# -- the choice of a mapping -----------------------------------------------------------------------


def scratch_groups(nest: LoopNest, row: int, most_shared: int) -> int:
    """The groups that run at once where temps are too large for shared memory; else 0.

    Args:
        nest: the loops.
        row: bytes of the temps of an outer point.
        most_shared: bytes of shared memory that are for temps.
    """
    if row <= most_shared:
        return 0
    return max(1, min(most_points(nest.outer_axes), _MOST_GROUPS, _MOST_SCRATCH // row))


def shares_points(nest: LoopNest) -> bool:
    """Whether the members of a group may share the points of every stage."""
    dependences = Dependences(nest.stages)
    for stage in nest.stages:
        scans = [isinstance(s, Scan) for s in stage.statements]
        alone = all(scans) and len(stage.axes) == 1 and nest.inner_axis is None
        if any(scans) and not alone:
            return False
        if not is_concurrent(stage, dependences):
            return False
    return True


def most_points(axes: Iterable[Symbol]) -> int:
    """The greatest number of points that loops have."""
    return math.prod(map(max_extent, axes))


def power_below(number: int) -> int:
    """The greatest power of two that is not above ``number``."""
    return 1 << (number.bit_length() - 1)

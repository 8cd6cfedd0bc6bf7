"""Mappings of a nest's points to the threads of workgroups, chosen from the largest extents."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ostinato.backends.webgpu.render.dialect import held
from ostinato.lower.loopir.independence import have_any_order
from ostinato.lower.rules import gpu_nest
from ostinato.lower.rules.gpu_nest import most_points, power_below, shares_points
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.webgpu.target import WebGpuTarget
    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.nodes import Temp

__all__ = [
    "THREADS",
    "Mapping",
    "Shape",
    "mapping_of",
    "register_bytes",
    "scratch_groups",
    "temp_words",
]

THREADS = 64
"""Threads of a workgroup where nothing asks for more: what all GPUs schedule well."""

SUBGROUP_THREADS = 128
"""The same where threads of a subgroup exchange values: any size of subgroups divides it."""

#: Threads that keep a GPU busy.
_MANY_THREADS = 1 << 14

#: Points of a row for each thread of those that share it, where there are rows enough.
_POINTS_PER_THREAD = 4

#: Rows this short are one thread's.
_SHORT = 8

#: Workgroup memory for temps, which every device has, beside that of reductions.
_MOST_SHARED = 10 << 10


class Shape(enum.Enum):
    """The kinds of mappings."""

    STAGES = "a thread for each point of each stage; stages in any order"
    POINTS = "a thread for each outer point"
    ROWS = "threads of a workgroup for each outer point"
    ORDERED = "points in order, threads over what is independent"


@dataclass(frozen=True)
class Mapping:
    """A mapping.

    Attributes:
        shape: the kind.
        threads: of a workgroup.
        members: threads of an outer point.
        groups: the number of workgroups, where that is not the number of points.
    """

    shape: Shape
    threads: int = THREADS
    members: int = 1
    groups: int = 0

    @property
    def points(self) -> int:
        """Outer points that a workgroup has at a time."""
        return self.threads // self.members


def mapping_of(nest: LoopNest, target: WebGpuTarget, groups: int = 0) -> Mapping:
    """The mapping of a nest.

    Args:
        nest: the loops.
        target: the device.
        groups: workgroups that have memory for their temps in the nest's last argument; 0: temps
            are in workgroup memory.
    """
    if not nest.parallel:
        return Mapping(Shape.ORDERED)
    points = most_points(nest.outer_axes)
    longest = max((most_points(stage.axes) for stage in nest.stages), default=1)
    if longest > 1 and have_any_order(nest.stages):
        return Mapping(Shape.STAGES)
    members = _members(nest, target, points, longest)
    if groups:
        return Mapping(Shape.ROWS, members, members, groups)
    if not nest.temps and members == 1:
        return Mapping(Shape.POINTS)
    least = SUBGROUP_THREADS if target.subgroups and members > 1 else THREADS
    threads = max(members, least if members * points > least else members)
    row = 4 * temp_words(nest.temps)
    while threads > members and threads // members * row > _MOST_SHARED:
        threads //= 2
    return Mapping(Shape.ROWS, threads, members)


def register_bytes(dtype: DType) -> int:
    """Bytes of a value in the form of registers."""
    return max(held(dtype).itemsize, 4)


def temp_words(temps: Sequence[Temp]) -> int:
    """Words of the temps of an outer point, whose elements have the form of registers."""
    return sum(temp.elements * register_bytes(temp.dtype) // 4 for temp in temps)


def scratch_groups(nest: LoopNest) -> int:
    """The workgroups that run at once where temps are too large for workgroup memory; else 0."""
    return gpu_nest.scratch_groups(nest, 4 * temp_words(nest.temps), _MOST_SHARED)


def _members(nest: LoopNest, target: WebGpuTarget, points: int, longest: int) -> int:
    """The threads that share an outer point: a power of two."""
    if longest <= _SHORT or not shares_points(nest):
        return 1
    if nest.inner_axis is not None and not nest.temps:
        wanted = min(_MANY_THREADS // max(points, 1), longest // 2)
    else:
        wanted = longest // _POINTS_PER_THREAD
        if points * wanted < _MANY_THREADS:
            wanted = longest
    return power_below(max(min(wanted, 256, target.threads), 1))

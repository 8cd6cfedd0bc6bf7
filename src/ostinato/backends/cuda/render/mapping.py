"""Mappings of a nest's points to the threads of a grid, chosen from the largest extents."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.kept_rows import KeptRows, kept_rows
from ostinato.backends.cuda.render.packs import may_take, widest_pack
from ostinato.backends.cuda.render.transposes import TILE, TILE_THREADS, tile_axis
from ostinato.backends.cuda.target import WARP
from ostinato.lower.loopir.dependences import Dependences
from ostinato.lower.loopir.independence import have_any_order
from ostinato.lower.loopir.nodes import Scan, extent_of, max_extent
from ostinato.lower.rules import gpu_nest
from ostinato.lower.rules.gpu_nest import most_points, power_below, shares_points
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nest import LoopNest
    from ostinato.lower.loopir.nodes import Temp
    from ostinato.variables import Symbol

__all__ = ["Mapping", "Shape", "mapping_of", "scratch_groups", "temp_bytes"]

_BLOCK = 256
_LARGEST_BLOCK = 1024

#: Blocks of a grid for each that can be resident: more would only queue.
_OVERSUBSCRIPTION = 4

#: Points of a row for each thread of the group that shares it, where there are rows enough.
_POINTS_PER_THREAD = 4

#: Points for which tiles in shared memory are worth their barriers.
_MANY_POINTS = 1 << 12

#: Rows this short are one thread's.
_SHORT = 8

#: Shared memory of a block for temps, which all GPUs have.
_MOST_SHARED = 64 << 10

#: Shared memory for temps that leaves room for a second block on the multiprocessor.
_MODERATE_SHARED = 48 << 10

#: Bytes of rows that a thread keeps between stages, at most: of a kernel, whose registers decide
#: how many blocks share a multiprocessor, and of a part of a segment, which has one for itself.
_KEPT_BYTES, _KEPT_BYTES_OF_PART = 64, 256


class Shape(enum.Enum):
    """The kinds of mappings."""

    STAGES = "a thread for each point of each stage; stages in any order"
    POINTS = "a thread for each outer point"
    TILES = "a block for a tile of two axes"
    ROWS = "a group of neighbouring threads for each outer point"
    COLUMNS = "a group for each outer point, neighbours in neighbouring points"
    ORDERED = "points in order, threads over what is independent"


@dataclass(frozen=True)
class Mapping:
    """A mapping and its launch.

    Attributes:
        shape: the kind.
        launch: of the kernel.
        members: threads of an outer point.
        points: outer points that a block has at a time.
        lanes: neighbouring points of the innermost axis that a thread takes at once; by stage
            where the points of an outer one are shared.
        kept: the rows that threads keep from stage to stage.
    """

    shape: Shape
    launch: Launch
    members: int = 1
    points: int = 1
    lanes: tuple[int, ...] = (1,)
    kept: KeptRows | None = None


def mapping_of(nest: LoopNest, target: CudaTarget, groups: int = 0) -> Mapping:
    """The mapping of a nest.

    Args:
        nest: the loops.
        target: the GPU.
        groups: those of threads that have memory for their temps outside of shared memory; 0:
            temps are in shared memory.
    """
    points = most_points(nest.outer_axes)
    if not nest.parallel:
        return _ordered(target)
    longest = max((most_points(stage.axes) for stage in nest.stages), default=1)
    if longest > 1 and have_any_order(nest.stages):
        return Mapping(Shape.STAGES, _launch(target, points * longest, _BLOCK))
    members = _members(nest, target, points, longest)
    if nest.temps or (nest.inner_axis is None and members > 1):
        found = _rows(nest, target, points, members, groups)
        several = target.alone and points > found.points
        return _at_once(nest, target, points, groups) or found if several else found
    if members > 1:
        return _columns(target, points, members)
    other = tile_axis(nest) if target.tiled_transposes else None
    if other is not None and points >= _MANY_POINTS:
        return Mapping(Shape.TILES, _tile_launch(nest, target, other))
    lanes = _point_lanes(nest, target, points)
    return Mapping(Shape.POINTS, _thread_launch(target, points // lanes), lanes=(lanes,))


def temp_bytes(temps: Iterable[Temp]) -> int:
    """Bytes of the temps of an outer point, each starting at a multiple of 16."""
    return sum(-(-t.elements * t.dtype.itemsize // 16) * 16 for t in temps)


def scratch_groups(nest: LoopNest) -> int:
    """The groups of threads that run at once where temps are too large for shared memory; else 0.

    Every GPU has as much shared memory for a block as is asked for here.
    """
    return gpu_nest.scratch_groups(nest, temp_bytes(nest.temps), _MOST_SHARED)


def _point_lanes(nest: LoopNest, target: CudaTarget, points: int) -> int:
    """Points that a thread takes at once, while there are enough for all multiprocessors."""
    if not target.vector_accesses or len(nest.stages) != 1 or nest.stages[0].axes:
        return 1
    if not nest.outer_axes:
        return 1
    dtypes = [arg.dtype for arg in nest.args]
    lanes = widest_pack(nest.stages[0], nest.outer_axes[-1], dtypes, Dependences(nest.stages))
    few = points < lanes * _BLOCK * target.multiprocessors // 2
    return 1 if few else lanes


def _stage_lanes(nest: LoopNest, target: CudaTarget) -> tuple[int, ...]:
    """By stage, points that a member of a group takes at once."""
    dtypes = [arg.dtype for arg in nest.args] + [temp.dtype for temp in nest.temps]
    dependences = Dependences(nest.stages)
    return tuple(
        widest_pack(stage, stage.axes[0], dtypes, dependences)
        if target.vector_accesses and len(stage.axes) == 1
        else 1
        for stage in nest.stages
    )


def _even(nest: LoopNest, lanes: Sequence[int]) -> tuple[int, ...]:
    """The lanes of stages, as many as those of others over as many points where that can be."""
    dependences, found = Dependences(nest.stages), list(lanes)
    for number, stage in enumerate(nest.stages):
        alike = [
            width
            for other, width in zip(nest.stages, lanes, strict=True)
            if width > 1 and list(map(extent_of, other.axes)) == list(map(extent_of, stage.axes))
        ]
        most = max(alike, default=1)
        if 1 < lanes[number] < most and may_take(stage, stage.axes[0], most, dependences):
            found[number] = most
    return tuple(found)


def _members(nest: LoopNest, target: CudaTarget, points: int, longest: int) -> int:
    """The threads that share an outer point: a power of two."""
    if longest <= _SHORT or not shares_points(nest):
        return 1
    resident = target.multiprocessors * target.threads_per_multiprocessor
    if nest.inner_axis is not None and not nest.temps:
        wanted = min(resident // 2 // max(points, 1), longest // 2, WARP * WARP)
        return power_below(max(wanted, 1))
    lanes = max(_stage_lanes(nest, target))
    wanted = longest // max(_POINTS_PER_THREAD, lanes)
    if points * wanted < resident // 2:
        wanted = 1 << (-(-longest // lanes) - 1).bit_length()
    limit = _LARGEST_BLOCK if points <= 2 * target.multiprocessors else _BLOCK
    limit = target.block or limit
    if any(isinstance(s, Scan) for stage in nest.stages for s in stage.statements):
        limit = WARP
    return power_below(max(min(wanted, limit), 1))


def _launch(target: CudaTarget, threads: int, block: int) -> Launch:
    resident = target.threads_per_multiprocessor // block * target.multiprocessors
    return Launch(max(min(-(-threads // block), resident * _OVERSUBSCRIPTION), 1), block)


def _thread_launch(target: CudaTarget, points: int) -> Launch:
    """A launch of a thread for each point, in blocks that are small while points are few."""
    block = target.block or _BLOCK
    while not target.block and block > 2 * WARP and points < block * target.multiprocessors:
        block //= 2
    return _launch(target, points, block)


def _tile_launch(nest: LoopNest, target: CudaTarget, other: Symbol) -> Launch:
    """A block for each tile."""
    last = nest.outer_axes[-1]
    tiles = -(-max_extent(last) // TILE) * -(-max_extent(other) // TILE)
    tiles *= most_points(axis for axis in nest.outer_axes if axis not in (last, other))
    return _launch(target, tiles * TILE_THREADS, TILE_THREADS)


def _columns(target: CudaTarget, points: int, members: int) -> Mapping:
    width = min(WARP, 1 << max(points - 1, 0).bit_length())
    members = min(members, _LARGEST_BLOCK // width)
    block = target.block or max(width * members, WARP)
    members = block // width
    launch = _launch(target, points * members, block)
    return Mapping(Shape.COLUMNS, launch, members, width)


def _rows(
    nest: LoopNest,
    target: CudaTarget,
    points: int,
    members: int,
    groups: int,
    *,
    alone: bool = False,
) -> Mapping:
    lanes = _stage_lanes(nest, target)
    if groups:
        return Mapping(Shape.ROWS, Launch(groups, members), members, 1, lanes)
    block = max(members, WARP if nest.temps or members * points < _BLOCK else _BLOCK // 2)
    block = target.block or block
    kept: KeptRows | None = None
    if target.kept_rows:
        most = _KEPT_BYTES_OF_PART if target.block else _KEPT_BYTES
        kept = kept_rows(nest, lanes, members, most, alone=alone)
        even = _even(nest, lanes)
        if kept is None and even != lanes:
            kept = kept_rows(nest, even, members, most, alone=alone)
            lanes = lanes if kept is None else even
    elsewhere = kept.temps if kept is not None else {}
    row = temp_bytes(t for i, t in enumerate(nest.temps, len(nest.args)) if i not in elsewhere)
    limit = max(_MODERATE_SHARED, row)
    while block > members and block // members * row > limit:
        block //= 2
    launch = _launch(target, points * members, block)
    side_by_side = block // members
    shared = Launch(launch.grid, block, side_by_side * row)
    return Mapping(Shape.ROWS, shared, members, side_by_side, lanes, kept)


def _at_once(nest: LoopNest, target: CudaTarget, points: int, groups: int) -> Mapping | None:
    """The mapping by which one block takes all outer points at a time, if threads keep their rows.

    To go through the stages takes hundreds of cycles, for one pack of a row as for some.
    """
    if points > target.block:
        return None
    members = power_below(target.block // points)
    found = _rows(nest, target, points, members, groups, alone=True)
    return found if found.kept is not None and found.points >= points else None


def _ordered(target: CudaTarget) -> Mapping:
    return Mapping(Shape.ORDERED, Launch(target.multiprocessors, _BLOCK))

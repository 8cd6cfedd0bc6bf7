"""Loop nests as CUDA C++: a mapping of points to threads, and the code of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import Launch
from ostinato.backends.cuda.render.code import NestCode
from ostinato.backends.cuda.render.groups import group_per_point
from ostinato.backends.cuda.render.mapping import Mapping, Shape, mapping_of
from ostinato.backends.cuda.render.ordered import in_order
from ostinato.backends.cuda.render.points import every_stage, points_of_block, thread_per_point
from ostinato.backends.cuda.render.transposes import tile_axis, tile_per_block
from ostinato.backends.cuda.target import SEGMENT_BLOCK
from ostinato.lower.loopir.nodes import max_extent
from ostinato.lower.rules.gpu_nest import most_points
from ostinato.records import replace

if TYPE_CHECKING:
    from ostinato.backends.cuda.render.body import Body
    from ostinato.backends.cuda.target import CudaTarget
    from ostinato.lower.loopir.nest import LoopNest

__all__ = ["body", "body_of_block", "launch", "whole_rows"]


def launch(nest: LoopNest, target: CudaTarget, scratch_groups: int = 0) -> Launch:
    """The launch of a nest's kernel.

    Args:
        nest: the loops.
        target: the GPU.
        scratch_groups: groups of threads that the nest's last argument has temps for; 0: temps are
            in shared memory.
    """
    return _mapping(nest, target, scratch_groups).launch


def body(nest: LoopNest, target: CudaTarget, scratch_groups: int = 0) -> Body:
    """The code of a nest's kernel; see :func:`launch` for its arguments.

    Raises:
        OstinatoError: the nest refers to something that it does not define: a bug of lowering.
    """
    mapping = _mapping(nest, target, scratch_groups)
    code = NestCode(nest, mapping.launch)
    code.repeats = target.block > 0
    code.alone = code.repeats and target.multiprocessors == 1
    if any(max_extent(axis) == 0 for axis in nest.outer_axes):
        return code.body()
    match mapping.shape:
        case Shape.STAGES:
            every_stage(code)
        case Shape.POINTS:
            thread_per_point(code, mapping.lanes[0])
        case Shape.TILES:
            other = tile_axis(nest)
            assert other is not None
            tile_per_block(code, other)
        case Shape.ORDERED:
            in_order(code)
        case Shape.ROWS | Shape.COLUMNS:
            group_per_point(code, mapping, scratch=scratch_groups > 0)
    return code.body()


def body_of_block(nest: LoopNest, first: int) -> Body:
    """The code of an elementwise nest all of whose points one block of a segment has.

    Args:
        nest: the loops.
        first: the thread that has the first point.
    """
    code = NestCode(nest, Launch(1, SEGMENT_BLOCK))
    points_of_block(code, first)
    return code.body()


def whole_rows(nest: LoopNest, target: CudaTarget) -> dict[int, int]:
    """The arguments that a block loads into registers as a whole, once, with their elements.

    Args:
        nest: the loops.
        target: the GPU.
    """
    mapping, points = _mapping(nest, target, 0), most_points(nest.outer_axes)
    # Of several packs, neighbouring threads would each read a row of their own from memory.
    if mapping.kept is None or mapping.kept.packs > 1 or points > mapping.points:
        return {}
    return dict.fromkeys(mapping.kept.whole, mapping.kept.extent * points)


def _mapping(nest: LoopNest, target: CudaTarget, scratch_groups: int) -> Mapping:
    """The mapping of a nest, whose kernel starts early where the GPU can have it do so."""
    mapping = mapping_of(nest, target, scratch_groups)
    early = replace(mapping.launch, programmatic=target.starts_kernels_early)
    return replace(mapping, launch=early)

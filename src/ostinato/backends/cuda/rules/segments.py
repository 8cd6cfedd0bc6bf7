"""Segments: runs of small kernels as one kernel that stays on the GPU.

A launch costs microseconds, whatever it computes. A step of a decoder is hundreds of small kernels,
so those that follow one another become the parts of one: every block takes its share of each part,
and waits for the other blocks where a part reads what another one writes.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from ostinato.backends.cuda.abi import MOST_PARAMETER_BYTES, TENSOR_MAP_BYTES
from ostinato.backends.cuda.kernel import CudaKernel, CudaLoopNest
from ostinato.backends.cuda.rules.attention_kernel import PartsKernel, PointKernel
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.rounded_products import RoundedProduct
from ostinato.backends.cuda.rules.segment_assembly import Assembly, SegmentSettings, simplified
from ostinato.backends.cuda.rules.segment_steps import MOST_ARGUMENTS
from ostinato.backends.cuda.rules.topk import CudaTopK
from ostinato.backends.cuda.target import SEGMENT_BLOCK, CudaTarget
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.dependences import reached
from ostinato.lower.loopir.nodes import Load, max_extent
from ostinato.lower.loopir.traffic import traffic
from ostinato.lower.program import Call
from ostinato.records import replace
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from ostinato.backends.cuda.render import weight_streams
    from ostinato.backends.cuda.rules.segment_assembly import Segment
    from ostinato.lower.program import LoweredBuffer
    from ostinato.variables import Dim, Symbol
else:
    weight_streams = LazyModule("ostinato.backends.cuda.render.weight_streams")

__all__ = ["SegmentSettings", "form_segments"]

#: Arguments of a kernel, at most: they are 4096 bytes without its tensor maps.
_MOST_ARGUMENTS = 500

#: Parts, at most: shared memory has a table of all of them.
_MOST_PARTS = 400

#: Bytes of dynamic shared memory of a part, at most: every GPU has room for a block of them.
_SHARED_BYTES = 24 << 10

#: Bytes of the values that every block has at a time, at most.
_MOST_BLOCK_BYTES = 48 << 10

#: Values that are in memory since blocks have no room for them, at most.
_MOST_APART = 8

#: Bytes that one block moves, and operations that it carries out, in about the time of two barriers
#: of the grid, which is that in which a multiprocessor waits for memory some ten times.
_ONE_BLOCK_BYTES, _ONE_BLOCK_FLOPS = 128 << 10, 1 << 19

#: Rows of a product, and points of a loop nest, up to which a kernel is small.
_ROWS, _POINTS = 16, 1 << 20


def form_segments(
    calls: Sequence[Call], kept: Set[LoweredBuffer], settings: SegmentSettings
) -> list[Call]:
    """The calls, with runs of small kernels as segments.

    Args:
        calls: in order.
        kept: buffers that outlive a run's last call.
        settings: the optimisations that are on.
    """
    runs = [
        run
        for found in _runs(calls, settings, topk=settings.one_block)
        for run in ([found] if _suits_one_block(found) else _runs(found, settings, topk=False))
    ]
    return [call for run in _segments(runs, kept, settings) for call in run]


def _segments(
    runs: Sequence[Sequence[Call]], kept: Set[LoweredBuffer], settings: SegmentSettings
) -> list[list[Call]]:
    """Runs of calls, each as a segment where it has several; as several where one has no room.

    Args:
        runs: in order.
        kept: buffers that outlive a run's last call.
        settings: the optimisations that are on.
    """
    users = Counter(buffer for run in runs for buffer in {b for call in run for b in call.buffers})
    shared = kept | {buffer for buffer, count in users.items() if count > 1}
    made = [_segment(run, shared, settings) for run in runs]
    fits = [
        len(run) == 1
        or all(_has_room(len(call.buffers), sum(map(_tensor_maps, run))) for call in calls)
        for run, calls in zip(runs, made, strict=True)
    ]
    if all(fits):
        return made
    parts = [
        part
        for run, fit in zip(runs, fits, strict=True)
        for part in ([run] if fit else _runs(run, settings, topk=settings.one_block, limited=True))
    ]
    return _segments(parts, kept, settings)


def _has_room(arguments: int, maps: int) -> bool:
    """Whether a kernel may have so many arguments and tensor maps."""
    taken = 8 * (arguments + 2) + TENSOR_MAP_BYTES * (maps + 1)  # with what aligns the maps
    return arguments < _MOST_ARGUMENTS and taken <= MOST_PARAMETER_BYTES


def _tensor_maps(call: Call) -> int:
    """The tensor maps of a call whose weights come through a ring."""
    stream = weight_streams.stream_of(call.kernel) if isinstance(call.kernel, Matmul) else None
    return 0 if stream is None else len(stream.arguments)


def _runs(
    calls: Sequence[Call], settings: SegmentSettings, *, topk: bool, limited: bool = False
) -> list[list[Call]]:
    """The calls, those that may become one segment together.

    Args:
        calls: in order.
        settings: the optimisations that are on.
        topk: whether a choice of elements may be a part.
        limited: whether a kernel has room for all buffers of a segment, for one of packets, and for
            all tensor maps. Some buffers will be no arguments, so that may be more than it needs.
    """
    runs: list[list[Call]] = []
    buffers: set[LoweredBuffer] = set()
    maps, grows = 0, False
    for call in calls:
        fits = _is_small(call) and (settings.experts or not _chooses(call))
        fits = fits and (topk or not isinstance(call.kernel, CudaTopK))
        together, own = buffers | {*call.buffers}, _tensor_maps(call) if limited else 0
        room = not limited or _has_room(len(together) + 1, maps + own)
        if grows and fits and room and len(runs[-1]) < _MOST_PARTS:
            runs[-1].append(call)
            buffers, maps = together, maps + own
        else:
            runs.append([call])
            buffers, maps = {*call.buffers}, own
        grows = fits
    return runs


def _is_small(call: Call) -> bool:
    """Whether a call may be part of a segment."""
    kernel = call.kernel
    if isinstance(kernel, CudaLoopNest):
        inner = max((_size(stage.axes) for stage in kernel.stages), default=1)
        small = _size(kernel.outer_axes) * inner <= _POINTS
    elif isinstance(kernel, Matmul):
        small = max_extent(kernel.m) <= _ROWS
    elif isinstance(kernel, PointKernel):
        small = max_extent(kernel.rows) <= _ROWS
    elif isinstance(kernel, PartsKernel):
        small = max_extent(kernel.m) <= _ROWS
    elif isinstance(kernel, CudaTopK):
        small = bounds(kernel.rows.rows * kernel.rows.n)[1] <= _POINTS
    else:
        return False
    if not small or type(kernel).body is CudaKernel.body:
        return False
    if len(call.buffers) > MOST_ARGUMENTS:
        return False
    launch = kernel.launch(_TYPICAL)
    modest = launch.shared_bytes <= _SHARED_BYTES
    return launch.block == SEGMENT_BLOCK and modest and not launch.cooperative


def _suits_one_block(calls: Sequence[Call]) -> bool:
    """Whether calls are so short that one block runs them before a grid has met at its barriers."""
    if len(calls) < 2:
        return False
    moved = (traffic(call.kernel, [b.type for b in call.buffers]) for call in calls)
    short = sum(bounds(nbytes)[1] for nbytes in moved) <= _ONE_BLOCK_BYTES
    return short and sum(bounds(call.flops)[1] for call in calls) <= _ONE_BLOCK_FLOPS


def _chooses(call: Call) -> bool:
    """Whether a call is a product by a matrix that data choose, such as an expert's."""
    kernel = call.kernel
    if not isinstance(kernel, Matmul):
        return False
    return any(isinstance(s, Load) and bool(s.bindings) for s in reached([kernel.b]))


def _size(axes: Sequence[Symbol]) -> int:
    return math.prod(map(max_extent, axes))


def _segment(
    calls: Sequence[Call], others: Set[LoweredBuffer], settings: SegmentSettings
) -> list[Call]:
    """A run of calls as one; a single one stays as it is.

    Args:
        calls: the run.
        others: buffers that are used elsewhere.
        settings: the optimisations that are on.
    """
    if len(calls) < 2:
        return list(calls)
    if settings.one_block and _suits_one_block(calls):
        alone = replace(settings, stream_weights=False, exchange=False)
        kernel, buffers, parts = _assembled(calls, others, alone)
        if kernel.parts[-1].level:
            return [_joined(calls, kernel, buffers, parts)]
    settings = replace(settings, one_block=False)
    kernel, buffers, parts = _assembled(simplified(calls, others, settings), others, settings)
    if kernel.block_bytes > _MOST_BLOCK_BYTES:
        kernel, buffers, parts = _assembled(calls, others, replace(settings, exchange=False))
    return [_joined(calls, kernel, buffers, parts)]


def _joined(
    calls: Sequence[Call], kernel: Segment, buffers: Sequence[LoweredBuffer], parts: Sequence[Call]
) -> Call:
    """The call of a segment, which was made of calls; those of its parts."""
    labels = tuple(dict.fromkeys(label for call in calls for label in call.nodes))
    flops: Dim = 0
    for call in calls:
        flops = flops + call.flops
    title = f"segment of {len(calls)} kernels"
    return Call(kernel, tuple(buffers), labels, title, flops, tuple(parts))


def _assembled(
    calls: Sequence[Call], others: Set[LoweredBuffer], settings: SegmentSettings
) -> tuple[Segment, list[LoweredBuffer], list[Call]]:
    """A segment, with values in memory for which blocks have no room, if there are not too many."""
    apart = set(others)
    for _ in range(_MOST_APART):
        assembly = Assembly(calls, apart, settings)
        kernel, buffers, parts = assembly.segment()
        if kernel.block_bytes <= _MOST_BLOCK_BYTES:
            break
        apart.add(assembly.longest_held(_MOST_BLOCK_BYTES))
    if any(isinstance(p.kernel, RoundedProduct) and not p.streams for p in kernel.parts):
        return _assembled(calls, others, replace(settings, round=False))
    return kernel, buffers, parts


#: Whether a kernel fills blocks of a segment is the same on every GPU.
_TYPICAL = CudaTarget("sm_90", 132, 227 << 10, early_starts=False, block=SEGMENT_BLOCK)

"""Segments: runs of small kernels as one kernel that stays on the GPU.

A launch costs microseconds, whatever it computes. A step of a decoder is hundreds of small kernels,
so those that follow one another become the parts of one: every block takes its share of each part,
and waits for the other blocks where a part reads what another one writes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaKernel, CudaLoopNest
from ostinato.backends.cuda.rules.attention_kernel import AttentionKernel, PartsKernel
from ostinato.backends.cuda.rules.matmul import FewRowsMatmul
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.rules.segment_kernel import Part, SegmentKernel
from ostinato.backends.cuda.target import SEGMENT_BLOCK, CudaTarget
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.nodes import Arg, max_extent
from ostinato.lower.program import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.cuda.abi import Launch
    from ostinato.backends.cuda.render import segments, streamed_rows
    from ostinato.lower.program import LoweredBuffer
    from ostinato.variables import Dim, Symbol
else:
    segments = LazyModule("ostinato.backends.cuda.render.segments")
    streamed_rows = LazyModule("ostinato.backends.cuda.render.streamed_rows")

__all__ = ["Segment", "form_segments"]

#: Arguments of a kernel, at most: all GPUs take 4096 bytes of them.
_MOST_ARGUMENTS = 500

#: Bytes of dynamic shared memory of a part, at most: every GPU has room for a block of them.
_SHARED_BYTES = 48 << 10

#: Rows of a product, and points of a loop nest, up to which a kernel is small.
_ROWS, _POINTS = 16, 1 << 20


class Segment(SegmentKernel):
    """Several kernels as one, whose blocks all are resident."""

    def launch(self, target: CudaTarget) -> Launch:
        return segments.launch(self, target)

    def source(self, target: CudaTarget) -> str:
        return segments.source(self, target)


def form_segments(calls: Sequence[Call], *, stream: bool = True) -> list[Call]:
    """The calls, with runs of small kernels as segments.

    Args:
        calls: in order.
        stream: whether weights may be fetched ahead.
    """
    found: list[Call] = []
    run: list[Call] = []
    buffers: set[LoweredBuffer] = set()
    for call in calls:
        fits = _is_small(call)
        together = buffers | {*call.buffers}
        if run and not (fits and len(together) <= _MOST_ARGUMENTS):
            found += _segment(run, stream)
            run, together = [], {*call.buffers}
        if fits:
            run.append(call)
            buffers = together
        else:
            found.append(call)
            buffers = set()
    return found + _segment(run, stream)


def _is_small(call: Call) -> bool:
    """Whether a call may be part of a segment."""
    kernel = call.kernel
    if isinstance(kernel, CudaLoopNest):
        inner = max((_size(stage.axes) for stage in kernel.stages), default=1)
        small = _size(kernel.outer_axes) * inner <= _POINTS
    elif isinstance(kernel, Matmul):
        small = max_extent(kernel.m) <= _ROWS
    elif isinstance(kernel, AttentionKernel):
        small = max_extent(kernel.spec.m) <= _ROWS
    elif isinstance(kernel, PartsKernel):
        small = max_extent(kernel.m) <= _ROWS
    else:
        return False
    if not small or len(call.buffers) > _MOST_ARGUMENTS:
        return False
    launch = kernel.launch(_TYPICAL)
    modest = launch.shared_bytes <= _SHARED_BYTES
    return launch.block == SEGMENT_BLOCK and modest and not launch.cooperative


def _size(axes: Sequence[Symbol]) -> int:
    return math.prod(map(max_extent, axes))


def _segment(calls: Sequence[Call], stream: bool) -> list[Call]:
    """A run of calls as one; a single one stays as it is."""
    if len(calls) < 2:
        return list(calls)
    buffers = list(dict.fromkeys(buffer for call in calls for buffer in call.buffers))
    position = {buffer: i for i, buffer in enumerate(buffers)}
    reads, writes = [False] * len(buffers), [False] * len(buffers)
    for call in calls:
        for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
            reads[position[buffer]] |= arg.reads
            writes[position[buffer]] |= arg.writes
    parts = []
    for call, level in zip(calls, _levels(calls), strict=True):
        assert isinstance(call.kernel, CudaKernel)
        arguments = tuple(position[buffer] for buffer in call.buffers)
        streams = stream and _streams(call.kernel, [writes[number] for number in arguments])
        parts.append(Part(call.kernel, arguments, level, streams))
    args = tuple(
        Arg(buffer.type.dtype, *access)
        for buffer, *access in zip(buffers, reads, writes, strict=True)
    )
    ordered = tuple(sorted(parts, key=lambda part: part.level))
    kernel = Segment(args, ordered, calls[0].kernel.variables)
    labels = tuple(dict.fromkeys(label for call in calls for label in call.nodes))
    flops: Dim = 0
    for call in calls:
        flops = flops + call.flops
    return [Call(kernel, tuple(buffers), labels, f"segment of {len(calls)} kernels", flops)]


def _streams(kernel: CudaKernel, written: Sequence[bool]) -> bool:
    """Whether the weights of a kernel can be fetched before it is its turn.

    Args:
        kernel: a part of a segment.
        written: by argument, whether some part writes it.
    """
    if not isinstance(kernel, FewRowsMatmul):
        return False
    found = streamed_rows.stream_of(kernel)
    return found is not None and not written[found.argument]


def _levels(calls: Sequence[Call]) -> list[int]:
    """By call, the number of barriers before it: it is behind every one that it conflicts with."""
    readers: dict[LoweredBuffer, int] = {}
    writers: dict[LoweredBuffer, int] = {}
    levels = []
    for call in calls:
        level = 0
        for buffer in call.reads():
            level = max(level, writers.get(buffer, -1) + 1)
        for buffer in call.writes():
            level = max(level, writers.get(buffer, -1) + 1, readers.get(buffer, -1) + 1)
        for buffer in call.reads():
            readers[buffer] = max(level, readers.get(buffer, -1))
        for buffer in call.writes():
            writers[buffer] = level
        levels.append(level)
    return levels


#: Whether a kernel fills blocks of a segment is the same on every GPU.
_TYPICAL = CudaTarget("sm_90", 132, 227 << 10, early_starts=False, block=SEGMENT_BLOCK)

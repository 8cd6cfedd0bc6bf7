"""Depthwise convolution: each filter over one channel, a sum over its window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import (
    KernelBuilder,
    Outputs,
    cast,
    in_memory_order,
    store_at,
    symbols_of,
)
from ostinato.lower.loopir.merge_axes import merge_axes
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Apply, Reduce, Ref, Scalar, Stage, Statement
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.cpu.caches import CacheSizes
    from ostinato.backends.cpu.rules.tiles import RegisterFile
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

__all__ = ["lower_depthwise"]

_ENOUGH_COLUMNS = 4
"""Sums at a time that hide the latency of a multiply-add; twice as many load less for each.

With 16 registers four are best (56 columns by 3x3 on Zen 3: 118 µs with four, 128 with seven, 139
with two), and seven better than fewer than four (14 columns: 41 µs, 62 with two).
"""


_WAY_BYTES = 4096
"""Bytes of a way of a first-level cache that is indexed by addresses within a page: lines as far
apart share a set."""

_FEW_SETS = 8
"""Sets that are too few for the weights of a window. (5x5 on Zen 3, spread among more: 256 and 512
filters take 0.73 and 0.68 of the time, 128 filters 0.86; 64 filters, in 16 sets, and 3x3 alike.)"""


def _filters_last_buffer(w: Value, caches: CacheSizes) -> LoweredBuffer:
    """Memory for the weights of a depthwise convolution with the filters innermost, as lanes.

    Where all weights of a filter were in few sets of the first-level cache, a line stays empty
    behind the filters of each position.
    """
    filters, *window = w.shape
    held = filters
    if isinstance(filters, int) and filters * w.dtype.itemsize % (_WAY_BYTES // _FEW_SETS) == 0:
        held = filters + caches.line // w.dtype.itemsize
    order, shape = (*range(2, w.ndim), 1, 0), (held, *window)
    layout = Layout(order, shape, (0,) * w.ndim)
    kind = TensorType(w.dtype, shape)
    return LoweredBuffer(kind, Role.TEMP, f"{w.node.label}.packed", layout=layout)


def _depthwise_nest(
    build: KernelBuilder,
    node: Node,
    outputs: Outputs,
    variables: tuple[Symbol, ...],
    columns: int,
) -> LoopNest:
    """The nest of a convolution with one input channel per filter.

    Its padding is a ``pad`` node before it by now (:mod:`ostinato.passes.explicit_padding`).

    Args:
        columns: neighbours along the last axis that are computed together, so that a register
            holds what their windows share; they divide that axis.
    """
    w, *bias = node.inputs[1:]
    (out,) = node.outputs
    acc = out.dtype.accumulator
    *lead, width = out.shape
    groups = build.axes((*lead, width // columns if columns > 1 else width))
    window = build.axes([bounds(extent)[1] for extent in w.shape[2:]])
    sums: list[Statement] = []
    stores: list[Statement] = []
    for column in range(columns):
        indices = (*groups[:-1], groups[-1] * columns + column)
        name = f"r{column}"
        term = _term(build, node, indices, window)
        sums.append(Reduce(name, "sum", term, acc, fused=acc.is_float))
        total: Scalar = Ref(name, acc)
        if bias:
            total = Apply("add", (total, cast(build.at(bias[0], (indices[1],)), acc)), acc)
        build.forget()
        build.results[out] = cast(total, out.dtype)
        stores += [store_at(build, value, buffer, out.shape, indices) for value, buffer in outputs]
    statements = build.finish([*sums, *stores])
    axes, statements = merge_axes(in_memory_order(groups, outputs[0][1]), statements)
    inner, summed = merge_axes(symbols_of(window), statements[: len(sums)])
    return LoopNest(
        build.args,
        axes[:-1],
        (Stage(inner, summed), Stage((), statements[len(sums) :])),
        tuple(build.temps),
        inner_axis=axes[-1] if axes else None,
        block=BLOCK,
        variables=variables,
    )


def _term(build: KernelBuilder, node: Node, indices: Indices, window: Indices) -> Scalar:
    """The product that one position of the window adds to the result at ``indices``."""
    x, w = node.inputs[:2]
    attrs, (out,) = node.attrs, node.outputs
    acc = out.dtype.accumulator
    image, filter_, *place = indices
    at = [
        position * stride + tap * dilation
        for position, stride, tap, dilation in zip(
            place, attrs["stride"], window, attrs["dilation"], strict=True
        )
    ]
    per_channel = w.shape[0] // attrs["groups"]
    element = build.at(x, (image, filter_ // per_channel, *at))
    weight = build.at(w, (filter_, 0, *window))
    return Apply("multiply", (cast(element, acc), cast(weight, acc)), acc)


def _columns_together(node: Node, registers: RegisterFile) -> int:
    """The number of neighbours along the last axis that are worth computing together.

    Of 32 registers, their sums and what one row of their windows reads fill some. Of 16, the sums
    do, and operands come from memory.
    """
    width, taps = node.outputs[0].shape[-1], node.inputs[1].shape[-1]
    stride, dilation = node.attrs["stride"][-1], node.attrs["dilation"][-1]
    if not isinstance(width, int) or not isinstance(taps, int):
        return 1
    if taps == 1 or dilation != 1 or stride >= taps:
        return 1
    if registers.count < 32:
        fitting, best = registers.count - taps - 2, _ENOUGH_COLUMNS
    else:
        fitting, best = (registers.count - taps - 1 + stride) // (1 + stride), 2 * _ENOUGH_COLUMNS
    counts = [count for count in range(1, max(fitting, 1) + 1) if width % count == 0]
    enough = [count for count in counts if count >= _ENOUGH_COLUMNS]
    return min(enough, key=lambda count: abs(count - best), default=counts[-1])


def lower_depthwise(
    lowering: ProgramBuilder, region: Region, root: Node, registers: RegisterFile
) -> None:
    """Lower a region around a depthwise convolution."""
    build, w, columns = lowering.builder(region), root.inputs[1], 1
    if root.outputs[0] in lowering.placement.layouts.channels_last:
        packed = _filters_last_buffer(w, registers.caches)
        lowering.copy_into(w, packed)
        build = lowering.builder(region, {w: packed})
        columns = _columns_together(root, registers)
    outputs = lowering.region_outputs(region)
    nest = _depthwise_nest(build, root, outputs, lowering.variables, columns)
    lowering.call(region, build, nest, outputs)

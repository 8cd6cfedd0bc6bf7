"""Depthwise convolution: each filter over one channel, a sum over its window."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING

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
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.variables import Symbol

__all__ = ["lower_depthwise"]

_MOST_WRITTEN_OUT = 25
"""Positions of a window up to which there is no loop over it."""


def _filters_last_buffer(w: Value) -> LoweredBuffer:
    """Memory for the weights of a depthwise convolution with the filters innermost, as lanes."""
    order = (*range(2, w.ndim), 1, 0)
    layout = Layout(order, w.shape, (0,) * w.ndim)
    return LoweredBuffer(w.type, Role.TEMP, f"{w.node.label}.packed", layout=layout)


def _depthwise_nest(
    build: KernelBuilder, node: Node, outputs: Outputs, variables: tuple[Symbol, ...]
) -> LoopNest:
    """The nest of a convolution with one input channel per filter.

    Its padding is a ``pad`` node before it by now (:mod:`ostinato.passes.explicit_padding`).
    """
    w, *bias = node.inputs[1:]
    (out,) = node.outputs
    acc = out.dtype.accumulator
    indices = build.axes(out.shape)
    kernel = [bounds(extent)[1] for extent in w.shape[2:]]
    sums: list[Statement] = []
    taps: tuple[Symbol, ...] = ()
    total: Scalar
    if math.prod(kernel) <= _MOST_WRITTEN_OUT:
        total = _written_out(build, node, indices)
    else:
        window = build.axes(kernel)
        taps = symbols_of(window)
        sums.append(Reduce("r0", "sum", _term(build, node, indices, window), acc))
        total = Ref("r0", acc)
    if bias:
        total = Apply("add", (total, cast(build.at(bias[0], (indices[1],)), acc)), acc)
    build.results[out] = cast(total, out.dtype)
    stores = [store_at(build, value, buffer, out.shape, indices) for value, buffer in outputs]
    statements = build.finish([*sums, *stores])
    axes, statements = merge_axes(in_memory_order(indices, outputs[0][1]), statements)
    inner, summed = merge_axes(taps, statements[: len(sums)])
    stages = [Stage(inner, summed)] if sums else []
    return LoopNest(
        build.args,
        axes[:-1],
        (*stages, Stage((), statements[len(sums) :])),
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


def _written_out(build: KernelBuilder, node: Node, indices: Indices) -> Scalar:
    """The sum over the window, a term for each of its positions."""
    acc = node.outputs[0].dtype.accumulator
    windows = product(*(range(bounds(extent)[1]) for extent in node.inputs[1].shape[2:]))
    terms = (_term(build, node, indices, window) for window in windows)
    return reduce(lambda total, term: Apply("add", (total, term), acc), terms)


def lower_depthwise(lowering: ProgramBuilder, region: Region, root: Node) -> None:
    """Lower a region around a depthwise convolution."""
    build, w = lowering.builder(region), root.inputs[1]
    if root.outputs[0] in lowering.placement.layouts.channels_last:
        packed = _filters_last_buffer(w)
        lowering.copy_into(w, packed)
        build = lowering.builder(region, {w: packed})
    outputs = lowering.region_outputs(region)
    nest = _depthwise_nest(build, root, outputs, lowering.variables)
    lowering.call(region, build, nest, outputs)

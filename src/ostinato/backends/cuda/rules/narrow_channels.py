"""Images of a few channels, such as colours, with zeros for further ones.

Tensor cores take chunks of neighbouring elements. With its channels last and as many as a chunk
has, an image is read by chunks; the weights of the channels that it does not have are zeros, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Guard, Number, Stage, Store
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.variables import prod

if TYPE_CHECKING:
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["CHANNELS", "is_narrow", "with_more_channels"]

CHANNELS = 8
"""Elements of a chunk."""


def is_narrow(node: Node) -> bool:
    """Whether a convolution of a few channels gains by more of them."""
    x, w = node.inputs[:2]
    few = isinstance(x.shape[1], int) and 1 < x.shape[1] < CHANNELS
    dense = node.attrs["groups"] == 1 and prod(w.shape[2:]) != 1 and w.type.size != 0
    return few and dense and x.dtype == w.dtype and x.dtype in (FLOAT16, BFLOAT16)


def with_more_channels(lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
    """A copy of an image, or of a convolution's weight, with zeros for further channels."""
    shape = (value.shape[0], CHANNELS, *value.shape[2:])
    order = (0, *range(2, value.ndim), 1)
    layout = Layout(order, shape, (0,) * value.ndim)
    label = f"{value.node.label}.channels"
    type_ = TensorType(value.dtype, shape)
    buffer = LoweredBuffer(type_, Role.TEMP, label, None, None, layout)
    build = lowering.helper_builder()
    indices = tuple(build.axis(size) for size in shape)
    channels = value.shape[1]
    found, zero = build.at(value, indices), Number(0, value.dtype)
    element = Guard((channels - 1 - indices[1],), found, zero, value.dtype)
    store = Store(build.argument(buffer, writes=True), layout.offset(indices), element)
    axes = symbols_of(tuple(indices[axis] for axis in order))
    nest = LoopNest(
        build.args, axes, (Stage((), (store,)),), block=BLOCK, variables=lowering.variables
    )
    lowering.helper_call(value.node, "channels", build, nest)
    return buffer

"""Images of a few channels, such as colours, as images of the channels that a chunk has.

Tensor cores take chunks of neighbouring elements. With its channels last and as many as a chunk
has, an image is read by chunks; the weights of the channels that it does not have are zeros, too.
Where a filter moves by two columns, a chunk is the channels of two columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.builder import symbols_of
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import Guard, Number, Stage, Store
from ostinato.lower.loopir.views import unravel
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.lower.rules.loops import BLOCK
from ostinato.lower.rules.matmul_spec import conv_spec
from ostinato.records import dataclass, replace
from ostinato.variables import ceil_div, floor_div, prod, remainder

if TYPE_CHECKING:
    from ostinato.ir.graph import Node, Value
    from ostinato.lower.loopir.views import Indices
    from ostinato.lower.program_builder import ProgramBuilder
    from ostinato.lower.rules.matmul_spec import MatmulSpec
    from ostinato.variables import Dim

__all__ = ["NarrowConvolution", "is_narrow"]

#: Elements of a chunk.
_CHUNK = 8


def is_narrow(node: Node) -> bool:
    """Whether a convolution of a few channels gains by more of them."""
    x, w = node.inputs[:2]
    few = isinstance(x.shape[1], int) and 1 < x.shape[1] < _CHUNK
    dense = node.attrs["groups"] == 1 and prod(w.shape[2:]) != 1 and w.type.size != 0
    several = w.shape[0] != 1  # one filter makes sums, which read no chunks
    return few and dense and several and x.dtype == w.dtype and x.dtype in (FLOAT16, BFLOAT16)


@dataclass(frozen=True)
class NarrowConvolution:
    """A convolution of a few channels.

    Attributes:
        node: the convolution.
    """

    node: Node

    @property
    def columns(self) -> int:
        """Neighbouring columns that a chunk has."""
        attrs, (x, w) = self.node.attrs, self.node.inputs[:2]
        apart = attrs["stride"][-1] == 2 and attrs["dilation"][-1] == 1 and w.shape[-1] != 1
        channels = x.shape[1]
        assert isinstance(channels, int)
        return 2 if apart and 2 * channels <= _CHUNK else 1

    def spec(self, image: LoweredBuffer) -> MatmulSpec:
        """The convolution of an image of chunks."""
        spec = conv_spec(self.node, image.layout)
        *kernel, last = spec.k[:-1]
        k = (*kernel, ceil_div(last, self.columns), _CHUNK)
        if self.columns == 1:
            return replace(spec, k=k)
        attrs, spatial = self.node.attrs, self.node.outputs[0].shape[2:]

        def a_at(at: Indices, row: Dim, k: Indices) -> Indices:
            *places, column = unravel(spatial, row)
            *taps, pair = k[:-1]
            steps = zip(places, attrs["stride"], taps, attrs["dilation"], strict=False)
            inner = (place * stride + tap * gap for place, stride, tap, gap in steps)
            return (at[0], k[-1], *inner, column + pair)

        return replace(spec, k=k, a_at=a_at)

    def chunks(self, lowering: ProgramBuilder, value: Value) -> LoweredBuffer:
        """A copy of the image, or of the weight, in chunks, with zeros for what it does not have.

        Zeros around an image are not read where they are stored, but made here.
        """
        count, each = self.columns, _CHUNK // self.columns
        shape = (value.shape[0], _CHUNK, *value.shape[2:-1], ceil_div(value.shape[-1], count))
        order = (0, *range(2, value.ndim), 1)
        layout = Layout(order, shape, (0,) * value.ndim)
        label = f"{value.node.label}.channels"
        type_ = TensorType(value.dtype, shape)
        buffer = LoweredBuffer(type_, Role.TEMP, label, None, None, layout)
        build = lowering.helper_builder()
        indices = tuple(build.axis(size) for size in shape)
        channel, column = remainder(indices[1], each), indices[-1]
        if count > 1:
            column = column * count + floor_div(indices[1], each)
        at: Indices = (indices[0], channel, *indices[2:-1], column)
        conditions = [value.shape[1] - 1 - channel]
        if count > 1:
            conditions.append(value.shape[-1] - 1 - column)
        source = value
        if value.node.op.name == "pad" and value.node.attrs["value"] == 0:
            (source,) = value.node.inputs
            at = tuple(i - before for i, before in zip(at, value.node.attrs["before"], strict=True))
            for i, size, whole in zip(at, source.shape, value.shape, strict=True):
                conditions += [] if size == whole else [i, size - 1 - i]
        found, zero = build.at(source, at), Number(0, value.dtype)
        element = Guard(tuple(conditions), found, zero, value.dtype)
        store = Store(build.argument(buffer, writes=True), layout.offset(indices), element)
        axes = symbols_of(tuple(indices[axis] for axis in order))
        nest = LoopNest(
            build.args, axes, (Stage((), (store,)),), block=BLOCK, variables=lowering.variables
        )
        lowering.helper_call(value.node, "channels", build, nest)
        return buffer

"""Memory layouts: the order in which images are stored.

The vocabulary's images are ``[N, C, *spatial]``. In memory, channels last suits convolutions: what
one output position needs of a pixel is one run of memory, and output channels, which are computed
side by side, are stored side by side. Lowering alone knows of layouts: kernels are the same
expressions over other indices.

Values that one elementwise node, window or concatenation relates should agree, so that no kernel
walks memory in long strides. They form *families*; convolutions, which take and give either order
equally well, lie between families. A family's values are channels last where that saves more time,
by a rough count of the elements concerned, than its other readers and writers lose. How much it
saves is for the device to say (:class:`LayoutGains`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ostinato.ir.leaves import Leaf
from ostinato.lazy import LazyModule
from ostinato.lower.fusion.regions import reduced_axes
from ostinato.lower.loopir.views import MAX_NON_AFFINE, VIEWS, Indices, is_non_affine, source_index
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.ops.base import Elementwise
from ostinato.records import dataclass
from ostinato.variables import axis, bounds, coefficient, prod, symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.ops import convolution
    from ostinato.variables import Dim
else:
    convolution = LazyModule("ostinato.ops.convolution")

_WINDOWS = frozenset({"max_pool", "avg_pool"})
_REDUCTIONS = frozenset({"sum", "max", "min"})

__all__ = ["LayoutGains", "Layouts", "channels_last_buffer", "choose_layouts"]


@dataclass(frozen=True)
class LayoutGains:
    """The time that channels last saves a device, per element; below zero, that it costs.

    Attributes:
        convolution: for each element that a convolution reads, and for each that it writes.
        window: for each element that a pooling reads.
        strided: for each element that is read or written in an order of its own.
        shuffled: for each element of a view that only exchanges channels.
        fewest_channels: images with fewer are never stored channels last.
    """

    convolution: Callable[[Node], tuple[float, float]]
    window: float
    strided: float
    shuffled: float
    fewest_channels: int


@dataclass(frozen=True)
class Layouts:
    """The layouts of one graph's values.

    Attributes:
        channels_last: the values that are stored with their channels innermost.
    """

    channels_last: Container[Value] = frozenset()

    def buffer(self, value: Value) -> LoweredBuffer:
        """Memory within a run for ``value``."""
        if value in self.channels_last:
            return channels_last_buffer(value)
        return LoweredBuffer(value.type, Role.TEMP, value.node.label, value)


def channels_last_buffer(value: Value) -> LoweredBuffer:
    """Memory within a run for ``value``, ``[N, C, *spatial]``, its channels innermost."""
    layout = Layout((0, *range(2, value.ndim), 1), value.shape, (0,) * value.ndim)
    return LoweredBuffer(value.type, Role.TEMP, value.node.label, layout=layout)


def choose_layouts(
    nodes: Sequence[Node], regions: Sequence[Region], kept: Iterable[Value], gains: LayoutGains
) -> Layouts:
    """The layouts that take the least time, by a rough count.

    Args:
        nodes: all that is computed, in order.
        regions: the nodes that run together.
        kept: values that are wanted in C order besides: results of the graph.
        gains: what a layout saves the device.
    """
    families = _Families(gains.fewest_channels)
    rowed = _members_of_rows(regions)
    for node in nodes:
        _relate(families, node, rowed, gains)
    for value in kept:
        families.gain(value, 2 * gains.strided)
    return Layouts(families.gaining())


class _Families:
    """Values in disjoint sets, each with what channels last would gain."""

    def __init__(self, fewest_channels: int) -> None:
        self._fewest_channels = fewest_channels
        self._parent: dict[Value, Value] = {}
        self._gains: defaultdict[Value, float] = defaultdict(float)
        self._excluded: set[Value] = set()

    def _find(self, value: Value) -> Value:
        root = value
        while (parent := self._parent.setdefault(root, root)) is not root:
            root = parent
        while value is not root:
            self._parent[value], value = root, self._parent[value]
        return root

    def relate(self, values: Collection[Value]) -> None:
        """``values`` are of one family; those that could not be channels last are left out."""
        able = [v for v in values if self.is_able(v)]
        for value in able[1:]:
            first, other = self._find(able[0]), self._find(value)
            if first is not other:
                self._parent[other] = first

    def gain(self, value: Value, rate: float) -> None:
        if self.is_able(value):
            self._find(value)
            self._gains[value] += rate * bounds(value.type.size)[1]

    def exclude(self, value: Value) -> None:
        if self.is_able(value):
            self._find(value)
            self._excluded.add(value)

    def is_able(self, value: Value) -> bool:
        """Whether a value is an image with enough channels."""
        channels = value.shape[1] if 3 <= value.ndim <= 5 else 0
        enough = isinstance(channels, int) and channels >= self._fewest_channels
        return enough and prod(value.shape[2:]) != 1

    def gaining(self) -> set[Value]:
        """The values of families that gain."""
        totals: defaultdict[Value, float] = defaultdict(float)
        for value, gain in self._gains.items():
            totals[self._find(value)] += gain
        excluded = {self._find(value) for value in self._excluded}
        chosen = {root for root, gain in totals.items() if gain > 0} - excluded
        return {value for value in self._parent if self._find(value) in chosen}


def _members_of_rows(regions: Iterable[Region]) -> set[Node]:
    """The nodes whose kernels walk along rows with an element per position."""
    return {
        node
        for region in regions
        if region.inner is not None
        for node in region.members
        if node not in region.row_members
    }


def _relate(families: _Families, node: Node, rowed: set[Node], gains: LayoutGains) -> None:
    """Note what ``node`` asks of the order of its operands and its result."""
    name = node.op.name
    if name in VIEWS:
        return
    for value in node.inputs:
        if value.node.op.name in VIEWS:
            _relate_view(families, value, gains)
    out = node.outputs[0]
    if isinstance(node.op, Leaf):
        families.gain(out, gains.strided)
    elif name in ("conv", "integer_conv"):
        _relate_convolution(families, node, gains)
    elif name in _WINDOWS:
        families.relate([node.inputs[0], out])
        families.gain(node.inputs[0], gains.window)
    elif node in rowed:
        for value in (*node.inputs, *node.outputs):
            families.exclude(value)
    elif isinstance(node.op, Elementwise):
        families.relate([*(v for v in node.inputs if v.shape == out.shape), out])
    elif name == "pad" or (name == "concat" and node.attrs["axis"] == 1):
        families.relate([*node.inputs, out])
    elif name in _REDUCTIONS:
        if 1 in reduced_axes(node):  # sums over positions alone run as fast in either order
            families.gain(node.inputs[0], gains.strided)
    else:
        for value in node.inputs:
            families.gain(value, gains.strided)
        for value in node.outputs:
            families.exclude(value)


def _relate_convolution(families: _Families, node: Node, gains: LayoutGains) -> None:
    x, (out,) = node.inputs[0], node.outputs
    if convolution.is_depthwise(node):
        families.relate([x, out])
    read, write = gains.convolution(node)
    families.gain(x, read)
    families.gain(out, write)


def _relate_view(families: _Families, value: Value, gains: LayoutGains) -> None:
    """A view that moves whole pixels, or exchanges channels, moves less with channels last."""
    source, non_affine = value, 0
    while source.node.op.name in VIEWS:
        non_affine += is_non_affine(source.node)
        (source,) = source.node.inputs
    able = families.is_able(value) and families.is_able(source) and source.ndim == value.ndim
    step = _channel_step(value) if able and non_affine <= MAX_NON_AFFINE else None
    if step == 1:
        families.relate([source, value])
    elif step is not None and source.shape == value.shape:
        families.relate([source, value])
        families.gain(source, gains.shuffled)
    else:
        families.gain(source, gains.strided)
        families.gain(value, gains.strided)


def _channel_step(value: Value) -> Dim | None:
    """Channels of the value behind views from one channel of ``value`` to the next.

    It is 0 where they are exchanged, and ``None`` where the views mix channels and positions.
    """
    at: Indices = tuple(axis(f"i{i}", extent) for i, extent in enumerate(value.shape))
    found = at
    while value.node.op.name in VIEWS:
        value, found = source_index(value.node, found)
    image, channel, *place = ({*symbols(index)} for index in found)
    own = {*symbols(at[1])}
    if not channel <= own or any(own & others for others in (image, *place)):
        return None
    parts = coefficient(found[1], *own) if own else None
    return 0 if parts is None else parts[0]

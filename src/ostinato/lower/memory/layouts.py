"""How images are stored, and how convolutions over them are done.

The vocabulary's images are ``[N, C, *spatial]``. In memory, channels last suits convolutions: what
one output position needs of a pixel is one run of memory, output channels are vector lanes and are
stored as they are computed, and windows slide over whole vectors. What is stored so is known to
lowering alone: kernels are the same expressions over other indices.

Values that one elementwise node, window or concatenation relates should agree, so that no kernel
walks memory across its grain. They form *families*; convolutions, which take and give either order
equally well, lie between families. A family's values are channels last where that saves more time,
by a rough count of the elements concerned, than its other readers and writers lose.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ostinato.ir.leaves import Leaf
from ostinato.lazy import LazyModule
from ostinato.lower.loopir.views import MAX_TANGLES, VIEWS, Indices, is_tangled, source_index
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.ops.base import Elementwise
from ostinato.records import dataclass, field
from ostinato.variables import axis, bounds, prod

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower import winograd
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.lowering import LoweringOptions
    from ostinato.lower.winograd import Winograd
    from ostinato.ops import convolution
else:
    winograd = LazyModule("ostinato.lower.winograd")
    convolution = LazyModule("ostinato.ops.convolution")

__all__ = ["Images", "channels_last_buffer", "choose_images"]

#: Fewer channels than this do not fill vectors.
_FEWEST_CHANNELS = 16

_WINDOWS = frozenset({"max_pool", "avg_pool"})
_REDUCTIONS = frozenset({"sum", "max", "min"})

#: Nanoseconds per element, about, that channels last saves (or, below zero, costs).
_CONV_READ, _CONV_WRITE, _WINOGRAD, _WINDOW, _DEPTHWISE = 0.05, 0.2, 2.0, 0.3, 0.3
_STRIDED, _SHUFFLED = -1.0, -0.1


@dataclass(frozen=True)
class Images:
    """What was chosen for one graph.

    Attributes:
        channels_last: the values that are stored with their channels innermost.
        winograd: the convolutions that are done Winograd's way.
    """

    channels_last: Container[Value] = frozenset()
    winograd: Mapping[Node, Winograd] = field(default_factory=dict)

    def buffer(self, value: Value) -> LoweredBuffer:
        """Memory within a run for ``value``."""
        if value in self.channels_last:
            return channels_last_buffer(value)
        return LoweredBuffer(value.type, Role.TEMP, value.node.label, value)


def channels_last_buffer(value: Value) -> LoweredBuffer:
    """Memory within a run for ``value``, ``[N, C, *spatial]``, its channels innermost."""
    layout = Layout((0, *range(2, value.ndim), 1), value.shape, (0,) * value.ndim)
    return LoweredBuffer(value.type, Role.TEMP, value.node.label, layout=layout)


def choose_images(
    nodes: Sequence[Node],
    regions: Sequence[Region],
    kept: Iterable[Value],
    options: LoweringOptions,
) -> Images:
    """The choice that takes the least time, by a rough count.

    Args:
        nodes: all that is computed, in order.
        regions: what runs together.
        kept: values that are wanted in C order besides: results of the graph.
        options: say what there is to choose.
    """
    special: dict[Node, Winograd] = {}
    if options.winograd:
        tiles = {n: winograd.winograd_tile(n) for n in nodes if n.op.name == "conv"}
        special = {node: winograd.Winograd(node, tile) for node, tile in tiles.items() if tile}
    if not options.channels_last:
        return Images(winograd=special)
    families = _Families()
    rowed = _members_of_rows(regions)
    for node in nodes:
        _relate(families, node, rowed, special)
    for value in kept:
        families.gain(value, 2 * _STRIDED)
    return Images(families.gaining(), special)


class _Families:
    """Values in disjoint sets, each with what channels last would gain."""

    def __init__(self) -> None:
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
        able = [v for v in values if _is_able(v)]
        for value in able[1:]:
            first, other = self._find(able[0]), self._find(value)
            if first is not other:
                self._parent[other] = first

    def gain(self, value: Value, rate: float) -> None:
        if _is_able(value):
            self._find(value)
            self._gains[value] += rate * bounds(value.type.size)[1]

    def exclude(self, value: Value) -> None:
        if _is_able(value):
            self._find(value)
            self._excluded.add(value)

    def gaining(self) -> set[Value]:
        totals: defaultdict[Value, float] = defaultdict(float)
        for value, gain in self._gains.items():
            totals[self._find(value)] += gain
        excluded = {self._find(value) for value in self._excluded}
        chosen = {root for root, gain in totals.items() if gain > 0} - excluded
        return {value for value in self._parent if self._find(value) in chosen}


def _is_able(value: Value) -> bool:
    channels = value.shape[1] if 3 <= value.ndim <= 5 else 0
    spatial = prod(value.shape[2:])
    return isinstance(channels, int) and channels >= _FEWEST_CHANNELS and spatial != 1


def _members_of_rows(regions: Iterable[Region]) -> set[Node]:
    """The nodes whose kernels walk along rows with an element per position."""
    return {
        node
        for region in regions
        if region.inner is not None
        for node in region.members
        if node not in region.row_members
    }


def _relate(families: _Families, node: Node, rowed: set[Node], winograd: Container[Node]) -> None:
    """What ``node`` says of the order of its operands and its result."""
    name = node.op.name
    if name in VIEWS:
        return
    for value in node.inputs:
        if value.node.op.name in VIEWS:
            _relate_view(families, value)
    out = node.outputs[0]
    if isinstance(node.op, Leaf):
        families.gain(out, _STRIDED)
    elif name == "conv":
        _relate_convolution(families, node, node in winograd)
    elif name in _WINDOWS:
        families.relate([node.inputs[0], out])
        families.gain(node.inputs[0], _WINDOW)
    elif node in rowed:
        for value in (*node.inputs, *node.outputs):
            families.exclude(value)
    elif isinstance(node.op, Elementwise):
        families.relate([*(v for v in node.inputs if v.shape == out.shape), out])
    elif name == "pad" or (name == "concat" and node.attrs["axis"] == 1):
        families.relate([*node.inputs, out])
    elif name in _REDUCTIONS:
        families.gain(node.inputs[0], _STRIDED)
    else:
        for value in node.inputs:
            families.gain(value, _STRIDED)
        for value in node.outputs:
            families.exclude(value)


def _relate_convolution(families: _Families, node: Node, winograd: bool) -> None:
    x, (out,) = node.inputs[0], node.outputs
    if convolution.is_depthwise(node):
        families.relate([x, out])
        families.gain(x, _DEPTHWISE)
    elif winograd:
        families.gain(x, _WINOGRAD)
        families.gain(out, _WINOGRAD)
    else:
        families.gain(x, _CONV_READ)
        families.gain(out, _CONV_WRITE)


def _relate_view(families: _Families, value: Value) -> None:
    """A view that only exchanges channels moves elements less far with channels last."""
    source, tangles = value, 0
    while source.node.op.name in VIEWS:
        tangles += is_tangled(source.node)
        (source,) = source.node.inputs
    alike = _is_able(value) and source.shape == value.shape
    if alike and tangles <= MAX_TANGLES and _exchanges_channels(value):
        families.relate([source, value])
        families.gain(source, _SHUFFLED)
    else:
        families.gain(source, _STRIDED)
        families.gain(value, _STRIDED)


def _exchanges_channels(value: Value) -> bool:
    """Whether the views behind ``value`` leave each element at its image and position."""
    at: Indices = tuple(axis(f"i{i}", extent) for i, extent in enumerate(value.shape))
    found = at
    while value.node.op.name in VIEWS:
        value, found = source_index(value.node, found)
    return (found[0], *found[2:]) == (at[0], *at[2:])

"""Sub-buffer views: operands of a concatenation or padding that are written in place.

A kernel that computes an operand can as well write it where it stands in the result, which then
need not be put together. The memory that values share so is that of the outermost, their *home*.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import computed_behind
from ostinato.lower.program import Layout, LoweredBuffer, Role
from ostinato.records import dataclass, field
from ostinato.variables import bounds, data_symbols

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region
    from ostinato.lower.memory.layouts import Layouts
    from ostinato.variables import Dim

__all__ = ["Subviews", "find_subviews"]

_SHORTEST_RUN = 16
"""Consecutive elements of a part at least: shorter ones are written faster on their own."""


@dataclass(frozen=True)
class _Subview:
    """The place of a value within another.

    Attributes:
        home: the outermost value that it is part of.
        starts: where in the home it begins, by axis.
        node: what it is an operand of.
        position: which one.
    """

    home: Value
    starts: tuple[Dim, ...]
    node: Node
    position: int


@dataclass(frozen=True, eq=False)
class Subviews:
    """The memory of values within a run, alone or as part of others."""

    layouts: Layouts
    _views: Mapping[Value, _Subview] = field(default_factory=dict)
    _homes: dict[Value, LoweredBuffer] = field(default_factory=dict)

    def buffer(self, value: Value) -> LoweredBuffer:
        """The buffer that ``value`` is to be written to."""
        view = self._views.get(value)
        if view is None:
            return self._homes.get(value) or self.layouts.buffer(value)
        home = self._homes.get(view.home)
        if home is None:
            home = self._homes[view.home] = self.layouts.buffer(view.home)
        order = range(value.ndim) if home.layout is None else home.layout.order
        layout = Layout(tuple(order), view.home.shape, view.starts)
        label = value.node.label
        return LoweredBuffer(value.type, Role.TEMP, label, layout=layout, home=home)

    def is_subview(self, node: Node, position: int) -> bool:
        """Whether an operand is, by the time that ``node`` runs, where ``node`` would put it."""
        if position >= len(node.inputs):
            return False
        view = self._views.get(node.inputs[position])
        return view is not None and (view.node, view.position) == (node, position)


def find_subviews(
    nodes: Sequence[Node],
    regions: Sequence[Region],
    free: Container[Value],
    inlined: Container[Node],
    layouts: Layouts,
) -> Subviews:
    """The operands that are written in place.

    No kernel both reads and writes a home: so its loops need not mind the order of the two.

    Args:
        nodes: all that is computed, in order.
        regions: what runs together.
        free: the values that kernels store in memory of their own choice.
        inlined: the nodes that other regions' kernels compute.
    """
    finder = _Finder(regions, free, inlined, layouts)
    for node in reversed(nodes):
        if node.op.name == "concat" or (node.op.name == "pad" and finder.is_alone(node)):
            finder.place(node)
    return Subviews(layouts, finder.views)


class _Finder:
    def __init__(
        self,
        regions: Sequence[Region],
        free: Container[Value],
        inlined: Container[Node],
        layouts: Layouts,
    ) -> None:
        self.views: dict[Value, _Subview] = {}
        self._free, self._inlined, self._layouts = free, inlined, layouts
        self._region = {node: region for region in regions for node in region.members}
        self._read: dict[int, set[Value]] = {}
        self._readers: defaultdict[Value, list[Region]] = defaultdict(list)
        for region in regions:
            if region.members[0] not in inlined:
                found = self._read[id(region)] = set(self._values_read(region))
                for value in found:
                    self._readers[value].append(region)

    def is_alone(self, node: Node) -> bool:
        return self._region[node].members == [node] and node not in self._inlined

    def place(self, node: Node) -> None:
        """Makes parts of the operands of ``node`` that can be."""
        (whole,) = node.outputs
        if whole not in self._free:
            return
        outer = self.views.get(whole)
        home = whole if outer is None else outer.home
        starts = (0,) * whole.ndim if outer is None else outer.starts
        for position, (operand, at) in enumerate(_places(node)):
            if self._may_move(operand, home, node) and _knows_sizes(operand, home, at):
                begin = tuple(a + b for a, b in zip(starts, at, strict=True))
                self.views[operand] = _Subview(home, begin, node, position)

    def _may_move(self, value: Value, home: Value, node: Node) -> bool:
        if value not in self._free or value in self.views or value.node in self._inlined:
            return False
        region, channels_last = self._region[value.node], self._layouts.channels_last
        if region.root is not None and not region.root.op.writes_subviews:
            return False
        if (value in channels_last) != (home in channels_last):
            return False
        if _run(value, node, channels_last=value in channels_last) < _SHORTEST_RUN:
            return False
        readers = [r for r in self._readers[value] if r is not self._region[node]]
        return not self._reads(region, home) and not any(self._writes(r, home) for r in readers)

    def _reads(self, region: Region, home: Value) -> bool:
        return any(self._home(value) is home for value in self._read[id(region)])

    def _writes(self, region: Region, home: Value) -> bool:
        return any(self._home(v) is home for node in region.members for v in node.outputs)

    def _home(self, value: Value) -> Value:
        return self.views[value].home if value in self.views else value

    def _values_read(self, region: Region) -> Iterator[Value]:
        """The values in memory that a region's kernel reads, what it computes itself aside."""
        waiting = list(region.members)
        while waiting:
            for value in computed_behind(waiting.pop().inputs):
                if value.node in self._inlined:
                    waiting.append(value.node)
                elif self._region[value.node] is not region:
                    yield value


def _knows_sizes(value: Value, home: Value, at: Sequence[Dim]) -> bool:
    """Whether the data-dependent sizes of a place within ``home`` are bound before ``value``."""
    own = {symbol for dim in value.shape for symbol in data_symbols(dim)}
    return all(data_symbols(dim) <= own for dim in (*home.shape, *at))


def _places(node: Node) -> Iterator[tuple[Value, tuple[Dim, ...]]]:
    """The operands of a concatenation or padding, and where in the result they begin."""
    if node.op.name == "pad":
        yield node.inputs[0], node.attrs["before"]
        return
    axis = node.attrs["axis"]
    at: list[Dim] = [0] * node.outputs[0].ndim
    for operand in node.inputs:
        yield operand, tuple(at)
        at[axis] = at[axis] + operand.shape[axis]


def _run(value: Value, node: Node, *, channels_last: bool) -> int:
    """The number of elements of ``value`` that are consecutive where ``node`` puts it."""
    (whole,) = node.outputs
    order = [*range(value.ndim)]
    if channels_last:
        order.append(order.pop(1))
    run: Dim = 1
    for axis in reversed(order):
        run = run * value.shape[axis]
        if value.shape[axis] != whole.shape[axis]:
            break
    return bounds(run)[1]

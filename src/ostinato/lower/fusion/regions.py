"""Fusion: grouping the nodes of a graph into regions, one kernel each.

Two nodes may share a kernel when the element that one reads of the other is the one that the
kernel computes at that very point. There are two such relations, both blind to reshapes because
they compare positions in C order:

- *same*: the reader's element at position ``p`` needs the operand's element at ``p``;
- *row*: it needs the element at ``p // inner`` (a row's statistic, broadcast along the row).

A region therefore has ``rows`` rows of ``inner`` elements. Its members are *full* (an element per
position) or *row* (an element per row); reductions along rows lead from full to row. At most one
member is a *root*: a matmul, a window or a column reduction, whose result the other members take
before it is stored. Only of matmuls of the same rows there may be several
(:mod:`ostinato.lower.fusion.siblings`): a gate and an up projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.lower.fusion.reads import (
    are_fixed,
    computed_behind,
    in_order,
    is_transparent,
    nodes_behind,
)
from ostinato.lower.fusion.row_factors import epilogue_factors
from ostinato.lower.fusion.siblings import share_epilogue
from ostinato.lower.loopir.builder import is_pointwise
from ostinato.lower.loopir.views import VIEWS
from ostinato.ops.base import Elementwise
from ostinato.records import dataclass, field
from ostinato.variables import Dim, bounds, prod

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from ostinato.ir.graph import Node, Value

__all__ = [
    "FusionOptions",
    "Refusal",
    "Region",
    "form_regions",
    "is_row_reduction",
    "values_between",
]


@dataclass(frozen=True)
class FusionOptions:
    """The fusions that are on, and their limits.

    Attributes:
        elementwise: join elementwise nodes with each other and inline them into readers.
        epilogue: join elementwise nodes with the matmul or convolution that they follow.
        rowwise: join reductions along rows with what surrounds them.
        products: compute matmuls of the same rows with several weights in one kernel.
        row_factors: leave a row's statistic times params to the epilogue that reads it.
        max_members: nodes in one region, to bound a kernel's compile time.
        max_operands: buffers that one region reads.
        max_row: elements of a row, when there are too few rows to run in parallel.
    """

    elementwise: bool = True
    epilogue: bool = True
    rowwise: bool = True
    products: bool = True
    row_factors: bool = False
    max_members: int = 64
    max_operands: int = 24
    max_row: int = 1 << 15


@dataclass(eq=False)
class Region:
    """Nodes that one kernel computes.

    Attributes:
        members: in topological order.
        size: elements of a full member.
        inner: elements of a row, where the region has rows.
        row_members: the members with one element per row.
        roots: see the module's docstring.
        closed: whether it joins no producer.
        fixed: whether it depends on params and constants alone, so that it need run only once.
    """

    members: list[Node]
    size: Dim
    inner: Dim | None = None
    row_members: set[Node] = field(default_factory=set)
    roots: tuple[Node, ...] = ()
    closed: bool = False
    fixed: bool = False

    @property
    def root(self) -> Node | None:
        """The root, or the first of several."""
        return self.roots[0] if self.roots else None

    @property
    def reductions(self) -> list[Node]:
        return [n for n in self.members if n not in self.roots and n.op.reduces]


class _Edge(NamedTuple):
    """A read of the value that a computed node produces."""

    producer: Node
    row: Dim | None  # the inner size of a row edge; None for a same edge


class Refusal(NamedTuple):
    """A fusion that was not made: the labels of two nodes, and why they stay apart."""

    producer: str
    reader: str
    why: str


def is_row_reduction(node: Node) -> bool:
    """Whether ``node`` reduces exactly the trailing axes of its operand."""
    if not node.op.reduces:
        return False
    (x,) = node.inputs
    axes = reduced_axes(node)
    return bool(axes) and axes == tuple(range(x.ndim - len(axes), x.ndim))


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The axes that a reduction runs over, sorted."""
    axis = node.attrs["axis"]
    return tuple(axis) if isinstance(axis, tuple) else (axis,)


def form_regions(
    nodes: Sequence[Node],
    options: FusionOptions,
    takes_epilogue: Callable[[Region, Node], bool] | None = None,
    on_host: Callable[[Node], bool] | None = None,
    epilogues: Collection[Node] = (),
) -> tuple[list[Region], list[Refusal]]:
    """Regions in an order in which they can run, and the fusions that were refused.

    Views, leaves and index ops belong to no region: readers look through them.

    Args:
        nodes: all that is computed, in order.
        options: the fusions that are on.
        takes_epilogue: whether the device's kernel of a region with a root takes a reader as well;
            by default, that is for the root's op to say.
        on_host, epilogues: see :class:`~ostinato.lower.rules.table.RuleTable`.
    """
    factors = epilogue_factors(nodes) if options.row_factors and options.epilogue else set()
    stored = _stored_producers(nodes)
    former = _Former(options, stored, factors, takes_epilogue, on_host, epilogues)
    for node in nodes:
        if not is_transparent(node):
            former.add(node)
    return former.ordered(), former.refused


def values_between(
    regions: Iterable[Region], nodes: Iterable[Node], results: Iterable[Value]
) -> set[Value]:
    """The computed values that are read outside their region, results included."""
    region_of = {node: region for region in regions for node in region.members}
    found = set(computed_behind(results))
    for node in nodes:
        if not is_transparent(node):
            found.update(
                value
                for value in computed_behind(node.inputs)
                if region_of[value.node] is not region_of[node]
            )
    return found


class _Former:
    def __init__(
        self,
        options: FusionOptions,
        stored: set[Node],
        factors: set[Node],
        takes_epilogue: Callable[[Region, Node], bool] | None,
        on_host: Callable[[Node], bool] | None,
        epilogues: Collection[Node],
    ) -> None:
        self.options = options
        self._stored = stored
        self._factors = factors
        self._takes_epilogue = takes_epilogue
        self._on_host = on_host
        self._epilogues = epilogues
        self.refused: list[Refusal] = []
        self._position: dict[Node, int] = {}
        self._readers: dict[Node, list[Node]] = {}
        self._fixed: set[Node] = set()
        self._region: dict[Node, Region] = {}
        self._order: list[Node] = []

    def add(self, node: Node) -> None:
        """Give ``node`` a region: one of its producers', or several merged, or its own."""
        self._position[node] = len(self._order)
        self._order.append(node)
        for producer in self._producers(node):
            self._readers.setdefault(producer, []).append(node)
        if are_fixed(node.inputs, self._fixed):
            self._fixed.add(node)
        region = self._alone(node)
        self._region[node] = region
        if region.closed:
            return
        for operand in _fusable_operands(node):
            edge = _edge(node, operand)
            if edge is not None:
                self._join(self._region[edge.producer], edge, node)

    def ordered(self) -> list[Region]:
        """Regions, each after those that it reads."""
        regions = dict.fromkeys(self._region[n] for n in self._order)
        return in_order(regions, self._regions_read)

    # -- one node --------------------------------------------------------------------------

    def _alone(self, node: Node) -> Region:
        options, out = self.options, node.outputs[0]
        fixed = node in self._fixed
        if is_row_reduction(node):
            (x,) = node.inputs
            inner = prod(x.shape[i] for i in reduced_axes(node))
            closed = not options.rowwise
            return Region([node], prod(x.shape), inner, {node}, closed=closed, fixed=fixed)
        region = Region([node], prod(out.shape), fixed=fixed)
        if not is_pointwise(node):
            region.roots = (node,)
            region.closed = True  # it joins no producer; readers may join it
        return region

    def _producers(self, node: Node) -> list[Node]:
        """The computed nodes that ``node`` needs, through views and for its sizes."""
        return nodes_behind(node)

    def _regions_read(self, region: Region) -> list[Region]:
        read = (self._region[p] for n in region.members for p in self._producers(n))
        return list(dict.fromkeys(r for r in read if r is not region))

    # -- joining ---------------------------------------------------------------------------

    def _join(self, left: Region, edge: _Edge, node: Node) -> None:
        right = self._region[node]
        if left is right:
            return
        refusal = self._refusal(left, right, edge, node)
        if refusal:
            if refusal != "off":
                self.refused.append(Refusal(edge.producer.label, node.label, refusal))
            return
        merged = _merged(left, right, edge, node)
        assert merged is not None
        merged.members.sort(key=self._position.__getitem__)
        merged.roots = tuple(sorted(merged.roots, key=self._position.__getitem__))
        for member in merged.members:
            self._region[member] = merged

    def _refusal(self, left: Region, right: Region, edge: _Edge, node: Node) -> str:
        """The reason why two regions stay apart; empty when they may merge."""
        options = self.options
        if left.root is not None and not self._is_epilogue(left.root, node):
            return "off"
        if left.roots and not self._epilogue_after(left, node):
            return "a library multiplies, without this epilogue"
        if left.roots and right.roots and not self._share_epilogue(left.roots + right.roots):
            return "both need a kernel of their own"
        if self._widens_stored(edge.producer, node):
            return "its operand is in memory anyway, in fewer bytes"
        if left.root is not None and not options.epilogue:
            return "off"
        if edge.row is not None and node in self._factors:
            return "the epilogue that reads it computes it"
        rowwise = edge.row is not None or left.inner is not None or right.inner is not None
        if not (options.rowwise if rowwise else options.elementwise or left.root is not None):
            return "off"
        if self._on_host is not None and self._on_host(edge.producer) != self._on_host(node):
            return "the host computes one of them"
        if len(left.members) + len(right.members) > options.max_members:
            return "the kernel would grow too large"
        merged = _merged(left, right, edge, node)
        if merged is None:
            return "rows of different lengths"
        if merged.inner is not None and not merged.reductions:
            return "rows without a reduction along them"
        if left.fixed != right.fixed:
            return "one depends on params alone, and runs once"
        if merged.root is not None and merged.inner is not None:
            return "a row's statistic after a matmul or convolution"
        if merged.inner is not None and _too_few_rows(merged, options):
            return "too few rows to run in parallel"
        return self._order_refusal(merged)

    def _is_epilogue(self, root: Node, node: Node) -> bool:
        """Whether a reader may be computed where a root's result is stored."""
        return root.op.takes_epilogue or node in self._epilogues

    def _epilogue_after(self, left: Region, node: Node) -> bool:
        """Whether the device's kernel of a region with a root takes a reader."""
        return self._takes_epilogue is None or self._takes_epilogue(left, node)

    def _widens_stored(self, producer: Node, node: Node) -> bool:
        """Whether ``node`` makes integers wider that other kernels read as they are."""
        if node.op.name != "cast" or producer not in self._stored:
            return False
        narrow, wide = producer.outputs[0].dtype, node.outputs[0].dtype
        return narrow.is_integer and narrow.itemsize < wide.itemsize

    def _share_epilogue(self, roots: Sequence[Node]) -> bool:
        """Whether one epilogue may take the sums of all these matmuls."""
        return self.options.products and share_epilogue(roots, self._fixed)

    def _order_refusal(self, merged: Region) -> str:
        members = set(merged.members)
        if any(not members.isdisjoint(self._producers(root)) for root in merged.roots):
            return "it feeds the matmul or convolution"
        if self._runs_between(members):
            return "something outside runs between them"
        return self._foreign_refusal(merged)

    def _runs_between(self, members: set[Node]) -> bool:
        """Whether some other region needs one member and is needed by another.

        What matters is regions, not nodes: all of a region runs at once.
        """
        seen: set[int] = set()
        stack = list(members)
        while stack:
            for reader in self._readers.get(stack.pop(), ()):
                region = self._region[reader]
                if reader in members or id(region) in seen:
                    continue
                seen.add(id(region))
                for node in region.members:
                    if not members.isdisjoint(self._readers.get(node, ())):
                        return True
                stack.extend(region.members)
        return False

    def _foreign_refusal(self, merged: Region) -> str:
        """Members must read each other at the same point only."""
        members = set(merged.members)
        operands: set[Value] = set()
        for node in merged.members:
            for operand in node.inputs:
                base = _through_views(operand)
                if base not in members:
                    operands.add(operand)
                    continue
                edge = _edge(node, operand) if operand in _fusable_operands(node) else None
                if edge is None or not _consistent(merged, edge, node):
                    return "one reads the other at other positions"
        if len(operands) > self.options.max_operands:
            return "too many operands"
        return ""


def _stored_producers(nodes: Iterable[Node]) -> set[Node]:
    """The computed nodes that matmuls, windows and the like read from memory."""
    return {
        value.node
        for node in nodes
        if not is_transparent(node) and not isinstance(node.op, Elementwise)
        for value in computed_behind(node.inputs)
    }


def _fusable_operands(node: Node) -> Sequence[Value]:
    """The operands that a node reads position by position."""
    if isinstance(node.op, Elementwise) or is_row_reduction(node):
        return node.inputs
    return ()


def _through_views(value: Value) -> Node:
    while value.node.op.name in VIEWS:
        value = value.node.inputs[0]
    return value.node


def _edge(node: Node, operand: Value) -> _Edge | None:
    """The edge to the computed node behind ``operand``; ``None`` if it is neither same nor row."""
    target = node.inputs[0].shape if not isinstance(node.op, Elementwise) else node.outputs[0].shape
    row = _broadcast_rows(operand.shape, target)
    if row is None:
        return None
    value = operand
    while value.node.op.name in ("reshape", "broadcast_to"):
        (source,) = value.node.inputs
        if value.node.op.name == "broadcast_to":
            more = _broadcast_rows(source.shape, value.shape)
            if more is None:
                return None
            row = row * more
        value = source
    if is_transparent(value.node) or value.index != 0:
        return None
    return _Edge(value.node, None if row == 1 else row)


def _broadcast_rows(source: Sequence[Dim], target: Sequence[Dim]) -> Dim | None:
    """The number of times an element of ``source`` repeats in a row when broadcast to ``target``.

    1 when the shapes are the same; ``None`` when more than trailing dims are broadcast.
    """
    padded = (1,) * (len(target) - len(source)) + tuple(source)
    split = len(target)
    while split and padded[split - 1] == 1:
        split -= 1
    if tuple(padded[:split]) != tuple(target[:split]):
        return None
    return prod(target[split:])


def _merged(left: Region, right: Region, edge: _Edge, node: Node) -> Region | None:
    """The two regions as one, or ``None`` when their rows do not agree.

    ``node``, of ``right``, reads the edge's producer, of ``left``. A region without rows may lie
    at the full or at the row level of the other.
    """
    producer_row = edge.producer in left.row_members
    node_row = node in right.row_members and not node.op.reduces
    if edge.row is not None:
        return _merged_by_row_edge(left, right, edge.row, producer_row, node_row)
    if left.inner is None and right.inner is None:
        if left.size != right.size:
            return None
        return _union(left, right, left.size, None, set())
    if left.inner is not None and right.inner is not None:
        if (left.size, left.inner) != (right.size, right.inner) or producer_row != node_row:
            return None
        return _union(left, right, left.size, left.inner, left.row_members | right.row_members)
    rowed, flat, at_row = (
        (left, right, producer_row) if left.inner is not None else (right, left, node_row)
    )
    rows = set(rowed.row_members)
    if at_row:
        rows |= set(flat.members)
    return _union(left, right, rowed.size, rowed.inner, rows)


def _merged_by_row_edge(
    left: Region, right: Region, inner: Dim, producer_row: bool, node_row: bool
) -> Region | None:
    if node_row:
        return None
    if left.inner is not None and (not producer_row or left.inner != inner):
        return None
    if right.inner is not None and right.inner != inner:
        return None
    size = right.size
    rows = set(right.row_members)
    if left.inner is not None:
        if left.size != size:
            return None
        rows |= left.row_members
    else:
        if left.size * inner != size:
            return None
        rows |= set(left.members)
    return _union(left, right, size, inner, rows)


def _union(left: Region, right: Region, size: Dim, inner: Dim | None, rows: set[Node]) -> Region:
    roots = left.roots + right.roots
    members = left.members + right.members
    closed = left.closed and right.closed
    return Region(members, size, inner, rows, roots, closed, left.fixed)


def _consistent(region: Region, edge: _Edge, node: Node) -> bool:
    """Whether an edge between members fits the levels that the region gives them."""
    producer_row = edge.producer in region.row_members
    reads_full = node not in region.row_members or node.op.reduces
    if node in region.roots:
        return False
    if edge.row is None:
        return producer_row != reads_full
    return producer_row and reads_full and edge.row == region.inner


def _too_few_rows(region: Region, options: FusionOptions) -> bool:
    assert region.inner is not None
    _, inner = bounds(region.inner)
    _, size = bounds(region.size)
    return inner > options.max_row and size < 64 * inner

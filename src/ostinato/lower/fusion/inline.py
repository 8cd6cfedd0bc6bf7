"""Inlining of regions that are not worth a kernel: their readers compute their elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.lower.fusion.cost import COSTLY, cost
from ostinato.lower.fusion.reads import computed_behind, is_transparent
from ostinato.lower.loopir.builder import is_pointwise
from ostinato.lower.loopir.views import MAX_NON_AFFINE, is_non_affine
from ostinato.ops.base import Elementwise
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ostinato.ir.graph import Node, Value
    from ostinato.lower.fusion.regions import Region

__all__ = ["inline_regions"]


def inline_regions(
    regions: Sequence[Region],
    nodes: Sequence[Node],
    results: Iterable[Value],
    max_members: int,
    on_host: Callable[[Node], bool] | None = None,
) -> set[Node]:
    """The nodes of regions that their readers compute on the spot.

    A region is inlined when it is purely elementwise, gives one value, that value is no result,
    and either a single reader needs each element about once, or computing it is as cheap as
    loading it. What depends on params alone stays out of readers that run every time.

    Args:
        regions: each after those that it reads.
        max_members: nodes that one kernel computes at most.
        on_host: see :class:`~ostinato.lower.rules.table.RuleTable`.
    """
    readers = _readers(nodes)
    kept = {value.node for value in computed_behind(results)}
    region_of = {node: region for region in regions for node in region.members}
    inlined: set[Node] = set()
    carried = {id(region): list(region.members) for region in regions}
    depth = dict.fromkeys(carried, 0)
    for region in regions:
        given = _given(region, readers, kept)
        if given is None or not _is_elementwise(region):
            continue
        uses = [use for use in readers.get(given, []) if use.reader not in region.members]
        if not all(_can_inline(use.reader, use.position) for use in uses):
            continue
        if on_host is not None and any(on_host(use.reader) != on_host(given) for use in uses):
            continue
        members = carried[id(region)]
        targets = {id(region_of[use.reader]): use for use in uses}
        if any(len(carried[t]) + len(members) > max_members for t in targets):
            continue
        deepest = depth[id(region)] + max(use.non_affine for use in uses)
        if deepest > MAX_NON_AFFINE:
            continue
        single = len(uses) == 1 and _reads_once(uses[0], region_of)
        if region.fixed:
            single = single and _is_prepared(uses[0], region_of)
        if single or _is_cheap(members):
            inlined.update(region.members)
            for target in targets:
                carried[target] += members
                depth[target] = max(depth[target], deepest)
    return inlined


class _Use(NamedTuple):
    """A read of a computed node.

    Attributes:
        position: of the operand.
        larger: whether views in between enlarge it.
        non_affine: how many views in between take indices apart.
    """

    reader: Node
    position: int
    larger: bool
    non_affine: int


def _readers(nodes: Sequence[Node]) -> dict[Node, list[_Use]]:
    """By computed node, its readers, through views."""
    found: dict[Node, list[_Use]] = {}
    for reader in nodes:
        if is_transparent(reader):
            continue
        for position, operand in enumerate(reader.inputs):
            stack = [(operand, 0)]
            while stack:
                value, non_affine = stack.pop()
                if not is_transparent(value.node):
                    larger = prod(operand.shape) != prod(value.shape)
                    use = _Use(reader, position, larger, non_affine)
                    found.setdefault(value.node, []).append(use)
                else:
                    non_affine += is_non_affine(value.node)
                    stack.extend((source, non_affine) for source in value.node.inputs)
    return found


def _given(region: Region, readers: dict[Node, list[_Use]], kept: set[Node]) -> Node | None:
    """The one member that something outside reads; ``None`` if there are more, or a result."""
    members = set(region.members)
    if members & kept:
        return None
    given = [n for n in region.members if any(u.reader not in members for u in readers.get(n, []))]
    return given[0] if len(given) == 1 else None


def _is_elementwise(region: Region) -> bool:
    return region.root is None and region.inner is None and all(map(is_pointwise, region.members))


def _can_inline(reader: Node, position: int) -> bool:
    op = reader.op
    return is_pointwise(reader) or op.reads_once or position in op.weight_operands


def _reads_once(use: _Use, region_of: dict[Node, Region]) -> bool:
    reader, position = use.reader, use.position
    if use.larger or region_of[reader].inner is not None:
        return False
    if isinstance(reader.op, Elementwise):
        return prod(reader.inputs[position].shape) == prod(reader.outputs[0].shape)
    return reader.op.name not in ("take", "searchsorted") or position != 0


def _is_prepared(use: _Use, region_of: dict[Node, Region]) -> bool:
    """Whether what a fixed region's reader does with its elements is done once."""
    return region_of[use.reader].fixed or use.position in use.reader.op.weight_operands


def _is_cheap(nodes: Sequence[Node]) -> bool:
    members = set(nodes)
    operands = {v for n in nodes for v in n.inputs if v.node not in members}
    loads = [v for v in operands if v.node.op.name != "constant"]
    return sum(map(cost, nodes)) < COSTLY // 2 and len(loads) <= 1

"""Which regions are not worth a kernel: their one reader computes their elements itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.builder import is_pointwise
from ostinato.lower.cost import COSTLY, cost
from ostinato.lower.regions import Region, computed_behind, is_transparent
from ostinato.ops.base import Elementwise
from ostinato.variables import prod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.ir.graph import Node, Value

__all__ = ["inline_regions"]

#: Readers that evaluate an operand at positions of their own choice, each about once.
_ONCE = frozenset({"concat", "pad", "take", "sum", "prod", "max", "min", "any", "all"})

#: The operand of each contraction that is packed element by element before use.
_PACKED = {"matmul": 1, "conv": 1}


def inline_regions(
    regions: Sequence[Region], nodes: Sequence[Node], results: Iterable[Value]
) -> set[Node]:
    """The nodes of regions that their readers compute on the spot.

    A region is inlined when it is purely elementwise, gives one value, that value is no result,
    and either a single reader needs each element about once, or computing it is as cheap as
    loading it. What depends on params alone stays out of readers that run every time.
    """
    readers = _readers(nodes)
    kept = {value.node for value in computed_behind(results)}
    region_of = {node: region for region in regions for node in region.members}
    inlined: set[Node] = set()
    for region in regions:
        given = _given(region, readers, kept)
        if given is None or not _is_elementwise(region):
            continue
        uses = [use for use in readers.get(given, []) if use[0] not in region.members]
        if not all(_can_inline(reader, position) for reader, position, _ in uses):
            continue
        single = len(uses) == 1 and _reads_once(uses[0], region_of)
        if region.fixed:
            single = single and _is_prepared(uses[0], region_of)
        if single or _is_cheap(region):
            inlined.update(region.members)
    return inlined


def _readers(nodes: Sequence[Node]) -> dict[Node, list[tuple[Node, int, bool]]]:
    """By computed node: ``(reader, operand position, whether views enlarge it)``, through views."""
    found: dict[Node, list[tuple[Node, int, bool]]] = {}
    for reader in nodes:
        if is_transparent(reader):
            continue
        for position, operand in enumerate(reader.inputs):
            stack = [operand]
            while stack:
                value = stack.pop()
                if not is_transparent(value.node):
                    larger = prod(operand.shape) != prod(value.shape)
                    found.setdefault(value.node, []).append((reader, position, larger))
                else:
                    stack.extend(value.node.inputs)
    return found


def _given(
    region: Region, readers: dict[Node, list[tuple[Node, int, bool]]], kept: set[Node]
) -> Node | None:
    """The one member that something outside reads; ``None`` if there are more, or a result."""
    members = set(region.members)
    if members & kept:
        return None
    given = [n for n in region.members if any(r not in members for r, _, _ in readers.get(n, []))]
    return given[0] if len(given) == 1 else None


def _is_elementwise(region: Region) -> bool:
    return region.anchor is None and region.inner is None and all(map(is_pointwise, region.members))


def _can_inline(reader: Node, position: int) -> bool:
    name = reader.op.name
    return is_pointwise(reader) or name in _ONCE or _PACKED.get(name) == position


def _reads_once(use: tuple[Node, int, bool], region_of: dict[Node, Region]) -> bool:
    reader, position, larger = use
    if larger or region_of[reader].inner is not None:
        return False
    if isinstance(reader.op, Elementwise):
        return prod(reader.inputs[position].shape) == prod(reader.outputs[0].shape)
    return reader.op.name != "take" or position != 0


def _is_prepared(use: tuple[Node, int, bool], region_of: dict[Node, Region]) -> bool:
    """Whether what a fixed region's reader does with its elements is done once."""
    reader, position, _ = use
    return region_of[reader].fixed or _PACKED.get(reader.op.name) == position


def _is_cheap(region: Region) -> bool:
    members = set(region.members)
    operands = {v for n in region.members for v in n.inputs if v.node not in members}
    loads = [v for v in operands if v.node.op.name != "constant"]
    return sum(map(cost, region.members)) < COSTLY // 2 and len(loads) <= 1

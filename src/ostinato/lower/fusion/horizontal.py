"""Which products share a kernel: those of the same rows with several weights.

Two ways of sharing: products whose results *meet* at one point, such as a gate and what it lets
through, leave their sums to one epilogue and are one region. Others, such as queries, keys and
values, keep regions of their own that run *beside* each other.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import are_fixed, computed_behind, in_order
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region

__all__ = ["Together", "may_meet", "side_by_side"]

#: Regions that one kernel computes, or that run one after the other as one.
Together = list["Region"]

#: By op, which operands are weights; the others are rows and what belongs to them.
_WEIGHTS = {"matmul": (1,), "integer_matmul": (1,), "blockwise_matmul": (2, 3)}

#: Products of one kernel at most, to bound its compile time; and of one epilogue.
_MOST_BESIDE, _MOST_MEETING = 8, 2

#: Panels are as wide for each as for the widest: so few columns, a small part of that one's, stay
#: by themselves.
_FEW_COLUMNS, _SMALL_PART = 64, 8


def may_meet(products: Sequence[Node], fixed: Collection[Node]) -> bool:
    """Whether one epilogue may take the sums of all the ``products``.

    Args:
        fixed: the nodes that depend on params and constants alone.
    """
    keys = {_key(node, fixed) for node in products}
    types = {node.outputs[0].type for node in products}
    return len(products) <= _MOST_MEETING and len(keys) == len(types) == 1 and None not in keys


def side_by_side(regions: Sequence[Region]) -> list[Together]:
    """The regions in an order in which they can run, those together that share a kernel.

    Args:
        regions: each after those that it reads.
    """
    return _Sides(regions).ordered()


def _key(node: Node, fixed: Collection[Node]) -> object:
    """What products that share a kernel have in common; ``None``: this one never does."""
    weights = _WEIGHTS.get(node.op.name)
    if weights is None or not are_fixed((node.inputs[i] for i in weights), fixed):
        return None
    matrix = node.inputs[weights[0]]
    if matrix.ndim < 2 or matrix.shape[-1] == 1 or any(dim != 1 for dim in matrix.shape[:-2]):
        return None
    rows = tuple(value for i, value in enumerate(node.inputs) if i not in weights)
    return (node.op.name, rows, node.outputs[0].dtype)


def _are_alike(products: Sequence[Node]) -> bool:
    """Whether products are few enough, and wide enough each, to share a kernel."""
    widths = [bounds(node.outputs[0].shape[-1])[1] for node in products]
    narrow = min(widths) < _FEW_COLUMNS and min(widths) * _SMALL_PART < max(widths)
    return len(products) <= _MOST_BESIDE and not narrow


class _Sides:
    def __init__(self, regions: Sequence[Region]) -> None:
        self._position = {region: position for position, region in enumerate(regions)}
        self._region_of = {node: region for region in regions for node in region.members}
        fixed = {node for region in regions if region.fixed for node in region.members}
        self._together: dict[Region, Together] = {}
        open_ones: defaultdict[object, list[Together]] = defaultdict(list)
        for region in regions:
            keys = {_key(anchor, fixed) for anchor in region.anchors}
            key = keys.pop() if len(keys) == 1 and not region.fixed else None
            found = None if key is None else self._that_takes(region, open_ones[key])
            if found is None:
                found = []
                if key is not None:
                    open_ones[key].append(found)
            found.append(region)
            self._together[region] = found

    def ordered(self) -> list[Together]:
        groups = {id(group): group for group in self._together.values()}
        return in_order(groups.values(), self._read)

    def _that_takes(self, region: Region, choices: Sequence[Together]) -> Together | None:
        """The first that ``region`` may join: one that it does not depend on.

        None of them depends on ``region``: all were made of regions before it.
        """
        for group in choices:
            products = [anchor for member in (*group, region) for anchor in member.anchors]
            if _are_alike(products) and not self._depends(region, group):
                return group
        return None

    def _depends(self, region: Region, group: Together) -> bool:
        """Whether ``region`` needs what ``group`` computes, be it through others."""
        stack, seen = [*self._read([region])], set[int]()
        while stack:
            current = stack.pop()
            if current is group:
                return True
            # What ends before the group begins needs nothing of it.
            ended = self._position[current[-1]] < self._position[group[0]]
            if not ended and id(current) not in seen:
                seen.add(id(current))
                stack.extend(self._read(current))
        return False

    def _read(self, group: Together) -> Iterator[Together]:
        """What ``group`` reads."""
        for region in group:
            for node in region.members:
                for value in computed_behind(node.inputs):
                    other = self._region_of[value.node]
                    if other is not region:
                        yield self._together[other]

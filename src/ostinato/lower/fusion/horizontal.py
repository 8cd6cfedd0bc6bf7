"""Horizontal fusion: regions around matmuls of the same rows that share a kernel.

The matmuls of one region share its epilogue (:mod:`ostinato.lower.fusion.siblings`); regions of
their own, such as those of queries, keys and values, have each its own segment of the output.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from ostinato.lower.fusion.reads import in_order, nodes_behind
from ostinato.lower.fusion.siblings import sibling_key
from ostinato.variables import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ostinato.ir.graph import Node
    from ostinato.lower.fusion.regions import Region

__all__ = ["fused_horizontally"]

#: Regions that share a kernel.
_Group: TypeAlias = list["Region"]

#: Matmuls of one kernel at most, to bound its compile time.
_MOST_MATMULS = 8

#: Tiles are as wide for each matmul as for the widest: so few columns, a small part of that one's,
#: stay by themselves.
_FEW_COLUMNS, _SMALL_PART = 64, 8


def fused_horizontally(
    regions: Sequence[Region], able: Callable[[Node], bool] | None = None
) -> list[_Group]:
    """The regions in an order in which they can run, those together that share a kernel.

    Args:
        regions: each after those that it reads.
        able: whether a root may share a kernel; by default, all matmuls may.
    """
    return _Grouper(regions, able).ordered()


def _are_alike(matmuls: Sequence[Node]) -> bool:
    """Whether matmuls are few enough, and wide enough each, to share a kernel."""
    widths = [bounds(node.outputs[0].shape[-1])[1] for node in matmuls]
    narrow = min(widths) < _FEW_COLUMNS and min(widths) * _SMALL_PART < max(widths)
    return len(matmuls) <= _MOST_MATMULS and not narrow


class _Grouper:
    def __init__(self, regions: Sequence[Region], able: Callable[[Node], bool] | None) -> None:
        self._position = {region: position for position, region in enumerate(regions)}
        self._region_of = {node: region for region in regions for node in region.members}
        fixed = {node for region in regions if region.fixed for node in region.members}
        self._group_of: dict[Region, _Group] = {}
        open_ones: defaultdict[object, list[_Group]] = defaultdict(list)
        for region in regions:
            keys = {sibling_key(root, fixed) for root in region.roots}
            alike = len(keys) == 1 and not region.fixed
            alike = alike and (able is None or all(map(able, region.roots)))
            key = keys.pop() if alike else None
            found = None if key is None else self._group_for(region, open_ones[key])
            if found is None:
                found = []
                if key is not None:
                    open_ones[key].append(found)
            found.append(region)
            self._group_of[region] = found

    def ordered(self) -> list[_Group]:
        groups = {id(group): group for group in self._group_of.values()}
        return in_order(groups.values(), self._read)

    def _group_for(self, region: Region, choices: Sequence[_Group]) -> _Group | None:
        """The first that ``region`` may join: one that it does not depend on.

        None of them depends on ``region``: all were made of regions before it.
        """
        for group in choices:
            matmuls = [root for member in (*group, region) for root in member.roots]
            if _are_alike(matmuls) and not self._depends(region, group):
                return group
        return None

    def _depends(self, region: Region, group: _Group) -> bool:
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

    def _read(self, group: _Group) -> Iterator[_Group]:
        """The groups that ``group`` reads."""
        for region in group:
            for node in region.members:
                for needed in nodes_behind(node):
                    other = self._region_of[needed]
                    if other is not region:
                        yield self._group_of[other]

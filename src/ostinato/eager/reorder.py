"""Reorder nodes so that independent ones are adjacent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.plan.hazards import HazardTracker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.eager.compute_node import ComputeNode

__all__ = ["reordered"]


def reordered(nodes: Sequence[ComputeNode]) -> tuple[ComputeNode, ...]:
    """The nodes by the length of the longest chain of conflicts before them.

    Nodes of one length are independent, and keep their order. No order that preserves conflicts has
    fewer barriers: along the longest chain, every node waits for the one before.
    """
    tracker = HazardTracker()
    lengths: list[int] = []
    for position, node in enumerate(nodes):
        found = tracker.add(position, node)
        lengths.append(1 + max((lengths[other] for other in found), default=-1))
    order = sorted(range(len(nodes)), key=lengths.__getitem__)
    return tuple(nodes[position] for position in order)

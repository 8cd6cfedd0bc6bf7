"""Row statistics combined with params for a matmul's epilogue alone.

The scale of a quantised row times the scales of a matmul's columns is a row of its own. Where it
happens to be as long as the row that the scale is a statistic of, it could join that kernel; but
only the matmul's epilogue reads it, and there each block needs no more than its own columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import is_transparent, nodes_behind
from ostinato.lower.loopir.builder import is_pointwise
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.graph import Node

__all__ = ["epilogue_factors"]

#: Elementwise nodes between a matmul and the node that reads a factor, at most.
_DEPTH = 8


def epilogue_factors(nodes: Sequence[Node]) -> set[Node]:
    """The elementwise nodes whose every reader takes the result of a matmul or the like, too."""
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        if not is_transparent(node):
            for producer in nodes_behind(node):
                readers.setdefault(producer, []).append(node)
    return {
        node
        for node in readers
        if isinstance(node.op, Elementwise)
        and all(_takes_root(reader, node) for reader in readers[node])
    }


def _takes_root(reader: Node, factor: Node) -> bool:
    """Whether an elementwise node follows a root, but not through ``factor``."""
    if not isinstance(reader.op, Elementwise):
        return False
    found: Mapping[Node, None] = {reader: None}
    for _ in range(_DEPTH):
        behind = [p for node in found for p in nodes_behind(node) if p is not factor]
        if any(not is_pointwise(p) and not p.op.reduces and p.op.takes_epilogue for p in behind):
            return True
        found = dict.fromkeys(p for p in behind if isinstance(p.op, Elementwise))
    return False

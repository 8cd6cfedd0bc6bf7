"""Small matmuls whose activations the device's own kernels compute as well.

A library multiplies faster, but takes no activation: that is a kernel of its own, which costs more
than a small product gains by the library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.cuda.rules.library import adds_bias, suits
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["Activated", "find_activated"]

#: The operations up to which one kernel is faster than a library's and another one.
_MOST_OPERATIONS = 700_000_000


class Activated(NamedTuple):
    """Matmuls that a library could compute, and that have an activation.

    Attributes:
        small: those that any of the device's kernels computes sooner.
        large: those for a kernel with the library's speed.
    """

    small: frozenset[Node] = frozenset()
    large: frozenset[Node] = frozenset()


def find_activated(graph: BaseGraph, nodes: Sequence[Node]) -> Activated:
    """The matmuls of 16-bit floats that a library could compute, and that have an activation.

    Args:
        graph: theirs.
        nodes: all that are computed.
    """
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node)
    results = set(graph.results())
    alone = {value: found[0] for value, found in readers.items() if len(found) == 1}
    alone = {value: reader for value, reader in alone.items() if value not in results}
    found = [
        node
        for node in nodes
        if suits(node) and _is_short(node) and _is_activated(node, alone, readers)
    ]
    small = frozenset(node for node in found if _operations(node) <= _MOST_OPERATIONS)
    return Activated(small, frozenset(found) - small)


def _is_short(node: Node) -> bool:
    """Whether a matmul is of 16-bit floats."""
    return node.outputs[0].dtype in (FLOAT16, BFLOAT16)


def _operations(node: Node) -> int:
    """The operations of a matmul of numbers as sizes."""
    (a, _), (out,) = node.inputs, node.outputs
    return 2 * math.prod(size for size in (*out.shape, a.shape[-1]) if isinstance(size, int))


def _is_activated(
    node: Node, alone: Mapping[Value, Node], readers: Mapping[Value, Sequence[Node]]
) -> bool:
    """Whether matmuls read what an activation makes of a matmul, with a bias or without.

    Args:
        node: the matmul.
        alone: the readers of values that have no other one.
        readers: of each value.
    """
    reader = alone.get(node.outputs[0])
    if reader is not None and adds_bias(node, reader):
        reader = alone.get(reader.outputs[0])
    if reader is None or not isinstance(reader.op, Elementwise) or len(reader.inputs) != 1:
        return False
    (out,) = reader.outputs
    behind = readers.get(out, ())
    is_left = all(each.op.weight_operands and out is each.inputs[0] for each in behind)
    return bool(behind) and is_left and out.type == node.outputs[0].type

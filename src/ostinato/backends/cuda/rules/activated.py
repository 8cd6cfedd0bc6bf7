"""Matmuls whose activations the device's own kernels compute as well.

A library takes no activation: that is a kernel of its own, which costs more than a small product
gains by the library, and reads and writes a large one once more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ostinato.backends.cuda.rules.library import adds_bias, suits
from ostinato.backends.cuda.rules.wide import has_tiles
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["Activated", "find_activated"]

#: The operations up to which any kernel of the device is faster than a library's and another one.
_MOST_OPERATIONS = 700_000_000


class Activated(NamedTuple):
    """Matmuls that a library could compute, and that have an activation.

    Attributes:
        small: those that any kernel of the device computes sooner.
        large: those for a kernel with about the library's speed, alone or two with one epilogue.
    """

    small: frozenset[Node] = frozenset()
    large: frozenset[Node] = frozenset()


def find_activated(graph: BaseGraph, nodes: Sequence[Node]) -> Activated:
    """The matmuls of 16-bit floats that a library could compute, and that have an activation.

    Args:
        graph: theirs.
        nodes: all that are computed.
    """
    read = _Readers(graph, nodes)
    products = [node for node in nodes if suits(node) and node.outputs[0].dtype in _DTYPES]
    activated = [node for node in products if read.has_activation(node)]
    small = frozenset(node for node in activated if _operations(node) <= _MOST_OPERATIONS)
    if graph.has_data_sizes:
        return Activated(small)
    large = {node for node in activated if has_tiles(node)}
    gates: dict[Node, list[Node]] = defaultdict(list)
    for node in products:
        gate = read.gate(node)
        if gate is not None and has_tiles(node):
            gates[gate].append(node)
    for pair in gates.values():
        alike = len({(node.inputs[0], node.outputs[0].type) for node in pair}) == 1
        if alike and len(pair) == 2 and _operations(pair[0]) > _MOST_OPERATIONS:
            large.update(pair)
    return Activated(small, frozenset(large) - small)


_DTYPES = (FLOAT16, BFLOAT16)


def _operations(node: Node) -> int:
    """The operations of a matmul of numbers as sizes."""
    (a, _), (out,) = node.inputs, node.outputs
    return 2 * math.prod(size for size in (*out.shape, a.shape[-1]) if isinstance(size, int))


class _Readers:
    """The nodes that read what others compute.

    Args:
        graph: theirs.
        nodes: all that are computed.
    """

    def __init__(self, graph: BaseGraph, nodes: Sequence[Node]) -> None:
        self._results = set(graph.results())
        self._readers: dict[Value, list[Node]] = defaultdict(list)
        for node in nodes:
            for value in dict.fromkeys(node.inputs):
                self._readers[value].append(node)

    def has_activation(self, product: Node) -> bool:
        """Whether other products read what an elementwise node makes of this one and its bias."""
        reader = self._alone(product)
        if reader is not None and adds_bias(product, reader):
            reader = self._alone(reader)
        return reader is not None and len(reader.inputs) == 1 and self._ends(reader, product)

    def gate(self, product: Node) -> Node | None:
        """The elementwise node of two operands that a product and nodes behind it lead to alone."""
        reader = self._alone(product)
        while reader is not None and len(reader.inputs) == 1:
            if not isinstance(reader.op, Elementwise):
                return None
            reader = self._alone(reader)
        if reader is None or len(reader.inputs) != 2 or not self._ends(reader, product):
            return None
        return reader

    def _alone(self, node: Node) -> Node | None:
        """The only reader of a node's result, if that is no result of the graph."""
        (out,) = node.outputs
        readers = self._readers.get(out, ())
        return readers[0] if len(readers) == 1 and out not in self._results else None

    def _ends(self, reader: Node, product: Node) -> bool:
        """Whether products read an elementwise node of a product's type as their left operand."""
        (out,) = reader.outputs
        behind = self._readers.get(out, ())
        as_left = all(node.op.weight_operands and out is node.inputs[0] for node in behind)
        alike = isinstance(reader.op, Elementwise) and out.type == product.outputs[0].type
        return bool(behind) and as_left and alike

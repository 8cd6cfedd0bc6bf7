"""Matmuls whose activations the device's own kernels compute as well.

A library multiplies faster, but takes no activation: that is a kernel of its own, which costs more
than a small product gains by the library. So it does for large products where the device's kernels
are nearly as fast as the library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cuda.rules.library import adds_bias, suits
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.lower.rules.matmul_spec import matmul_spec
from ostinato.ops.base import Elementwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = ["best_activated"]

#: The operations up to which one kernel is faster than a library's and another one.
_MOST_OPERATIONS = 700_000_000

#: Results of a large product, at least: a multiprocessor has a tile of 128 x 128 or more. And the
#: products of a sum, at least.
_LARGE, _DEEP = 92 * 128 * 128, 256

#: Sizes of large products are multiples of this many elements: 16 bytes.
_GRAIN = 8


def best_activated(graph: BaseGraph, nodes: Sequence[Node], *, large: bool) -> frozenset[Node]:
    """The matmuls that a library could compute and that are best computed with their activation.

    Args:
        graph: theirs.
        nodes: all that are computed.
        large: whether large ones are among them.
    """
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node)
    results = set(graph.results())
    alone = {value: found[0] for value, found in readers.items() if len(found) == 1}
    alone = {value: reader for value, reader in alone.items() if value not in results}
    return frozenset(
        node
        for node in nodes
        if suits(node)
        and (
            (_is_small(node) and _is_activated(node, alone, readers))
            or (large and _is_large(node) and _is_read_by_activation(node, alone))
        )
    )


def _is_small(node: Node) -> bool:
    """Whether a matmul of numbers as sizes is of 16-bit floats, and of few operations."""
    (a, _), (out,) = node.inputs, node.outputs
    sizes = [size for size in (*out.shape, a.shape[-1]) if isinstance(size, int)]
    return out.dtype in (FLOAT16, BFLOAT16) and 2 * math.prod(sizes) <= _MOST_OPERATIONS


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


def _is_large(node: Node) -> bool:
    """Whether a matmul of matrices of 16-bit floats has enough tiles for all multiprocessors."""
    a, b = node.inputs
    if a.dtype not in (FLOAT16, BFLOAT16) or b.ndim != 2:
        return False
    spec = matmul_spec(node)
    sizes = [size for size in (spec.m, spec.n, spec.depth) if isinstance(size, int)]
    if spec.batch or len(sizes) < 3:
        return False
    rows, columns, depth = sizes
    enough = rows * columns >= _LARGE and depth >= _DEEP
    return enough and columns % _GRAIN == 0 and depth % _GRAIN == 0


def _is_read_by_activation(node: Node, alone: Mapping[Value, Node]) -> bool:
    """Whether an activation reads a matmul, with a bias or without, or a product with one does.

    Args:
        node: the matmul.
        alone: the readers of values that have no other one.
    """
    value = node.outputs[0]
    reader = alone.get(value)
    if reader is not None and adds_bias(node, reader):
        (value,) = reader.outputs
        reader = alone.get(value)
    if reader is None or not isinstance(reader.op, Elementwise):
        return False
    if reader.op.name == "multiply":  # by what an activation makes of another matmul
        others = [each.node for each in reader.inputs if each is not value]
        return all(isinstance(o.op, Elementwise) and len(o.inputs) == 1 for o in others)
    behind = alone.get(reader.outputs[0])
    if len(reader.inputs) != 1 or reader.op.name == "cast":
        return False
    if behind is None or behind.op.name != "multiply":
        return True
    # A gate: one kernel has both products, if they are of the same rows.
    others = [each.node for each in behind.inputs if each is not reader.outputs[0]]
    return all(suits(o) and o.inputs[0] is node.inputs[0] and _is_large(o) for o in others)

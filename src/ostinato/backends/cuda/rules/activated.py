"""Matmuls whose activations the device's own kernels compute as well.

A library multiplies faster, but takes no activation: that is a kernel of its own, which costs more
than a small product gains by the library. So it does for large products where the device's kernels
are as fast as the library.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.backends.cuda.rules.library import MATMULS, adds_bias, suits
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.lower.fusion.reads import sole_readers
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


def best_activated(
    graph: BaseGraph, nodes: Sequence[Node], *, large: bool = False, pairs: bool = False
) -> frozenset[Node]:
    """The matmuls that a library could compute and that are best computed with their activation.

    Args:
        graph: theirs.
        nodes: all that are computed.
        large: whether large ones are among them.
        pairs: whether a large one and the one that it gates are.
    """
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node)
    alone = sole_readers(graph, nodes)
    return frozenset(
        node
        for node in nodes
        if suits(node)
        and (
            (_is_small(node) and _is_activated(node, alone, readers))
            or (large and _is_large(node) and _is_joined(node, alone, pairs=pairs))
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


def _is_joined(node: Node, alone: Mapping[Value, Node], *, pairs: bool) -> bool:
    """Whether an activation joins a large matmul, or one kernel has that and the one it gates.

    Args:
        node: the matmul.
        alone: the readers of values that have no other one.
        pairs: see :func:`best_activated`.
    """
    value = node.outputs[0]
    reader = alone.get(value)
    if reader is not None and adds_bias(node, reader):
        (value,) = reader.outputs
        reader = alone.get(value)
    if reader is None:
        return False
    if _is_activation(reader):
        (value,) = reader.outputs
        behind = alone.get(value)
        if behind is None or behind.op.name != "multiply":
            return True
        others = [each.node for each in behind.inputs if each is not value]
    elif reader.op.name == "multiply":
        activations = [each.node for each in reader.inputs if each is not value]
        others = [each.inputs[0].node for each in activations if _is_activation(each)]
    else:
        return False
    return pairs and len(others) == 1 and _is_alike(node, _without_bias(others[0]))


def _is_activation(node: Node) -> bool:
    """Whether a node is a function of one float."""
    return isinstance(node.op, Elementwise) and len(node.inputs) == 1 and node.op.name != "cast"


def _without_bias(node: Node) -> Node:
    """The matmul to whose results a node adds a bias; else the node."""
    found = [value.node for value in node.inputs if value.node.op.name in MATMULS]
    return next((matmul for matmul in found if adds_bias(matmul, node)), node)


def _is_alike(node: Node, other: Node) -> bool:
    """Whether another node is a large matmul of the same rows by as many columns."""
    same = suits(other) and other.inputs[0] is node.inputs[0] and _is_large(other)
    return same and other.outputs[0].type == node.outputs[0].type

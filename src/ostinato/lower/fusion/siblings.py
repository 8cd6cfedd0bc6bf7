"""Sibling matmuls: those of the same rows with several weights, such as a gate and an up matrix.

Siblings whose results meet in one elementwise chain may share an epilogue, and a region then has
several roots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.fusion.reads import are_fixed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ostinato.ir.graph import Node

__all__ = ["share_epilogue", "sibling_key"]

#: Matmuls that share one epilogue at most.
_MOST_IN_EPILOGUE = 2


def share_epilogue(matmuls: Sequence[Node], fixed: Collection[Node]) -> bool:
    """Whether one epilogue may take the sums of all the ``matmuls``.

    Args:
        fixed: the nodes that depend on params and constants alone.
    """
    keys = {sibling_key(node, fixed) for node in matmuls}
    types = {node.outputs[0].type for node in matmuls}
    return len(matmuls) <= _MOST_IN_EPILOGUE and len(keys) == len(types) == 1 and None not in keys


def sibling_key(node: Node, fixed: Collection[Node]) -> object:
    """A key that siblings have in common; ``None``: the node never has siblings."""
    weights = node.op.weight_operands
    if not node.op.fuses_horizontally or not are_fixed((node.inputs[i] for i in weights), fixed):
        return None
    matrix = node.inputs[weights[0]]
    if matrix.ndim < 2 or matrix.shape[-1] == 1 or any(dim != 1 for dim in matrix.shape[:-2]):
        return None
    rows = tuple(value for i, value in enumerate(node.inputs) if i not in weights)
    return (node.op.name, rows, node.outputs[0].dtype)

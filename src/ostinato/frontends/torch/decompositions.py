"""Decompositions of ops that have no converter into ops that may have one.

Composite ops are kept as they are wherever they have a converter: a norm or an attention in one
node is worth more than its parts. This module imports PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch.export import ExportedProgram
    from torch.fx import GraphModule

__all__ = ["decomposed", "decompositions_of"]

#: PyTorch's decompositions of these are slower, or rounded otherwise, than what takes their place.
_KEPT = frozenset({"aten::scaled_dot_product_attention"})


def decomposed(exported: ExportedProgram, targets: Collection[str]) -> ExportedProgram | None:
    """The program with some ops decomposed; ``None`` if PyTorch has no decomposition of any.

    Args:
        exported: the program, which stays as it is.
        targets: the names of ops, such as ``"aten.polar.default"``.
    """
    table = decompositions_of(exported.graph_module, targets)
    if not table:
        return None
    try:
        return exported.run_decompositions(table)
    except Exception:  # for some programs PyTorch's decompositions fail, with errors of any kind
        return None


def decompositions_of(
    module: GraphModule, targets: Collection[str]
) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of the ops of a graph that are among ``targets``."""
    found = {}
    for op in _ops(module):
        if str(op) in targets and op.name().partition(".")[0] not in _KEPT:
            decomposition = _decomposition(op)
            if decomposition is not None:
                found[op] = decomposition
    return found


def _ops(module: GraphModule) -> Iterator[Any]:
    """The ATen ops of a graph and of those nested in it; in-place ones without the write, too."""
    for inner in module.modules():
        if not isinstance(inner, torch.fx.GraphModule):
            continue
        for node in inner.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                yield node.target


def _decomposition(op: Any) -> Callable[..., Any] | None:
    """PyTorch's decomposition of an op: that for exports, that of its compiler, or that in C++."""
    found: Callable[..., Any] | None = None
    core = torch._decomp.core_aten_decompositions()
    if op in core:
        found = core[op]
    elif op in torch._decomp.decomposition_table:
        found = torch._decomp.decomposition_table[op]
    elif op._can_decompose():
        found = op.decompose
    return found

"""Decompositions of ops that have no converter into ops that may have one.

Composite ops are kept as they are wherever they have a converter: a norm or an attention in one
node is worth more than its parts. This module imports PyTorch.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

__all__ = ["decomposed", "decomposed_graph", "decompositions_of"]

#: Each decomposition brings the conversions of autocast, and the parts of ``vmap``, into the graph.
_TRACED = ("higher_order.wrap_with_autocast", "torch._functorch.predispatch.")

#: PyTorch's decompositions of these are slower, or rounded otherwise, than what takes their place.
_KEPT = frozenset({"aten::scaled_dot_product_attention"})


def decomposed(exported: ExportedProgram, targets: Collection[str]) -> ExportedProgram | None:
    """The program with some ops decomposed; ``None`` if PyTorch has no decomposition of any.

    Args:
        exported: the program, which stays as it is.
        targets: the names of ops, such as ``"aten.polar.default"``.
    """
    table = decompositions_of(exported.graph_module, targets)
    if not table and not any(target.startswith(_TRACED) for target in targets):
        return None
    try:
        return exported.run_decompositions(table)
    except Exception:  # for some programs PyTorch's decompositions fail, with errors of any kind
        return None


def decomposed_graph(module: GraphModule, targets: Collection[str]) -> GraphModule | None:
    """A traced graph of ATen ops with some of them decomposed; ``None`` where that is not possible.

    Args:
        module: the graph, traced with fake tensors; it stays as it is.
        targets: the names of ops.
    """
    table = decompositions_of(module, targets)
    if not table:
        return None
    given = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    mode = detect_fake_mode(given)
    try:
        with mode if mode is not None else nullcontext(), preserve_node_meta():
            interpreter = torch.fx.Interpreter(module)
            traced: GraphModule = make_fx(
                interpreter.run, decomposition_table=table, _allow_non_fake_inputs=True
            )(*given)
    except Exception:  # for some graphs PyTorch's decompositions fail, with errors of any kind
        return None
    traced.graph.eliminate_dead_code()
    return traced if _gives_the_same(traced, module) else None


def _gives_the_same(traced: GraphModule, module: GraphModule) -> bool:
    """Whether two graphs give results of the same types and strides, and alias inputs alike."""
    pairs = list(zip(_results(traced), _results(module), strict=True))
    return all(_type(a) == _type(b) and _is_input(a) == _is_input(b) for a, b in pairs)


def _results(module: GraphModule) -> Sequence[Any]:
    (output,) = module.graph.find_nodes(op="output")
    results = output.args[0]
    return results if isinstance(results, tuple | list) else (results,)


def _type(result: Any) -> Any:
    value = result.meta.get("val") if isinstance(result, torch.fx.Node) else result
    if not isinstance(value, torch.Tensor):
        return str(value)
    return str((value.dtype, tuple(value.shape), value.stride()))


def _is_input(result: Node | Any) -> bool:
    return isinstance(result, torch.fx.Node) and result.op == "placeholder"


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

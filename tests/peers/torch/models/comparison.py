"""Comparison of a model's results with eager's."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

import ostinato as ost
from ostinato.frontends.torch.dynamo import backend

__all__ = [
    "TOLERANCE",
    "Comparison",
    "compare",
    "compare_compiled",
    "compare_dynamic",
    "tensors_of",
]

#: The greatest error that passes, over the greatest magnitude of an output.
TOLERANCE = 1e-4


class Comparison:
    """The result of one model.

    Attributes:
        error: the greatest difference, over the greatest magnitude of its output.
        details: the number of nodes, and the seconds.
    """

    def __init__(self, error: float, details: str) -> None:
        self.error = error
        self.details = details

    def __str__(self) -> str:
        return f"{self.error:.1e} {self.details}"


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in the outputs of a model."""
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def compare(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Comparison:
    """Convert, compile and run a model, and compare all its outputs with eager's.

    Raises:
        AssertionError: an output has another shape or dtype.
    """
    start = time.perf_counter()
    graph = ost.from_torch(model, args, kwargs)
    converted = time.perf_counter()
    compiled = ost.Session("cpu", threads=1).compile(graph)
    details = _details(graph, converted - start, time.perf_counter() - converted)
    return Comparison(_error(model, args, kwargs, compiled), details)


def compare_dynamic(
    model: torch.nn.Module, examples: list[dict[str, Any]], dynamic_shapes: dict[str, Any]
) -> Comparison:
    """The same with arguments of several shapes: the first are those of the export.

    Raises:
        AssertionError: an output has another shape or dtype, or there were several compiles.
    """
    start = time.perf_counter()
    graph = ost.from_torch(model, (), examples[0], dynamic_shapes=dynamic_shapes)
    converted = time.perf_counter()
    compiled = ost.Session("cpu", threads=1).compile(graph)
    details = _details(graph, converted - start, time.perf_counter() - converted)
    error = max(_error(model, (), kwargs, compiled) for kwargs in examples)
    sizes = [found.sizes for found in compiled.specializations]
    assert sizes == [""], f"compiled for {sizes}"
    return Comparison(error, details)


def compare_compiled(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Comparison:
    """The same through ``torch.compile``, whose graphs may have nodes that PyTorch runs.

    Raises:
        AssertionError: an output has another shape, dtype or strides, or a call failed.
    """
    torch._dynamo.reset()
    start = time.perf_counter()
    fast = torch.compile(model, backend=backend)
    with torch.no_grad():
        wanted = tensors_of(model(*args, **kwargs))
        first = tensors_of(fast(*args, **kwargs))
        seconds = time.perf_counter() - start
        second = tensors_of(fast(*args, **kwargs))
    error = max(_worst(first, wanted), _worst(second, wanted))
    found = ost.torch.report(fast)
    assert not found.failures, found.graphs
    nodes = f"{found.native_nodes} native nodes, {len(found.eager_nodes)} eager nodes"
    return Comparison(error, f"{len(found.graphs)} graphs, {nodes}, {seconds:.1f} s")


def _worst(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The greatest error of some results."""
    assert len(found) == len(wanted), (len(found), len(wanted))
    worst = 0.0
    for result, reference in zip(found, wanted, strict=True):
        kinds = [(t.dtype, t.shape, t.stride()) for t in (result, reference)]
        assert kinds[0] == kinds[1], kinds
        worst = max(worst, _difference(result.detach().numpy(), reference.detach().numpy()))
    return worst


def _details(graph: ost.Graph, converted: float, compiled: float) -> str:
    return f"{len(graph.nodes)} nodes {converted:.1f} + {compiled:.1f} s"


def _error(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    compiled: ost.CompiledGraph,
) -> float:
    """The greatest error of a run."""
    with torch.no_grad():
        expected = tensors_of(model(*args, **kwargs))
    given = tensors_of((args, kwargs))
    assert len(given) == len(compiled.inputs), (len(given), list(compiled.inputs))
    found = compiled.run(dict(zip(compiled.inputs, (t.numpy() for t in given), strict=True)))
    assert len(found) == len(expected), (len(found), len(expected))
    worst = 0.0
    for result, wanted in zip(found, expected, strict=True):
        assert result.shape == tuple(wanted.shape), (result.shape, wanted.shape)
        reference = wanted.detach().numpy()
        assert result.dtype == reference.dtype, (result.dtype, reference.dtype)
        worst = max(worst, _difference(result, reference))
    return worst


def _difference(result: np.ndarray, wanted: np.ndarray) -> float:
    if not wanted.size:
        return 0.0
    if wanted.dtype.kind not in "fc":
        return float(np.max(result != wanted))
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(result)):
        return float("inf")
    if not np.array_equal(result[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    scale = max(float(np.abs(wanted[finite]).max(initial=0)), 1e-30)
    return float(np.abs(result[finite] - wanted[finite]).max(initial=0)) / scale

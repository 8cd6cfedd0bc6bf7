"""Runs of a compiled graph on PyTorch's tensors without Python. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ostinato.frontends.torch._runtime import PreparedCall
from ostinato.frontends.torch.module_weights import EXCHANGE, PLAIN, SlowWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.torch._runtime import Watch
    from ostinato.runtime.compiled_graph import CompiledGraph

__all__ = ["prepared_call"]

#: Kinds of elements as DLPack numbers them.
_INTEGER, _UNSIGNED, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6


def prepared_call(
    compiled: CompiledGraph,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    watch: Watch | SlowWatch | None,
    variables: Mapping[str, int],
) -> PreparedCall | None:
    """A call that takes tensors like ``inputs`` and then ``weights``, these very ones.

    Args:
        compiled: the graph.
        inputs: in the graph's order.
        outputs: dense tensors in C order, as a run gives them.
        weights: the tensors that are packed.
        watch: over the weights.
        variables: the values of Variables that no input's shape gives.

    Returns:
        ``None`` where such runs need Python.
    """
    if not all(map(_is_plain, inputs)) or any(t.dtype.is_complex for t in (*inputs, *outputs)):
        return None
    shapes = [tuple(tensor.shape) for tensor in inputs]
    run = compiled.prepare_run(shapes, variables=variables or None)
    if run is None or EXCHANGE is None or isinstance(watch, SlowWatch):
        return None
    return PreparedCall(
        EXCHANGE,
        PLAIN,
        (*[...] * len(inputs), *weights),
        (),
        tuple(map(_type, inputs)),
        tuple(range(len(inputs))),
        tuple(map(_type, outputs)),
        run.run,
        run.variables,
        watch,
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds its elements, on the host and in C order."""
    return (
        type(tensor) in PLAIN
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _type(tensor: torch.Tensor) -> tuple[tuple[int, int], tuple[int, ...]]:
    """The dtype as DLPack's code and bits, and the shape."""
    dtype = tensor.dtype
    if dtype == torch.bool:
        code = _BOOL
    elif dtype == torch.bfloat16:
        code = _BFLOAT
    elif dtype.is_floating_point:
        code = _FLOAT
    else:
        code = _INTEGER if dtype.is_signed else _UNSIGNED
    return (code, 8 * dtype.itemsize), tuple(tensor.shape)

"""Graphs from PyTorch's modules and exported programs. This module imports PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from ostinato.errors import InputError
from ostinato.frontends.torch.fx import read_exported
from ostinato.frontends.torch.importer import Importer
from ostinato.ir.graph import Value
from ostinato.ops.builder import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["from_torch"]


def from_torch(
    source: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str | None = None,
) -> Graph:
    """Build a graph from a PyTorch module or an exported program.

    Args:
        source: a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``.
        args, kwargs: example arguments of a module.
        dynamic_shapes: as ``torch.export.export`` takes it.
        name: the graph's name.

    Raises:
        UnsupportedOpError: lists every node that has no equivalent, and why.
        InputError: ``source`` is neither.
    """
    if isinstance(source, torch.nn.Module):
        with torch.no_grad():
            exported = torch.export.export(
                source, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
        name = name or type(source).__name__
    elif isinstance(source, ExportedProgram):
        exported = source
    else:
        raise InputError(
            f"from_torch takes a torch.nn.Module or an ExportedProgram, got {type(source).__name__}"
        )
    weights = {
        key: tensor.detach().cpu().contiguous().numpy()
        for key, tensor in {**exported.state_dict, **exported.constants}.items()
        if isinstance(tensor, torch.Tensor)
    }
    program = read_exported(exported, name or "exported program", weights)
    g = Graph(name or "graph")
    results = Importer(program, g, {}).run()
    g.set_outputs([value for value in results if isinstance(value, Value)])
    return g

"""The ops and dtypes that a device refuses, from its capabilities."""

from __future__ import annotations

import zlib

import numpy as np

import ostinato as ost
from ostinato.backends.base import Capabilities
from ostinato.dtypes import ALL_DTYPES, DType
from ostinato.ir.graph import Node
from ostinato.ir.leaves import Leaf
from ostinato.passes.pipeline import run_passes
from tests.conformance.draw import Draw, Recipe
from tests.conformance.recipes import recipes

__all__ = ["refused"]


def refused(capabilities: Capabilities) -> dict[str, list[str]]:
    """By op, the dtypes for which the op is neither native nor decomposed into what is.

    The op's own recipe is put through the passes. Dtypes that a device refuses altogether are left
    out, unless an op has no other.
    """
    narrow = capabilities.excluded or not capabilities.dtypes >= {*ALL_DTYPES}
    found: dict[str, list[str]] = {}
    for op, (recipe, dtypes) in recipes().items():
        taken = [dtype for dtype in dtypes if DType.parse(dtype) in capabilities.dtypes]
        for dtype in taken if narrow else taken[:1]:
            if not _takes(capabilities, op, recipe, dtype):
                found.setdefault(op, []).append(dtype)
        if not taken:
            found[op] = list(dtypes)
    return found


def _takes(capabilities: Capabilities, op: str, recipe: Recipe, dtype: str) -> bool:
    graph = ost.Graph(op)
    draw = Draw(graph, np.random.default_rng(zlib.crc32(f"{op} {dtype}".encode())))
    made = recipe(draw, dtype)
    graph.set_outputs(list(made) if isinstance(made, list | tuple) else [made])
    if all(_native(capabilities, node) for node in graph.nodes):
        return True
    try:
        run_passes(graph, capabilities=capabilities, optimize=False)
    except ost.UnsupportedOpError:
        return False
    return True


def _native(capabilities: Capabilities, node: Node) -> bool:
    """Whether a node needs no pass."""
    name = node.op.name
    return isinstance(node.op, Leaf) or (
        name in capabilities.ops
        and all(
            value.dtype in capabilities.dtypes and (name, value.dtype) not in capabilities.excluded
            for value in (*node.inputs, *node.outputs)
        )
    )

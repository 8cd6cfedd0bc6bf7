"""Static slices: gathers and dynamic slices at positions that are known while compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ostinato.ops.shape import SLICE
from ostinato.passes.base import Pass, PassReport
from ostinato.passes.match import array_of
from ostinato.passes.rewrite import Rewriter, noted
from ostinato.passes.shapes import reshaped
from ostinato.variables import maximum, minimum

if TYPE_CHECKING:
    from ostinato.ir.graph import BaseGraph, Node, Value
    from ostinato.ops.builder import Graph
    from ostinato.variables import Dim

__all__ = ["StaticSlices"]


class StaticSlices(Pass):
    """Turns takes of one or of evenly spaced constant indices, and dynamic slices that start at
    constants, to slices, which move nothing.

    Indices outside the tensor are clamped as the ops themselves clamp them.
    """

    name: ClassVar[str] = "static_slices"

    def run(self, graph: BaseGraph, report: PassReport) -> BaseGraph:
        rules = {"take": _take, "dynamic_slice": _dynamic_slice}
        if not any(node.op.name in rules for node in graph.nodes):
            return graph
        return Rewriter(graph).run({op: noted(self, report, rule) for op, rule in rules.items()})


def _take(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, indices = operands
    axis, array = node.attrs["axis"], array_of(indices)
    size = x.shape[axis]
    if array is None or not isinstance(size, int) or size == 0 or array.size == 0:
        return None
    wanted = array.reshape(-1).astype(np.int64)
    places = np.clip(np.where(wanted < 0, wanted + size, wanted), 0, size - 1)
    first, last = int(places[0]), int(places[-1])
    step = int(places[1]) - first if len(places) > 1 else 1
    if step <= 0 or (np.diff(places) != step).any():
        return None
    starts = tuple(first if i == axis else 0 for i in range(x.ndim))
    stops = tuple(last + 1 if i == axis else dim for i, dim in enumerate(x.shape))
    steps = tuple(step if i == axis else 1 for i in range(x.ndim))
    (part,) = g.apply(SLICE, (x,), {"starts": starts, "stops": stops, "steps": steps})
    return reshaped(g, part, node.outputs[0].shape)


def _dynamic_slice(g: Graph, node: Node, operands: tuple[Value, ...]) -> Value | None:
    x, *given = operands
    sizes = node.attrs["sizes"]
    starts: list[Dim] = []
    for start, dim, size in zip(given, x.shape, sizes, strict=True):
        place = array_of(start)
        if place is None:
            return None
        starts.append(maximum(minimum(int(place.astype(np.int64)), dim - size), 0))
    stops = tuple(start + size for start, size in zip(starts, sizes, strict=True))
    attrs = {"starts": tuple(starts), "stops": stops, "steps": (1,) * x.ndim}
    return g.apply(SLICE, (x,), attrs)[0]

"""Graphs whose nodes are built when the sizes of their inputs are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.errors import GraphError
from ostinato.ir.deferred_graph import deferred
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from ostinato.ir.graph import BaseGraph
    from ostinato.ir.specialization import Specialization

__all__ = ["SPECIALIZE", "Specialize", "at_inputs", "declare_outputs", "specialization_of"]


class Specialize(Op):
    """All nodes of a graph that is built when its sizes are known.

    It reads the inputs and has the outputs for results; their sizes are Variables of their own.
    """

    name = "specialize"
    takes_narrow = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        pairs = zip(attrs["dtypes"], attrs["shapes"], strict=True)
        return tuple(TensorType(dtype, shape) for dtype, shape in pairs)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        raise GraphError(f"the graph is not built yet: {'; '.join(attrs['because'])}")


SPECIALIZE = Specialize()


def declare_outputs(
    graph: BaseGraph, types: Mapping[str, TensorType], because: Sequence[str]
) -> None:
    """Give ``graph``, which has its inputs and params, outputs that :data:`SPECIALIZE` computes."""
    listed = list(types.values())
    attrs: dict[str, Attr] = {
        "dtypes": tuple(type_.dtype for type_ in listed),
        "shapes": tuple(type_.shape for type_ in listed),
        "because": tuple(because),
    }
    with graph.labelled("specialize"):
        results = graph.apply(SPECIALIZE, [*graph.inputs.values()], attrs)
    graph.set_outputs(dict(zip(types, results, strict=True)))


def specialization_of(graph: BaseGraph) -> Specialization[BaseGraph] | None:
    """The specialisation of a graph, if it has one; a deferred graph is not built for that."""
    parts = deferred(graph)
    return graph.specialization if parts is None else parts.specialization


def at_inputs(graph: BaseGraph, arrays: Mapping[str, np.ndarray[Any, Any]]) -> BaseGraph:
    """``graph``, or where it is not built yet, the graph for these inputs.

    Raises:
        OstinatoError: see :meth:`Specialization.build`.
    """
    way = specialization_of(graph)
    if way is None or not way.needed:
        return graph
    contents = {name: arrays[name] for name in way.inputs}
    return way.build({name: array.shape for name, array in arrays.items()}, contents)

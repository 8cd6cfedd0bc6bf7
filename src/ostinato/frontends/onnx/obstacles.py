"""Nodes that could not be converted, and the sizes and inputs that are behind it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.frontends.onnx.known import Known, Missing, OptionalOf, SequenceOf, Strings
from ostinato.ir.leaves import INPUT
from ostinato.ops.builder import NestedGraph
from ostinato.records import dataclass
from ostinato.variables import Expr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ostinato.frontends.onnx.known import Tensor
    from ostinato.ir.graph import Node, Value
    from ostinato.variables import Dim, Requirement

__all__ = ["Obstacle", "dependencies", "inputs_behind"]

#: The most nodes that are followed back from an operand to the sizes that it depends on.
_MOST_FOLLOWED = 256


@dataclass(frozen=True)
class Obstacle:
    """A node that could not be converted.

    Attributes:
        reason: the node, and why.
        variables: the Variables whose sizes are at fault; all that the node depends on, where
            the converter does not say.
        inputs: the inputs whose contents would help.
        hopeless: whether nothing known about sizes or contents helps.
        label: of the node.
        requirements: the conditions on sizes that would make it possible, where they are known.
    """

    reason: str
    variables: frozenset[str]
    inputs: frozenset[str]
    hopeless: bool = False
    label: str = ""
    requirements: tuple[Requirement, ...] = ()


def dependencies(operand: Tensor, *, floats: bool = False) -> Iterator[Dim | str]:
    """The sizes that an operand depends on, and of a vector of integers, the names of inputs.

    Of a known tensor these are the sizes among its elements too.

    Args:
        operand: the operand.
        floats: follow vectors of floats as well.
    """
    if isinstance(operand, Missing):
        return
    if isinstance(operand, SequenceOf):
        for item in operand.items:
            yield from dependencies(item, floats=floats)
        return
    if isinstance(operand, OptionalOf):
        if operand.item is not None:
            yield from dependencies(operand.item, floats=floats)
        return
    yield from operand.shape
    if isinstance(operand, Known):
        if operand.symbolic:
            yield from operand.sizes()
        return
    if isinstance(operand, Strings) or operand.ndim > 1:
        return
    if operand.dtype.is_float and not floats:
        return
    for node in _nodes_behind(operand, _MOST_FOLLOWED):
        if _is_model_input(node):
            yield str(node.attrs["name"])
        for attr in node.attrs.values():
            for part in attr if isinstance(attr, tuple) else (attr,):
                if isinstance(part, Expr):
                    yield part


def inputs_behind(value: Value) -> set[str]:
    """The names of the graph's inputs that ``value`` depends on."""
    return {str(node.attrs["name"]) for node in _nodes_behind(value) if _is_model_input(node)}


def _nodes_behind(value: Value, most: float = math.inf) -> Iterator[Node]:
    """The nodes that ``value`` depends on, its own first, through captures of nested graphs."""
    waiting, seen = [value.node], {value.node}
    while waiting and len(seen) < most:
        node = waiting.pop()
        yield node
        graph, read = node.outputs[0].graph, list(node.inputs)
        if isinstance(graph, NestedGraph):
            read += graph.captured_by(node.outputs[0])
        for operand in read:
            if operand.node not in seen:
                seen.add(operand.node)
                waiting.append(operand.node)


def _is_model_input(node: Node) -> bool:
    return node.op is INPUT and not isinstance(node.outputs[0].graph, NestedGraph)

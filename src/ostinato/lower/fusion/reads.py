"""Reads through views and index ops, and the order of execution that follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ostinato.ir.leaves import Leaf
from ostinato.lower.loopir.builder import INDEX_OPS
from ostinato.lower.loopir.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ostinato.ir.graph import BaseGraph, Node, Value

__all__ = [
    "are_fixed",
    "computed_behind",
    "in_order",
    "is_transparent",
    "nodes_behind",
    "reads_state",
    "sole_readers",
]

T = TypeVar("T")


def is_transparent(node: Node) -> bool:
    """Whether readers look through ``node``: it is a leaf, a view or made of indices alone."""
    return isinstance(node.op, Leaf) or node.op.name in VIEWS or node.op.name in INDEX_OPS


def computed_behind(values: Iterable[Value]) -> list[Value]:
    """The computed values that ``values`` are, or are made of through views and indices."""
    found: list[Value] = []
    stack = list(values)
    while stack:
        value = stack.pop()
        if is_transparent(value.node):
            stack.extend(value.node.inputs)
        else:
            found.append(value)
    return found


def nodes_behind(node: Node) -> list[Node]:
    """The computed nodes that ``node`` needs: through views and indices, and for their sizes."""
    found = [value.node for value in computed_behind(node.inputs)]
    graph, stack = node.outputs[0].graph, [node]
    while stack and graph.has_data_sizes:
        reader = stack.pop()
        found.extend(graph.size_nodes(reader))
        stack.extend(value.node for value in reader.inputs if is_transparent(value.node))
    return found


def are_fixed(values: Iterable[Value], fixed: Collection[Node]) -> bool:
    """Whether ``values`` depend on params and constants alone, so that they are computed once.

    Args:
        fixed: the computed nodes of which that is known.
    """
    stack = list(values)
    while stack:
        value = stack.pop()
        source = value.node
        if any(not isinstance(dim, int) for dim in value.shape):
            return False
        if source in fixed or source.op.name in ("param", "constant"):
            continue
        if not is_transparent(source) or not source.inputs:
            return False
        stack.extend(source.inputs)
    return True


def reads_state(value: Value) -> bool:
    """Whether ``value`` is a state, or is seen through views of one."""
    stack = [value]
    while stack:
        node = stack.pop().node
        if node.op.name == "state":
            return True
        if is_transparent(node):
            stack.extend(node.inputs)
    return False


def sole_readers(graph: BaseGraph, nodes: Iterable[Node]) -> dict[Value, Node]:
    """By value, the node that alone reads it; values that are results of the graph have none.

    Args:
        graph: theirs.
        nodes: all that are computed.
    """
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            readers.setdefault(value, []).append(node)
    for result in graph.results():
        readers.pop(result, None)
    return {value: found[0] for value, found in readers.items() if len(found) == 1}


def in_order(things: Iterable[T], read: Callable[[T], Iterable[T]]) -> list[T]:
    """The things, each after those that it reads, else in the order given; there is no cycle."""
    waiting = {id(thing): thing for thing in things}
    done: list[T] = []
    for first in list(waiting.values()):
        if waiting.pop(id(first), None) is None:
            continue
        stack = [(first, iter(read(first)))]
        while stack:
            current, needed = stack[-1]
            for other in needed:
                if waiting.pop(id(other), None) is not None:
                    stack.append((other, iter(read(other))))
                    break
            else:
                done.append(current)
                stack.pop()
    return done

"""Topological order of a model's nodes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ostinato.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from onnx import GraphProto, NodeProto

__all__ = ["label_of", "ordered"]

_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType


def label_of(node: NodeProto) -> str:
    """The label of a node: its name, else its first output's."""
    return node.name or next((name for name in node.output if name), "") or node.op_type


def ordered(nodes: Sequence[NodeProto], known: Container[str], what: str) -> Sequence[NodeProto]:
    """``nodes`` such that each comes after the nodes it reads.

    Args:
        nodes: of one graph. The format asks for this order, yet not every file has it.
        known: names defined outside the nodes.
        what: the graph, for messages.

    Raises:
        ModelFormatError: a name is defined twice, is used and not defined, or nodes form a cycle.
    """
    producers = _producers(nodes, known, what)
    reads = [_reads(node) for node in nodes]
    if all(
        name in known or producers.get(name, position) < position
        for position, names in enumerate(reads)
        for name in names
    ):
        return nodes
    for node, names in zip(nodes, reads, strict=True):
        for name in names:
            if name not in producers and name not in known:
                raise ModelFormatError(
                    f"{node.op_type} {label_of(node)!r} reads {name!r}, which nothing in {what} "
                    "defines"
                )
    needs = [[producers[name] for name in names if name in producers] for names in reads]
    return _sorted(nodes, needs, what)


def _producers(nodes: Sequence[NodeProto], known: Container[str], what: str) -> dict[str, int]:
    producers: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producers:
                raise ModelFormatError(f"{what} defines {name!r} twice (see {label_of(node)!r})")
            producers[name] = position
    return producers


def _reads(node: NodeProto) -> list[str]:
    """The names a node depends on, those that its subgraphs capture included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type == _GRAPH:
            names += _captures(attribute.g)
        elif attribute.type == _GRAPHS:
            for graph in attribute.graphs:
                names += _captures(graph)
    return names


def _captures(graph: GraphProto) -> list[str]:
    """The names that a subgraph takes from outside."""
    own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
    own |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        own.update(node.output)
    inner = [name for node in graph.node for name in _reads(node)]
    inner += [value.name for value in graph.output]
    return [name for name in inner if name not in own]


def _sorted(nodes: Sequence[NodeProto], needs: list[list[int]], what: str) -> Sequence[NodeProto]:
    """A topological order that stays as close to the file's as it can."""
    waiting = [len(set(sources)) for sources in needs]
    readers: list[list[int]] = [[] for _ in nodes]
    for position, sources in enumerate(needs):
        for source in set(sources):
            readers[source].append(position)
    ready = deque(i for i, count in enumerate(waiting) if count == 0)
    order: list[int] = []
    while ready:
        position = ready.popleft()
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(order) < len(nodes):
        stuck = next(node for i, node in enumerate(nodes) if waiting[i])
        raise ModelFormatError(
            f"{what} has a cycle: {stuck.op_type} {label_of(stuck)!r} depends on its own output"
        )
    return [nodes[i] for i in order]

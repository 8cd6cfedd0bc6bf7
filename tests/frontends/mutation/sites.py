"""The places of a model that mutations change, and values that break what expects sane ones."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeVar

from onnx import AttributeProto

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

__all__ = [
    "HOSTILE_NAMES",
    "HOSTILE_REALS",
    "attributes",
    "bodies",
    "graphs",
    "hostile_size",
    "names",
    "nodes",
    "pick",
    "rename",
    "tensors",
    "values",
]

T = TypeVar("T")

HOSTILE_REALS = (0.0, -0.0, -1.0, 1e-40, 3.4e38, float("inf"), float("-inf"), float("nan"))

HOSTILE_NAMES = (
    "", " ", "\0", "a\0b", "\n", "'", '"', "\\", "../x", "/", "%s", "{0}", "{", "x" * 100_000,
    "\u202e", "é", "e\u0301", "名前", "\U0001f600", "\ufeff", "self", "None", "__class__", "f32[1]",
    "%0", ";", "weight", "=",
)  # fmt: skip

_SIZES = (
    0, 0, 1, 1, 2, 3, 4, 5, 7, 16, 17, 127, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32,
    1 << 40, 1 << 62, (1 << 63) - 1, -1, -1, -2, -3, -4, -100, -(1 << 31), -(1 << 63),
)  # fmt: skip


def hostile_size(rng: random.Random) -> int:
    """A number for sizes, axes and counts: small ones as often as absurd ones."""
    return rng.choice(_SIZES)


def pick(rng: random.Random, things: Sequence[T]) -> T | None:
    """One of ``things``; ``None`` of none."""
    return rng.choice(things) if things else None


def bodies(model: ModelProto) -> list[Any]:
    """All lists of nodes: the graph, its subgraphs at any depth, and functions."""
    return [*graphs(model), *model.functions]


def graphs(model: ModelProto) -> list[GraphProto]:
    """The graph and all subgraphs, those of functions included."""
    found = [*_within(model.graph)]
    for function in model.functions:
        for node in function.node:
            found += _subgraphs(node)
    return found


def _within(graph: GraphProto) -> Iterator[GraphProto]:
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    return [g for a in node.attribute if a.HasField("g") for g in _within(a.g)]


def nodes(model: ModelProto) -> list[NodeProto]:
    """All nodes, at any depth."""
    return [node for body in bodies(model) for node in body.node]


def attributes(model: ModelProto) -> list[AttributeProto]:
    """All attributes of nodes."""
    return [attribute for node in nodes(model) for attribute in node.attribute]


def tensors(model: ModelProto) -> list[TensorProto]:
    """Initializers and tensors of attributes."""
    found = [tensor for graph in graphs(model) for tensor in graph.initializer]
    found += [a.t for a in attributes(model) if a.type == AttributeProto.TENSOR]
    return found


def values(model: ModelProto) -> list[ValueInfoProto]:
    """The declared inputs, outputs and inner values of graphs."""
    return [
        value
        for graph in graphs(model)
        for value in (*graph.input, *graph.output, *graph.value_info)
    ]


def names(model: ModelProto) -> list[str]:
    """The names of tensors."""
    found = {name for node in nodes(model) for name in (*node.input, *node.output)}
    found |= {value.name for value in values(model)}
    return sorted(found - {""})


def rename(model: ModelProto, old: str, new: str) -> None:
    """Give a tensor another name wherever it stands, which changes no result."""
    for node in nodes(model):
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for function in model.functions:
        function.input[:] = [new if name == old else name for name in function.input]
        function.output[:] = [new if name == old else name for name in function.output]
    for named in (*values(model), *(t for g in graphs(model) for t in g.initializer)):
        if named.name == old:
            named.name = new

"""``run``: build a small graph, evaluate it, and hold its decomposition and text form to that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ostinato import reference
from ostinato.ir.graph import Value
from ostinato.ir.text import graph_constants, graphs_equal
from ostinato.ops.builder import Graph
from ostinato.ops.parser import parse_graph

Array = np.ndarray[Any, Any]
Build = Callable[..., Any]

#: The tolerance of a decomposition, which rounds often, against the oracle, which rounds once.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-11}


def built(build: Build, shapes: list[tuple[Any, ...]], dtypes: list[Any]) -> Graph:
    """The graph of ``build(g, *inputs)``; the inputs are called x0, x1, ..."""
    graph = Graph("test")
    types = enumerate(zip(shapes, dtypes, strict=True))
    results = build(graph, *(graph.input(f"x{i}", shape, dtype) for i, (shape, dtype) in types))
    graph.set_outputs(list(results) if isinstance(results, tuple) else [results])
    return graph


def expanded(graph: Graph) -> Graph:
    """``graph`` with every op decomposed, again and again until all are primitive."""
    while True:
        result, composites = Graph(graph.name), 0
        values: dict[Value, Value] = {}
        for node in graph.nodes:
            operands = [values[v] for v in node.inputs]
            new = None if not operands else node.op.decompose(result, operands, node.attrs)
            if new is None:
                new = result.adopt(node, operands)
            else:
                composites += 1
                new = new if isinstance(new, tuple) else (new,)
            for old, value in zip(node.outputs, new, strict=True):
                assert old.type == value.type, f"{node}: {old.type} decomposed to {value.type}"
                values[old] = value
        result.set_outputs({name: values[v] for name, v in graph.outputs.items()})
        if not composites:
            return result
        graph = result


def checked(graph: Graph, inputs: dict[str, Array], **options: Any) -> list[Array]:
    """Evaluate ``graph``, after checking that decomposition and text form agree with it."""
    wanted = reference.evaluate(graph, inputs, **options)
    primitive = expanded(graph)
    for got, want in zip(reference.evaluate(primitive, inputs, **options), wanted, strict=True):
        assert got.dtype == want.dtype
        tolerance = TOLERANCE.get(want.dtype.name, 0)
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    again = parse_graph(str(graph), constants=graph_constants(graph))
    assert graphs_equal(graph, again)
    return wanted


@pytest.fixture
def run() -> Callable[..., Any]:
    """``run(build, *arrays)``: the result, or results, of ``build(g, *inputs)`` for these."""

    def run(build: Build, *arrays: Any, shapes: Any = None, **options: Any) -> Any:
        given = [np.asarray(a) for a in arrays]
        graph = built(build, shapes or [a.shape for a in given], [a.dtype for a in given])
        results = checked(graph, {f"x{i}": a for i, a in enumerate(given)}, **options)
        return results[0] if len(results) == 1 else results

    return run


@pytest.fixture
def type_of() -> Callable[..., str]:
    """``type_of(build, *shapes)``: the type of the first result for float32 inputs, as text."""

    def type_of(build: Build, *shapes: tuple[Any, ...], dtype: Any = "float32") -> str:
        graph = built(build, list(shapes), [dtype] * len(shapes))
        expanded(graph)
        return str(next(iter(graph.outputs.values())).type)

    return type_of


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20250611)

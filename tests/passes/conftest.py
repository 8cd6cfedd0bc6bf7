"""``rewrite``: run passes on a small graph, hold the result to the original, and show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ostinato import reference
from ostinato.ir.graph import BaseGraph, Value
from ostinato.ir.leaves import CONSTANT, Leaf
from ostinato.ir.text import format_attrs, graph_constants, graphs_equal
from ostinato.ir.verify import verify
from ostinato.ops.builder import Graph
from ostinato.ops.parser import parse_graph
from ostinato.passes import Pass, PassReport
from ostinato.variables import evaluate

Build = Callable[..., Any]

#: The tolerance between two spellings of one formula, each op of which is rounded.
TOLERANCE = {"float16": 5e-3, "bfloat16": 5e-2, "float32": 1e-5, "float64": 1e-6}


def shown(value: Value) -> str:
    """A value as one nested expression: leaves by name, constants of one number by the number."""
    node = value.node
    if node.op is CONSTANT:
        array = node.attrs["array"]
        return repr(array.item()) if array.size == 1 else f"constant{list(array.shape)}"
    if isinstance(node.op, Leaf):
        return str(node.attrs["name"])
    arguments = [shown(operand) for operand in node.inputs]
    arguments += [format_attrs(node.attrs)] if node.attrs else []
    index = f".{value.index}" if len(node.outputs) > 1 else ""
    return f"{node.op.name}({', '.join(arguments)}){index}"


@dataclass
class Rewritten:
    """A graph rewritten by passes."""

    before: BaseGraph
    after: BaseGraph
    report: PassReport

    @property
    def expressions(self) -> list[str]:
        """Each result of the new graph as an expression."""
        return [shown(value) for value in self.after.results()]

    @property
    def expression(self) -> str:
        (only,) = self.expressions
        return only

    @property
    def ops(self) -> list[str]:
        """The ops of the new graph that its results depend on, leaves aside."""
        needed: set[Any] = set()
        stack = [value.node for value in self.after.results()]
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack += [value.node for value in node.inputs]
        return [n.op.name for n in self.after.nodes if n in needed and not isinstance(n.op, Leaf)]

    @property
    def events(self) -> list[str]:
        return [str(event) for event in self.report.events]


def feeds(graph: BaseGraph, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs; Variables are at a value inside their bounds."""
    rng = np.random.default_rng(seed)
    sizes = {v.name: min(v.max, v.min + 2) for v in graph.variables.values()}
    arrays = {}
    for name, value in (*graph.inputs.items(), *graph.params.items()):
        shape = [evaluate(dim, sizes) for dim in value.shape]
        if value.dtype.is_bool:
            arrays[name] = rng.random(shape) < 0.5
        elif value.dtype.is_integer:
            arrays[name] = rng.integers(0, 5, shape).astype(value.dtype.numpy)
        else:
            arrays[name] = rng.normal(size=shape).astype(value.dtype.numpy)
    return arrays


def results(graph: BaseGraph, arrays: dict[str, Any]) -> list[Any]:
    inputs = {name: arrays[name] for name in graph.inputs}
    params = {name: arrays[name] for name in graph.params}
    return reference.evaluate(graph, inputs, params)


def assert_same_results(before: BaseGraph, after: BaseGraph, seed: int = 0) -> None:
    """Both graphs have the same leaves, and give the same for random inputs."""
    for leaves in ("inputs", "params", "states", "outputs", "assignments"):
        ours, theirs = getattr(after, leaves), getattr(before, leaves)
        assert [(n, v.type) for n, v in ours.items()] == [(n, v.type) for n, v in theirs.items()]
    if not before.outputs:
        return
    arrays = feeds(before, seed)
    for got, want in zip(results(after, arrays), results(before, arrays), strict=True):
        tolerance = TOLERANCE.get(want.dtype.name, 0)
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.fixture
def rewrite() -> Callable[..., Rewritten]:
    """``rewrite(passes, build, *inputs)``: run one pass, or several, on ``build(g, *inputs)``.

    An input is a shape, or a shape and a dtype. The result is verified, round-trips through its
    text, evaluates to what the original does, and the original is as it was.
    """

    def rewrite(passes: Pass | list[Pass], build: Build, *inputs: Any) -> Rewritten:
        g = Graph("test")
        operands = []
        for name, given in zip("xyzuvw", inputs, strict=False):
            shape, dtype = given if given and isinstance(given[-1], str) else (given, "float32")
            operands.append(g.input(name, shape, dtype))
        built = build(g, *operands)
        if built is not None:
            g.set_outputs(list(built) if isinstance(built, tuple) else [built])
        verify(g)
        text = str(g)
        report = PassReport()
        after: BaseGraph = g
        for pass_ in passes if isinstance(passes, list) else [passes]:
            after = pass_.run(after, report)
            verify(after)
        assert str(g) == text
        assert graphs_equal(parse_graph(str(after), graph_constants(after)), after)
        assert_same_results(g, after)
        return Rewritten(g, after, report)

    return rewrite

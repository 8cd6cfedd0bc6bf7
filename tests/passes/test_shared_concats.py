"""Concatenations with a common beginning."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import BaseGraph
from ostinato.passes import PassReport
from ostinato.passes.shared_concats import SharedConcats


def concats(graph: BaseGraph) -> list[int]:
    """The number of operands of each concat."""
    return [len(node.inputs) for node in graph.nodes if node.op.name == "concat"]


def run(graph: BaseGraph) -> BaseGraph:
    return SharedConcats().run(graph, PassReport())


def dense(axes: tuple[int, ...] = (1, 1, 1)) -> ost.Graph:
    graph = ost.Graph("dense")
    pieces = [graph.input(name, (4, 4)) for name in "abcd"]
    graph.set_outputs(
        [graph.concat(pieces[: n + 2], axis=axis) for n, axis in zip(range(3), axes, strict=True)]
    )
    return graph


def test_each_goes_on_from_the_one_before() -> None:
    assert concats(run(dense())) == [2, 2, 2]


def test_the_axis_matters() -> None:
    assert concats(run(dense((1, 0, 0)))) == [2, 3, 2]


def test_only_beginnings_are_shared() -> None:
    graph = ost.Graph("ends")
    a, b, c = (graph.input(name, (4, 4)) for name in "abc")
    graph.set_outputs([graph.concat([b, c]), graph.concat([a, b, c]), graph.concat([b, b, c])])
    assert concats(run(graph)) == [2, 3, 3]


def test_what_is_not_computed_is_not_shared() -> None:
    graph = ost.Graph("dead")
    a, b, c = (graph.input(name, (4, 4)) for name in "abc")
    graph.concat([a, b])
    graph.set_outputs([graph.concat([a, b, c])])
    assert 3 in concats(run(graph))


@pytest.mark.parametrize("optimize", [True, False])
def test_results_stay(optimize: bool) -> None:
    graph = dense()
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in "abcd"}
    options = ost.CompileOptions(optimize=optimize)
    results = ost.Session("cpu").compile(graph, options=options).run(arrays)
    for count, result in enumerate(results, 2):
        expected = np.concatenate([arrays[name] for name in "abcd"[:count]], axis=1)
        assert np.array_equal(result, expected)

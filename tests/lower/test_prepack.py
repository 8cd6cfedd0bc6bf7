"""Calls that run once per write of a param, and those that run every time."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("shape", [(0, 172, 309, 8), (3, 0, 5, 7), (0,) * 4])
def test_a_concatenation_of_nothing(shape: tuple[int, ...], optimize: bool) -> None:
    """No call writes its buffer, so what reads it does not depend on the run either."""
    graph = ost.Graph("empty")
    x = graph.input("x", shape)
    sums = graph.cumsum(graph.concat([x, x], axis=1), axis=1)
    rows = graph.softmax(graph.cumsum(sums + 1.0, axis=2), axis=3)
    graph.set_outputs([graph.sum(rows, axis=3), graph.sum(sums, axis=(0, 1))])
    options = ost.CompileOptions(optimize=optimize)
    compiled = ost.Session("cpu", threads=1).compile(graph, options=options)
    inputs = {"x": np.zeros(shape, np.float32)}
    for got, expected in zip(compiled.run(inputs), reference.evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(got, expected, strict=False)

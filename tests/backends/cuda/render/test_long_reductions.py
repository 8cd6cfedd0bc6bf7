"""Rows that are too long for shared memory, and reductions that take two kernels, end to end."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from tests.devices.cuda_emulation.toolchain import COMPILER
from tests.devices.registered import open_session

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


@pytest.mark.parametrize("optimize", [True, False])
def test_long_reductions(optimize: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 66_003)).astype(np.float32)
    graph = ost.Graph("long")
    value = graph.input("x", x.shape, "float32")
    whole = graph.sum(value), graph.max(value, axis=1), graph.any(value > 4.0, axis=1)
    columns = graph.sum(graph.reshape(value, (44_002, 3)), axis=0)
    graph.set_outputs([*whole, columns, graph.softmax(value[:, :20_000])])
    options = ost.CompileOptions(optimize=optimize)
    compiled = open_session("cudaemu").compile(graph, options=options)
    total, most, some, by_column, rows = compiled.run({"x": x})
    np.testing.assert_allclose(total, x.astype(np.float64).sum(), rtol=1e-4)
    np.testing.assert_array_equal(most, x.max(axis=1))
    np.testing.assert_array_equal(some, (x > 4).any(axis=1))
    np.testing.assert_allclose(by_column, x.reshape(-1, 3).astype(np.float64).sum(0), rtol=1e-3)
    powers = np.exp(x[:, :20_000].astype(np.float64))
    np.testing.assert_allclose(rows, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)

"""Rows that are too long for shared memory, and reductions that take two kernels, end to end."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from tests.devices.cuda_emulation.toolchain import COMPILER
from tests.devices.registered import open_session

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_indices_of_the_greatest_of_many(dtype: str) -> None:
    """Of equals the first; NaN is the greatest, and the least."""
    rng = np.random.default_rng(2)
    graph = ost.Graph("many")
    value = graph.input("x", (2, 66_003), dtype)
    graph.set_outputs([graph.argmax(value, axis=1), graph.argmin(value, axis=1)])
    compiled = open_session("cudaemu").compile(graph)
    assert len(compiled.plan.kernels) == 4
    x = rng.integers(-90, 90, (2, 66_003)).astype(value.dtype.numpy)
    cases = [x, np.full_like(x, -7), x.copy()]
    if dtype != "int32":
        cases[2][0, [40_001, 66_000]] = np.nan
        cases.append(np.full_like(x, -np.inf))
        cases.append(np.full_like(x, np.inf))
    for case in cases:
        wide = case.astype(np.float64)
        most, least = compiled.run({"x": case})
        np.testing.assert_array_equal(most, wide.argmax(axis=1))
        np.testing.assert_array_equal(least, wide.argmin(axis=1))


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


@pytest.mark.parametrize(
    ("count", "dtype"),
    [
        pytest.param(count, dtype, marks=[] if (i + j) % 2 == 0 else [pytest.mark.slow])
        for i, count in enumerate((66_003, 65_536, 128_256))
        for j, dtype in enumerate(("float32", "float16", "int32", "uint8"))
    ],
)
def test_positions_of_extremes(dtype: str, count: int) -> None:
    """The first of equal extremes; the first NaN, wherever it is; infinities alone."""
    rng = np.random.default_rng(count)
    x = (rng.standard_normal((5, count)) * 30 + 100).astype(dtype)
    x[0, [70, 9_000, count - 1]] = x.max()
    x[1, [71, 9_001]] = x.min()
    x[2] = x[2, 0]
    if dtype.startswith("float"):
        x[3, [8_500, 60_000]] = np.nan
        x[4] = -np.inf
    graph = ost.Graph("positions")
    value = graph.input("x", x.shape, dtype)
    graph.set_outputs([graph.argmax(value, axis=1), graph.argmin(value * 1, axis=1)])
    session = open_session("cudaemu")
    for options in (ost.CompileOptions(), ost.CompileOptions(optimize=False)):
        compiled = session.compile(graph, options=options)
        most, least = compiled.run({"x": x})
        np.testing.assert_array_equal(most, x.argmax(axis=1))
        np.testing.assert_array_equal(least, x.argmin(axis=1))
    assert len(session.compile(graph).plan.kernels) == 4

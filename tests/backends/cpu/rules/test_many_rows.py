"""Products with more rows than caches hold: blocks of rows stay, panels pass by."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.errors import DeviceUnavailableError

K, N = 521, 101

#: Rows that take more than a second-level cache.
M = max(523, TargetSpec.host().caches.second // (4 * K) + 25)


@pytest.fixture(scope="module")
def graph() -> ost.Graph:
    rng = np.random.default_rng(5)
    g = ost.Graph()
    w = g.param("w", (K, N), value=(rng.standard_normal((K, N)) / 20).astype(np.float32))
    b = g.param("b", (N,), value=rng.standard_normal(N).astype(np.float32))
    g.set_outputs([g.relu(g.matmul(g.input("x", (M, K)), w) + b)])
    return g


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(6).standard_normal((M, K)).astype(np.float32)


@pytest.mark.parametrize("level", ["avx512", "avx2", "sse2"])
def test_they_are_right_on_any_number_of_threads(
    graph: ost.Graph, x: np.ndarray, level: str
) -> None:
    try:
        TargetSpec.named(level)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    options = ost.CompileOptions(target=level)
    values = graph.param_values
    exact = np.maximum(x.astype("f8") @ values["w"].astype("f8") + values["b"], 0)
    results = []
    for threads in (1, 2, 3):
        compiled = ost.Session("cpu", threads=threads).compile(graph, options=options)
        (kernel,) = (op.kernel.kernel for op in compiled.plan.prepared_kernels)
        assert isinstance(kernel, Gemm)
        assert kernel.streams_rows
        results.append(compiled.run({"x": x})[0])
    np.testing.assert_allclose(results[0], exact, rtol=1e-4, atol=1e-4)
    assert len({result.tobytes() for result in results}) == 1


def test_rows_out_of_use_are_left_out(graph: ost.Graph, x: np.ndarray) -> None:
    compiled = ost.Session("cpu", threads=2).compile(graph)
    whole = compiled.run({"x": x})[0]
    for rows in (1, 7, 64, 65, 300, M):
        compiled.set_active_extent((rows, M))
        out = compiled.run({"x": x})[0]
        assert out[:rows].tobytes() == whole[:rows].tobytes()
    compiled.set_active_extent(None)

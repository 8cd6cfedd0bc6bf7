"""16-bit weights stay 16 bits wide in memory, with the same results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.rules.packing import stored_dtype
from ostinato.errors import DeviceUnavailableError

Array = np.ndarray[Any, Any]
NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
NARROW = frozenset({ost.DType.parse("float16"), ost.DType.parse("bfloat16")})


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


def compiled(
    session: ost.Session, graph: ost.Graph, target: str = "host", **options: Any
) -> ost.CompiledGraph:
    try:
        return session.compile(graph, options=ost.CompileOptions(target=target, **options))
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


def product(m: int, k: int, n: int, x: str, w: str, *, transposed: bool = False) -> ost.Graph:
    rng = np.random.default_rng(m * 1000 + k * 10 + n)
    weights = rng.standard_normal((n, k) if transposed else (k, n)).astype(NUMPY[w])
    g = ost.Graph("narrow")
    left = g.input("x", (m, k), x)
    right = g.param("w", weights.shape, w, value=weights)
    g.set_outputs([g.matmul(left, g.permute_dims(right, (1, 0)) if transposed else right)])
    return g


SHAPES = [(1, 7, 17), (2, 33, 65), (4, 129, 31), (33, 40, 97), (1, 257, 300)]


@pytest.mark.parametrize("target", ["host", "avx2", "sse2"])
@pytest.mark.parametrize("w", ["float16", "bfloat16"])
def test_same_bits_as_wide(session: ost.Session, w: str, target: str) -> None:
    rng = np.random.default_rng(1)
    for number, (m, k, n) in enumerate(SHAPES):
        x = ("float32", w)[number % 2]
        graph = product(m, k, n, x, w, transposed=n % 2 == 0)
        data = rng.standard_normal((m, k)).astype(ost.DType.parse(x).numpy)
        (narrow,) = compiled(session, graph, target).run({"x": data})
        (wide,) = compiled(session, graph, target, narrow_weights=False).run({"x": data})
        np.testing.assert_array_equal(narrow, wide)
        (expected,) = ost.reference.evaluate(graph, {"x": data})
        actual, truth = narrow.astype(np.float64), expected.astype(np.float64)
        tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[x]
        np.testing.assert_allclose(actual, truth, atol=tolerance * (1 + np.abs(truth).max()))


def test_special_values(session: ost.Session) -> None:
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -6e-8, 65504.0, 1.0]
    for w, dtype in NUMPY.items():
        with np.errstate(over="ignore"):
            weights = np.array([values] * 2).astype(dtype)
        g = ost.Graph("special")
        g.set_outputs([g.matmul(g.input("x", (1, 2)), g.param("w", (2, 9), w, value=weights))])
        for data in ([[1.0, 0.0]], [[1.0, 1.0]], [[-2.0, np.inf]]):
            x = np.array(data, np.float32)
            (actual,) = compiled(session, g).run({"x": x})
            (wide,) = compiled(session, g, narrow_weights=False).run({"x": x})
            np.testing.assert_array_equal(actual, wide)


def bytes_moved(compiled: ost.CompiledGraph) -> int:
    (kernel,) = compiled.plan.execute_profiled()
    return kernel.bytes


@pytest.mark.parametrize("optimize", [True, False])
def test_half_the_bytes_are_read(session: ost.Session, optimize: bool) -> None:
    graph = product(1, 256, 512, "float32", "bfloat16")
    narrow = bytes_moved(compiled(session, graph, optimize=optimize))
    wide = bytes_moved(compiled(session, graph, optimize=optimize, narrow_weights=False))
    assert wide - narrow == 256 * 512 * 2


def test_folding_keeps_constants_narrow(session: ost.Session) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 96)).astype(ml_dtypes.bfloat16)
    g = ost.Graph("constant")
    g.set_outputs([g.matmul(g.input("x", (1, 64)), g.cast(g.constant(weights), "float32"))])
    kernels = compiled(session, g).plan.kernels
    assert any("bf16 b" in k.loops and k.loops.startswith("gemm") for k in kernels)


def test_what_counts_as_stored() -> None:
    g = ost.Graph("stored")
    half, brain, full = (g.param(name, (8, 8), name) for name in ("float16", "bfloat16", "float32"))
    wide = g.permute_dims(g.cast(half, "float32"), (1, 0))
    assert stored_dtype(half, NARROW).name == "float16"
    assert stored_dtype(wide, NARROW).name == "float16"
    assert stored_dtype(wide, frozenset()).name == "float32"
    assert stored_dtype(full, NARROW).name == "float32"
    assert stored_dtype(g.cast(full, "bfloat16"), NARROW).name == "bfloat16"
    assert stored_dtype(g.cast(half, "float64"), NARROW).name == "float64"
    joined = g.concat([wide, wide], 1)
    assert stored_dtype(joined, NARROW).name == "float16"
    mixed = g.concat([wide, g.cast(brain, "float32")], 1)
    assert stored_dtype(mixed, NARROW).name == "float32"

"""Matmuls of 8-bit floats against their definition, and the operands that they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.errors import DeviceUnavailableError
from ostinato.ir.text import graph_constants
from ostinato.ops.parser import parse_graph
from tests.backends.cpu.levels import across_levels

Array = np.ndarray[Any, Any]

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
GREATEST = {E4M3: 448.0, E5M2: 57344.0}
#: The distance of float32 sums from exact ones, relative to the sum of magnitudes.
TOLERANCE = 1e-6
#: Half a unit of the last place of each result.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

#: Rows, depth and columns: 1, primes, whole panels, nothing.
SHAPES = [
    (1, 1, 1),
    (1, 37, 5),
    (3, 17, 29),
    (7, 129, 31),
    (16, 64, 48),
    (33, 40, 97),
    (0, 4, 3),
    (2, 0, 3),
    (4, 5, 0),
]


def floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.normal(0, 8, shape).astype(DType.parse(dtype).numpy)


def graph_of(
    x: Array, w: Array, x_scale: Array, w_scale: Array, dtype: str, *, param: bool = True
) -> ost.Graph:
    g = ost.Graph("float8")
    right = g.param("w", w.shape, w.dtype, value=w) if param else g.input("w", w.shape, w.dtype)
    left = g.input("x", x.shape, x.dtype)
    g.set_outputs([g.scaled_matmul(left, right, x_scale, w_scale, dtype=dtype)])
    return g


def exact(x: Array, w: Array, x_scale: Array, w_scale: Array) -> tuple[Array, Array]:
    """The result in float64, and the bound of what float32 sums may differ by."""
    left, right = x.astype(np.float64), w.astype(np.float64)
    factor = x_scale.astype(np.float64) * w_scale.astype(np.float64)
    bound = np.abs(left) @ np.abs(right) * np.abs(factor)
    return left @ right * factor, TOLERANCE * bound


def test_every_shape_scale_and_dtype(rng: np.random.Generator) -> None:
    formats = [(a, b) for a in (E4M3, E5M2) for b in (E4M3, E5M2)]
    for number, (level, (m, k, n)) in enumerate(across_levels(SHAPES)):
        a, b = formats[number % 4]
        dtype = ("float32", "bfloat16", "float16")[number % 3]
        x, w = floats(rng, (m, k), a), floats(rng, (k, n), b)
        rows, columns = number // 2 % 2 == 0, number // 3 % 2 == 0
        x_scale = rng.uniform(0.01, 0.1, (m, 1) if rows else ()).astype(np.float32)
        w_scale = rng.uniform(0.01, 0.1, (n,) if columns else ()).astype(np.float32)
        x_scale, w_scale = np.asarray(x_scale), np.asarray(w_scale)
        graph = graph_of(x, w, x_scale, w_scale, dtype, param=number % 4 != 3)
        data = {name: {"x": x, "w": w}[name] for name in graph.inputs}
        expected, bound = exact(x, w, x_scale, w_scale)
        (reference,) = ost.reference.evaluate(graph, data)
        for optimize in (True, False):
            options = ost.CompileOptions(optimize=optimize, verify=True, target=level)
            try:
                compiled = ost.Session("cpu", threads=1).compile(graph, options=options)
            except DeviceUnavailableError:
                continue
            (actual,) = compiled.run(data)
            assert actual.dtype == DType.parse(dtype).numpy
            limit = bound + ROUNDING[dtype] * np.abs(expected) + 1e-7
            for found in (actual, reference):
                assert (np.abs(found.astype(np.float64) - expected) <= limit).all()


@pytest.mark.parametrize("target", ["host", "sse2"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_narrow_panels_give_the_bits_of_wide_ones(dtype: str, target: str) -> None:
    """Every code of a weight, in panels of 8 bits, of bfloat16 and of float32."""
    codes = np.arange(256, dtype=np.uint8).view(DType.parse(dtype).numpy)
    weights = np.stack([np.roll(codes, 37 * i) for i in range(3)])
    numbers = np.where(np.isfinite(weights.astype(np.float32)), weights, np.zeros_like(weights))
    for w, m in ((weights, 1), (numbers, 1), (weights, 4), (numbers, 7), (weights.T.copy(), 2)):
        g = ost.Graph("panels")
        right = g.cast(g.param("w", w.shape, w.dtype, value=w), "float32")
        g.set_outputs([g.matmul(g.input("x", (m, w.shape[0])), right)])
        x = np.random.default_rng(m).standard_normal((m, w.shape[0])).astype(np.float32)
        results = []
        for narrow in (True, False):
            options = ost.CompileOptions(target=target, narrow_weights=narrow)
            results += ost.Session("cpu", threads=1).compile(g, options=options).run({"x": x})
        np.testing.assert_array_equal(*results)
        assert np.isnan(results[0]).any() == (w is not numbers)


def test_a_nan_or_an_infinity_is_in_the_products_of_its_row_or_column() -> None:
    for a, b in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)):
        x = np.ones((3, 5), np.float32)
        w = np.ones((5, 9), np.float32)
        x[1, 4] = np.inf
        w[2, 7] = np.nan
        left, right = x.astype(DType.parse(a).numpy), w.astype(DType.parse(b).numpy)
        graph = graph_of(left, right, np.float32(2), np.float32(1), "float32")
        (expected,) = ost.reference.evaluate(graph, {"x": left})
        (actual,) = ost.Session("cpu").compile(graph).run({"x": left})
        np.testing.assert_array_equal(actual, expected)
        assert np.isnan(actual[:, 7]).all()
        assert (np.isinf(actual[1]) if a == E5M2 else np.isnan(actual[1]))[:7].all()
        np.testing.assert_array_equal(actual[[0, 2], :7], 10)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_rows_by_their_greatest_magnitude(dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((6, 13)).astype(np.float32)
    x[1] = 0
    x[2, 3] = np.nan
    x[3, 5] = np.inf
    x[4] *= 1e-44
    x[5] *= 1e38
    g = ost.Graph("rows")
    g.set_outputs(g.quantize_rows(g.input("x", x.shape), dtype))
    expected = ost.reference.evaluate(g, {"x": x})
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize)
        q, scale = ost.Session("cpu").compile(g, options=options).run({"x": x})
        np.testing.assert_array_equal(scale, expected[1])
        kept = [0, 1, 5]
        near = q[kept].astype(np.float32) - expected[0][kept].astype(np.float32)
        assert np.abs(near).max() <= GREATEST[dtype] / 8  # a tie of the oracle's float64
        assert np.abs(q[0].astype(np.float32)).max() == GREATEST[dtype]
        assert scale.shape == (6, 1)
        assert scale[1] == 0
        assert not np.isfinite(scale[2:4]).any()
        wide = q[[0, 5]].astype(np.float32) * scale[[0, 5]]
        error = np.abs(wide - x[[0, 5]]).max(-1) / np.abs(x[[0, 5]]).max(-1)
        assert error.max() < (2.0**-4 if dtype == E4M3 else 2.0**-3)


def test_rows_with_a_nan_or_an_infinity_give_nan() -> None:
    x = np.ones((3, 4), np.float32)
    x[1, 2], x[2, 0] = np.nan, np.inf
    g = ost.Graph("special rows")
    q, scale = g.quantize_rows(g.input("x", x.shape))
    w = np.ones((4, 2)).astype(DType.parse(E4M3).numpy)
    g.set_outputs([g.scaled_matmul(q, g.constant(w), scale)])
    (y,) = ost.Session("cpu").compile(g).run({"x": x})
    np.testing.assert_array_equal(np.isnan(y), [[False] * 2, [True] * 2, [True] * 2])


def test_a_row_has_the_same_bits_in_any_batch(rng: np.random.Generator) -> None:
    x, w = floats(rng, (37, 300), E4M3), floats(rng, (300, 70), E4M3)
    ones = np.float32(1), np.float32(1)
    (whole,) = ost.Session("cpu").compile(graph_of(x, w, *ones, "float32")).run({"x": x})
    for first, count in ((0, 1), (5, 3), (20, 17)):
        part = x[first : first + count]
        (some,) = ost.Session("cpu").compile(graph_of(part, w, *ones, "float32")).run({"x": part})
        np.testing.assert_array_equal(some, whole[first : first + count])


def test_weights_stay_8_bits_wide(rng: np.random.Generator) -> None:
    x, w = floats(rng, (1, 64), E4M3), floats(rng, (64, 128), E4M3)
    graph = graph_of(x, w, np.float32(1), np.float32(1), "float32")
    moved = []
    for narrow in (True, False):
        options = ost.CompileOptions(narrow_weights=narrow)
        compiled = ost.Session("cpu", threads=1).compile(graph, options=options)
        moved.append(sum(kernel.bytes for kernel in compiled.plan.execute_profiled()))
    assert moved[1] - moved[0] == 3 * w.size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (2, 4, "float16")}, "x is float8_e4m3fn or float8_e5m2"),
        ({"w": (4, 3, "float8_e4m3fnuz")}, "w is float8_e4m3fn or float8_e5m2"),
        ({"w": (5, 3, E4M3)}, "inner dimensions 4 and 5 differ"),
        ({"x_scale": np.ones((2,), np.float32)}, "x_scale is f32"),
        ({"w_scale": np.ones((2,), np.float32)}, "w_scale is f32"),
        ({"w_scale": np.ones((3,), np.float16)}, "w_scale is f32"),
        ({"dtype": "float64"}, "the result is float32, float16 or bfloat16"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    g = ost.Graph("refused")
    shown = {"x": (2, 4, E4M3), "w": (4, 3, E4M3), **change}
    x, w = (g.input(name, shown[name][:-1], shown[name][-1]) for name in ("x", "w"))
    rest = {name: shown[name] for name in ("x_scale", "w_scale", "dtype") if name in shown}
    with pytest.raises(ost.GraphError, match=message):
        g.scaled_matmul(x, w, **rest)
    with pytest.raises(ost.GraphError, match="rows become"):
        g.quantize_rows(g.input("y", (2, 2)), "float16")
    with pytest.raises(ost.GraphError, match="rows are of floats"):
        g.quantize_rows(g.input("z", (2, 2), "int32"))


def test_the_text_of_a_graph_is_read_again() -> None:
    g = ost.Graph("text")
    x, w = g.input("x", (2, 4), E5M2), g.input("w", (4, 3), E4M3)
    g.set_outputs([g.scaled_matmul(x, w, 0.5, dtype="bfloat16")])
    assert "dtype=bf16) : bf16[2,3]" in str(g)
    assert str(parse_graph(str(g), constants=graph_constants(g))) == str(g)

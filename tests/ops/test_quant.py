"""Quantised matmuls against their definition, and the operands that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost

Array = np.ndarray[Any, Any]


def both(graph: ost.Graph, data: dict[str, Array]) -> Array:
    """The oracle's result, after checking that the CPU's, optimised or not, agrees with it."""
    (expected,) = ost.reference.evaluate(graph, data)
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize, verify=True)
        (actual,) = ost.Session("cpu", threads=1).compile(graph, options=options).run(data)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-30)
    return expected


def int8_graph(x: Array, w: Array, scales: Array) -> ost.Graph:
    g = ost.Graph("int8")
    y = g.quantized_matmul(g.input("x", x.shape, x.dtype), g.constant(w), g.constant(scales))
    g.set_outputs([y])
    return g


def int4_graph(x: Array, codes: Array, scales: Array, group: int = 32) -> ost.Graph:
    g = ost.Graph("int4")
    weights = g.constant(codes), g.constant(scales)
    g.set_outputs([g.int4_matmul(g.input("x", x.shape, x.dtype), *weights, group=group)])
    return g


def as_defined(x: Array, w: Array, scales: Array) -> Array:
    """The definition, spelled out in float32 and int64."""
    low, high = (np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0))
    scale = high / np.float32(255) - low / np.float32(255)
    zero = np.rint(-low / scale)
    q = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
    total = q.astype(np.int64) @ w.astype(np.int64)
    return total.astype(np.float32) * (scale * scales)


def test_int8_by_the_definition() -> None:
    rng = np.random.default_rng(0)
    for m, k, n in [(1, 1, 1), (3, 17, 5), (2, 64, 33)]:
        x = rng.standard_normal((m, k)).astype(np.float32)
        w = rng.integers(-127, 128, (k, n)).astype(np.int8)
        scales = rng.uniform(0, 0.1, n).astype(np.float32)
        result = both(int8_graph(x, w, scales), {"x": x})
        np.testing.assert_allclose(result, as_defined(x, w, scales), rtol=1e-6)


def test_ties_round_to_even() -> None:
    x = np.array([[127, -128, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32)
    result = both(int8_graph(x, np.eye(7, dtype=np.int8), np.ones(7, np.float32)), {"x": x})
    np.testing.assert_array_equal(result, [[127, -128, 0, 2, 2, 0, -2]])


@pytest.mark.parametrize("row", [[3.0, 255.0, 16.0], [-255.0, -3.0, -16.0], [0.0, 255.0, 1.0]])
def test_rows_of_one_sign_take_the_whole_range(row: list[float]) -> None:
    x = np.array([row], np.float32)
    result = both(int8_graph(x, np.eye(3, dtype=np.int8), np.ones(3, np.float32)), {"x": x})
    np.testing.assert_array_equal(result, x)


EXTREME = [
    [3.4e38, 3.3e38, 0.0],
    [0.0, 0.0, 0.0],
    [1e-45, 0.0, -1e-45],
    [1.7e-43, 1.2e-43, -1.7e-43],
    [1e-38, 1e-40, -1e-38],
    [3.4e38, -3.4e38, 1.0],
    [1e30, 1e-30, 0.0],
    [-0.0, 5.0, 5.0],
]


def test_rows_of_zeros_and_extreme_scales() -> None:
    x = np.array(EXTREME, np.float32)
    w = np.array([[1, -127], [127, 3], [-1, 0]], np.int8)
    scales = np.array([1.0, 1e-5], np.float32)
    result = both(int8_graph(x, w, scales), {"x": x})
    np.testing.assert_array_equal(result[1], [0, 0])
    assert not np.isnan(result).any()
    codes = np.array([[0x19], [0x0F]], np.uint8)
    both(int4_graph(x, codes, np.array([[0.5]], np.float32)), {"x": x})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_nan_or_an_infinity_is_nan(bad: float) -> None:
    x = np.ones((3, 70), np.float32)
    x[1, 69] = bad
    w = np.zeros((70, 2), np.int8)
    codes = np.full((35, 2), 0x88, np.uint8)
    for graph in (
        int8_graph(x, w, np.ones(2, np.float32)),
        int4_graph(x, codes, np.ones((3, 2), np.float32)),
    ):
        result = both(graph, {"x": x})
        np.testing.assert_array_equal(np.isnan(result), [[False] * 2, [True] * 2, [False] * 2])


def test_int4_codes_are_two_a_byte_low_half_first() -> None:
    codes = np.array([[0x9F], [0x08]], np.uint8)  # 7, 1, 0; the last half is no weight
    x = np.array([[127, 0, 0], [0, 127, 0], [0, 0, 127]], np.float32)
    result = both(int4_graph(x, codes, np.array([[2.0]], np.float32)), {"x": x})
    np.testing.assert_allclose(result[:, 0], [14 * 127, 2 * 127, 0])


def test_int4_rounds_each_group_of_a_row_by_itself() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 0], x[0, 32] = 1000.0, 1e-3
    codes = np.full((32, 2), 0x99, np.uint8)
    scales = np.array([[0, 1], [1, 0]], np.float32)
    result = both(int4_graph(x, codes, scales), {"x": x})
    np.testing.assert_allclose(result, [[1e-3, 1000.0]], rtol=1e-6)


def test_one_dimension_and_many() -> None:
    rng = np.random.default_rng(1)
    w = rng.integers(-9, 9, (6, 4)).astype(np.int8)
    for shape in [(6,), (2, 3, 6), (0, 6)]:
        x = rng.standard_normal(shape).astype(np.float32)
        assert both(int8_graph(x, w, np.ones(4, np.float32)), {"x": x}).shape == (*shape[:-1], 4)


G = ost.Graph
REFUSED: dict[str, Callable[[G], Any]] = {
    "expected int8 or uint8, got float32": lambda g: g.integer_matmul(
        g.input("a", (2, 3)), g.input("b", (3, 4), "int8")
    ),
    "inner dimensions 3 and 4 differ": lambda g: g.integer_matmul(
        g.input("a", (2, 3), "int8"), g.input("b", (4, 4), "int8")
    ),
    "sums over a known number of products": lambda g: g.integer_matmul(
        g.input("a", (2, n := ost.Variable("n", 1, 4)), "int8"), g.input("b", (n, 3), "int8")
    ),
    "w is int8, got uint8": lambda g: g.quantized_matmul(
        g.input("x", (2, 3)), g.input("w", (3, 4), "uint8"), g.input("s", (4,))
    ),
    "x is float32, float16 or bfloat16, got float64": lambda g: g.quantized_matmul(
        g.input("x", (2, 3), "float64"), g.input("w", (3, 4), "int8"), g.input("s", (4,))
    ),
    "scales are f32[4]": lambda g: g.quantized_matmul(
        g.input("x", (2, 3)), g.input("w", (3, 4), "int8"), g.input("s", (3,))
    ),
    "nothing to sum over": lambda g: g.quantized_matmul(
        g.input("x", (2, 0)), g.input("w", (0, 4), "int8"), g.input("s", (4,))
    ),
    "int32 sums hold 65536 products": lambda g: g.quantized_matmul(
        g.input("x", (1, 65537)), g.input("w", (65537, 1), "int8"), g.input("s", (1,))
    ),
    "group is one of": lambda g: g.int4_matmul(
        g.input("x", (2, 4)), g.input("w", (2, 4), "uint8"), g.input("s", (1, 4)), group=16
    ),
    "5 weights take 3 rows of codes, got 2": lambda g: g.int4_matmul(
        g.input("x", (2, 5)), g.input("w", (2, 4), "uint8"), g.input("s", (1, 4))
    ),
    "a multiple of 64": lambda g: g.blockwise_matmul(
        g.input("q", (2, 5), "int8"), g.input("r", (2, 1)),
        g.input("w", (2, 4), "uint8"), g.input("s", (1, 4)), group=64,
    ),
    "do not make 2 blocks": lambda g: g.blockwise_matmul(
        g.input("q", (2, 128), "int8"), g.input("r", (2, 2)),
        g.input("w", (2, 4), "uint8"), g.input("s", (2, 4)), group=64,
    ),
    "q_scales is f32[2,1]": lambda g: g.blockwise_matmul(
        g.input("q", (2, 64), "int8"), g.input("r", (2, 2)),
        g.input("w", (32, 4), "uint8"), g.input("s", (1, 4)), group=64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(ost.GraphError) as caught:
        REFUSED[message](ost.Graph("refused"))
    assert message in str(caught.value)

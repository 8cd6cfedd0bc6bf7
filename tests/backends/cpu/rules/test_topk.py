"""The ``topk`` kernel against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ostinato.dtypes import ALL_DTYPES, FLOAT16, FLOAT32, FLOAT64, INT32, DType
from ostinato.ops.builder import Graph
from ostinato.reference import evaluate
from ostinato.variables import Variable

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Few different values, so that there are ties; floats with zeros of both signs, NaN, inf."""
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        wide = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        narrow = rng.integers(0, 5, shape).astype(dtype.numpy)
        return np.where(rng.random(shape) < 0.5, wide, narrow)
    x = np.round(rng.standard_normal(shape) * 3) * 0.5
    special = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf], shape)
    return np.where(rng.random(shape) < 0.2, special, x).astype(dtype.numpy)


def same(got: list[Array], want: list[Array]) -> None:
    for mine, expected in zip(got, want, strict=True):
        assert mine.dtype == expected.dtype
        wide = expected.dtype if expected.dtype.kind in "iu" else np.dtype(np.float64)
        np.testing.assert_array_equal(mine.astype(wide), expected.astype(wide))


def check(lowered: Lowered, level: str, x: Array, dtype: DType, **options: Any) -> None:
    g = Graph("g")
    values, indices = g.topk(g.input("x", x.shape, dtype), **options)
    g.set_outputs({"values": values, "indices": indices})
    same(lowered(g, level)({"x": x}), evaluate(g, {"x": x}))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if not d.is_bool], ids=str)
def test_dtypes(lowered: Lowered, level: str, dtype: DType, largest: bool) -> None:
    rng = np.random.default_rng(dtype.bits)
    check(lowered, level, random(rng, (3, 37), dtype), dtype, k=5, largest=largest)


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if not d.is_bool], ids=str)
def test_long_rows_are_sorted(lowered: Lowered, level: str, dtype: DType) -> None:
    rng = np.random.default_rng(dtype.bits)
    check(lowered, level, random(rng, (2, 700), dtype), dtype, k=700, largest=False)
    check(lowered, level, random(rng, (257, 2), dtype), dtype, k=40, axis=0)


def test_rows_of_any_length_are_sorted(lowered: Lowered, level: str) -> None:
    g, n = Graph("g"), Variable("n", 0, 3000)
    values, indices = g.sort(g.input("x", (2, n), FLOAT32), 1)
    g.set_outputs({"values": values, "indices": indices})
    run = lowered(g, level)
    for length in (0, 1, 255, 256, 257, 3000):
        x = random(np.random.default_rng(length), (2, length), FLOAT32)
        same(run({"x": x}, n=length), evaluate(g, {"x": x}))


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (7, 7), (16, 1), (16, 16), (17, 3), (33, 32), (100, 0), (1000, 40)]
)
def test_sizes(lowered: Lowered, level: str, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    check(lowered, level, random(rng, (2, n), FLOAT32), FLOAT32, k=k)
    check(lowered, level, random(rng, (n,), FLOAT64), FLOAT64, k=k, largest=False)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(lowered: Lowered, level: str, axis: int) -> None:
    x = random(np.random.default_rng(axis), (19, 20, 21), FLOAT16)
    check(lowered, level, x, FLOAT16, k=4, axis=axis)
    whole = random(np.random.default_rng(axis), (19, 20, 21), INT32)
    check(lowered, level, whole, INT32, k=19, axis=axis, largest=False)


@pytest.mark.parametrize("order", ["ascending", "descending", "equal", "negative zeros"])
def test_large_rows_in_hard_orders(lowered: Lowered, order: str) -> None:
    x = np.arange(10_000, dtype=np.float32)
    if order == "descending":
        x = x[::-1].copy()
    if order == "equal":
        x[:] = 2
    if order == "negative zeros":
        x = np.where(x % 3 == 0, np.float32(-0.0), np.float32(0.0))
    check(lowered, "host", x, FLOAT32, k=10_000)
    check(lowered, "host", x, FLOAT32, k=100, largest=False)


def test_symbolic_rows_and_lengths(lowered: Lowered, level: str) -> None:
    b, n = Variable("B", 0, 6), Variable("N", 3, 90)
    g = Graph("g")
    values, indices = g.topk(g.input("x", (b, n), FLOAT32), k=3)
    g.set_outputs({"values": values, "indices": indices})
    run = lowered(g, level)
    rng = np.random.default_rng(0)
    for rows, length in [(6, 90), (1, 3), (0, 5), (4, 17), (2, 64)]:
        x = random(rng, (rows, length), FLOAT32)
        same(run({"x": x}, B=rows, N=length), evaluate(g, {"x": x}))


def test_of_a_view_with_only_one_result_wanted(lowered: Lowered, level: str) -> None:
    g = Graph("g")
    x = g.input("x", (11, 40), FLOAT32)
    _, indices = g.topk(g.permute_dims(x, (1, 0))[5:25], k=6)
    g.set_outputs({"indices": indices})
    array = random(np.random.default_rng(3), (11, 40), FLOAT32)
    same(lowered(g, level)({"x": array}), evaluate(g, {"x": array}))


def test_results_feed_other_kernels(lowered: Lowered, level: str) -> None:
    g = Graph("g")
    x = g.input("x", (4, 50), FLOAT32)
    values, indices = g.topk(x + 1.0, k=3)
    g.set_outputs({"doubled": values * 2.0, "parity": indices % 2})
    array = np.random.default_rng(4).standard_normal((4, 50)).astype(np.float32)
    same(lowered(g, level)({"x": array}), evaluate(g, {"x": array}))

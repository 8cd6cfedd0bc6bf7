"""Comparisons, logic, bits, selection, conversion."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import ALL_DTYPES

COMPARISONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(run, rng, name, dtype):
    x, y = rng.integers(0, 3, (2, 30)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[:3] = np.nan, np.inf, -0.0
        y[:3] = np.nan, np.inf, 0.0
    got = run(lambda g, x, y: getattr(g, name)(x, y), x, y)
    np.testing.assert_array_equal(got, COMPARISONS[name](x, y), strict=True)


def test_operators_compare(run):
    x, y = np.array([1, 2, 3]), np.array([2, 2, 2])
    less, at_most, more, at_least = run(lambda g, x, y: (x < y, x <= y, x > y, x >= y), x, y)
    np.testing.assert_array_equal(less, x < y)
    np.testing.assert_array_equal(at_most, x <= y)
    np.testing.assert_array_equal(more, x > y)
    np.testing.assert_array_equal(at_least, x >= y)


def test_kinds_of_floats(run):
    x = np.array([np.nan, np.inf, -np.inf, 0, 1], np.float16)
    nan, inf, finite = run(lambda g, x: (g.isnan(x), g.isinf(x), g.isfinite(x)), x)
    np.testing.assert_array_equal(nan, np.isnan(x), strict=True)
    np.testing.assert_array_equal(inf, np.isinf(x), strict=True)
    np.testing.assert_array_equal(finite, np.isfinite(x), strict=True)


def test_truth_tables(run):
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for name in ("logical_and", "logical_or", "logical_xor"):
        got = run(lambda g, x, y, name=name: getattr(g, name)(x, y), x, y)
        np.testing.assert_array_equal(got, getattr(np, name)(x, y), strict=True)
    for got, wanted in zip(
        run(lambda g, x, y: (x & y, x | y, x ^ y, ~x, g.logical_not(x)), x, y),
        (x & y, x | y, x ^ y, ~x, ~x),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint16"])
def test_bits(run, rng, dtype):
    info = np.iinfo(dtype)
    x, y = rng.integers(info.min, info.max, (2, 30), dtype=dtype, endpoint=True)
    for got, wanted in zip(
        run(lambda g, x, y: (x & y, x | y, x ^ y, ~x), x, y),
        (x & y, x | y, x ^ y, ~x),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_shifts_past_the_width_move_every_bit_out(run, dtype):
    bits = np.dtype(dtype).itemsize * 8
    counts = np.array([0, 1, 3, bits - 1, bits, bits + 1, 100], dtype)
    for value in (5, 1, *(() if dtype[0] == "u" else (-5,))):
        x = np.full(counts.shape, value, dtype)
        left, right = run(lambda g, x, n: (x << n, x >> n), x, counts)
        shifted = [int(value) << int(c) if c < bits else 0 for c in counts]
        np.testing.assert_array_equal(
            left, np.array(shifted, object).astype(np.int64).astype(dtype) if bits < 64 else left
        )
        np.testing.assert_array_equal(right, [int(value) >> int(c) for c in counts])
        assert (left[counts >= bits] == 0).all()


def test_where_promotes_and_broadcasts(run):
    condition = np.array([[True], [False]])
    x, y = np.array([1, 2, 3], np.int8), np.float16(0.5)
    got = run(lambda g, c, x, y: g.where(c, x, y), condition, x, y)
    np.testing.assert_array_equal(got, np.where(condition, x.astype(np.float16), y), strict=True)


@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("target", ALL_DTYPES, ids=str)
def test_casts_of_what_fits_are_exact(run, source, target):
    x = np.array([0, 1, 2, 100], np.int64).astype(source.numpy)
    got = run(lambda g, x: g.cast(x, target) if source != target else x, x)
    assert got.dtype == target.numpy
    np.testing.assert_array_equal(got.astype(float), x.astype(target.numpy).astype(float))


@pytest.mark.parametrize("source", ["float16", "float32", "float64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("target", ["int8", "int32", "int64", "uint8", "uint64"])
def test_casts_from_floats_truncate_and_saturate(run, source, target):
    with np.errstate(over="ignore"):
        x = np.array([1.9, -1.9, 1e30, -1e30, np.inf, -np.inf, np.nan, -0.5]).astype(source)
    info = np.iinfo(target)
    wanted = [int(min(max(v, info.min), info.max)) if abs(v) < 1e9 else None for v in [1.9, -1.9]]
    wanted += [info.max, info.min, info.max, info.min, 0, 0]
    got = run(lambda g, x: g.cast(x, target), x)
    np.testing.assert_array_equal(got, np.array(wanted, object).astype(target), strict=True)


def test_casts_between_integers_wrap(run):
    x = np.array([300, -1, 2**40 + 5], np.int64)
    np.testing.assert_array_equal(run(lambda g, x: g.cast(x, "uint8"), x), [44, 255, 5])
    np.testing.assert_array_equal(run(lambda g, x: g.cast(x, "bool"), x), [True, True, True])


def test_float64_becomes_bfloat16_in_one_rounding(run):
    # Halfway between two bfloat16 numbers, and a little more: rounding by way of float32 loses it.
    x = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40, 1 + 2**-8, -(1 + 2**-8 + 2**-40)])
    got = run(lambda g, x: g.cast(x, "bfloat16"), x).astype(float)
    np.testing.assert_array_equal(got, [1 + 2**-7, 1, 1, -(1 + 2**-7)])


def test_a_cast_to_the_same_dtype_is_no_node():
    from ostinato.ops.builder import Graph

    g = Graph()
    x = g.input("x", (2,))
    assert g.cast(x, "float32") is x


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_clip(run, dtype):
    x = np.array([0, 3, 5, 9], dtype)
    both, low, high, none = run(
        lambda g, x: (g.clip(x, 2, 6), g.clip(x, 4), g.clip(x, max=4), g.clip(x)), x
    )
    np.testing.assert_array_equal(both, np.clip(x, 2, 6), strict=True)
    np.testing.assert_array_equal(low, np.maximum(x, 4).astype(dtype), strict=True)
    np.testing.assert_array_equal(high, np.minimum(x, 4).astype(dtype), strict=True)
    np.testing.assert_array_equal(none, x, strict=True)


def test_clip_of_integers_beyond_their_range_and_by_values(run):
    x = np.array([-3, 100], np.int8)
    np.testing.assert_array_equal(run(lambda g, x: g.clip(x, -1000, 1000), x), x)
    got = run(lambda g, x, low: g.clip(x, low, np.int8(50)), x, np.array([0, 7], np.int8))
    np.testing.assert_array_equal(got, [0, 50])
    assert np.isnan(run(lambda g, x: g.clip(x, 0, 1), np.float32("nan")))


def test_bools_have_no_limits():
    graph = ost.Graph()
    with pytest.raises(ost.GraphError, match=r"clip\(.*numeric"):
        graph.clip(graph.input("x", (2,), "bool"), 0, 1)

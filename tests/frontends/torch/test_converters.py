"""Converters on programs written by hand: PyTorch's semantics where NumPy's or ours differ."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.frontends.torch.assembly import build_graph
from ostinato.frontends.torch.converters import converters, find_converter
from ostinato.frontends.torch.program import (
    USER_INPUT,
    USER_OUTPUT,
    InputSpec,
    Named,
    OutputSpec,
    Program,
    ProgramNode,
    Ref,
    TensorMeta,
)


def run(target: str, result: Any, *args: Any, **kwargs: Any) -> np.ndarray:
    """The result of one op on arrays and numbers, whose type is that of ``result``."""
    arrays: dict[str, np.ndarray] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays[name := f"x{len(arrays)}"] = value
            return Ref(name)
        return tuple(map(argument, value)) if isinstance(value, list) else value

    given = tuple(map(argument, args))
    named = {name: argument(value) for name, value in kwargs.items()}
    metas = tuple(_meta(part) for part in (result if isinstance(result, tuple) else (result,)))
    nodes = [ProgramNode("n", target, given, named, ("n",), metas)]
    output = Ref("n")
    if len(metas) > 1:
        nodes.append(
            ProgramNode("first", "_operator.getitem", (Ref("n"), 0), {}, ("first",), metas[:1])
        )
        output = Ref("first")
    inputs = tuple(InputSpec(n, USER_INPUT, _meta(array), n) for n, array in arrays.items())
    program = Program("test", inputs, tuple(nodes), (OutputSpec(output, USER_OUTPUT, "y"),), {}, {})
    graph = build_graph(program, "test")
    (found,) = ost.Session("cpu", threads=1).compile(graph).run(arrays)
    return found


def _meta(array: np.ndarray) -> TensorMeta:
    strides = tuple(s // array.itemsize for s in array.strides)
    return TensorMeta(array.dtype.name, array.shape, strides)


def check(target: str, expected: Any, *args: Any, **kwargs: Any) -> None:
    expected = np.asarray(expected)
    found = run(target, expected, *args, **kwargs)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if expected.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


# -- division -----------------------------------------------------------------------------------


def test_integers_are_divided_towards_zero_or_down():
    a, b = i64(7, -7, 7, -7, 2**62 + 1), i64(2, 2, -2, -2, 3)
    check("aten.div.Tensor_mode", i64(3, -3, -3, 3, (2**62 + 1) // 3), a, b, rounding_mode="trunc")
    check("aten.div.Tensor_mode", i64(3, -4, -4, 3, (2**62 + 1) // 3), a, b, rounding_mode="floor")
    check("aten.remainder.Tensor", i64(1, 1, -1, -1, (2**62 + 1) % 3), a, b)
    check("aten.fmod.Tensor", i64(1, -1, 1, -1, (2**62 + 1) % 3), a, b)


def test_the_quotient_of_integers_is_float32():
    check("aten.div.Tensor", f32(0.5, -1.5), i64(1, -3), i64(2, 2))


def test_floats_are_divided_and_rounded_down():
    a, b = f32(1.0, -1.0, 0.0, 5.0, -0.0), f32(0.1, 0.1, -3.0, math.inf, 2.0)
    # 1.0 holds 9 times the float32 next to 0.1, which is a little greater.
    check("aten.div.Tensor_mode", f32(9, -10, -0.0, 0, -0.0), a, b, rounding_mode="floor")


# -- dtypes ---------------------------------------------------------------------------------------


def test_bools_add_by_or_and_multiply_by_and():
    a, b = np.array([True, True, False]), np.array([True, False, False])
    check("aten.add.Tensor", a | b, a, b)
    check("aten.mul.Tensor", a & b, a, b)
    check("aten.add.Tensor", a, a, b, alpha=False)


def test_a_number_does_not_widen_a_tensor():
    check("aten.add.Tensor", np.array([3, 4], np.int8), np.array([1, 2], np.int8), 2)
    check("aten.add.Tensor", f32(1.5, 2.5), i64(1, 2), 0.5)
    check("aten.mul.Tensor", np.array([255], np.uint8), np.array([1], np.uint8), -1)


def test_a_tensor_without_dims_does_not_widen_one_with_dims():
    check("aten.eq.Tensor", np.array([True]), f32(0.1), np.array(np.float32(0.1), np.float64))


def test_floats_become_narrow_integers_by_wrapping():
    check(
        "aten.to.dtype",
        np.array([255, 0, 44], np.uint8),
        f32(-1.0, 256.0, 300.0),
        Named("dtype", "uint8"),
    )


def test_means_of_integers_are_refused_by_pytorch_but_sums_widen():
    check("aten.sum.default", np.int64(300), np.array([200, 100], np.uint8))
    check("aten.sum.dim_IntList", i64(2), np.array([[True, True]]), [1])
    check("aten.any.default", np.array(1, np.uint8), np.array([2, 0], np.uint8))


# -- special values -------------------------------------------------------------------------------


def test_nan_is_the_extreme():
    x = f32(1.0, math.nan, 3.0)
    assert np.isnan(run("aten.max.dim", (np.float32(0), np.int64(0)), x, 0))
    assert run("aten.argmax.default", np.int64(0), x) == 1
    check("aten.fmax.default", f32(1.0, 2.0, 3.0), x, f32(0.0, 2.0, math.nan))
    check("aten.clamp.default", f32(1.0, math.nan, 2.0), x, None, 2)


def test_signs_of_zero():
    check("aten.signbit.default", np.array([True, False]), f32(-0.0, 0.0))
    check("aten.copysign.Tensor", f32(-2.0, 2.0), f32(2.0, -2.0), f32(-0.0, 0.0))
    check("aten.neg.default", f32(-0.0), f32(0.0))


def test_the_norm_of_order_0_counts():
    check("aten.linalg_vector_norm.default", np.float32(2), f32(0.0, -3.0, math.nan), 0)


def test_the_variance_of_one_element_is_nan():
    check("aten.var.correction", np.float32(math.nan), f32(4.0), [0])
    check("aten.var.correction", np.float32(math.nan), np.array(4, np.float32), None)
    check("aten.var.correction", np.float32(0), f32(4.0), [0], correction=0)


def test_a_row_without_a_key_gives_zeros():
    q = np.ones((1, 1, 2, 4), np.float32)
    mask = np.array([[True, True], [False, False]])
    expected = np.concatenate([q[:, :, :1], np.zeros((1, 1, 1, 4), np.float32)], axis=2)
    check("aten.scaled_dot_product_attention.default", expected, q, q, q, mask)


def test_causal_masks_count_from_the_first_key():
    q, k = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    v = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    expected = np.stack([v[0, 0, 0], (v[0, 0, 0] + v[0, 0, 1]) / 2])[None, None]
    check("aten.scaled_dot_product_attention.default", expected, q, k, v, None, 0.0, True)


# -- indices --------------------------------------------------------------------------------------


def test_indices_may_count_from_the_end():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    check("aten.index.Tensor", x[[-1, 0], [1, -2]], x, [i64(-1, 0), i64(1, -2)])
    check("aten.index_select.default", x[:, [3, 0]], x, 1, i64(3, 0))
    put = x.copy()
    put[[-1, 0], [1, -2]] = [100, 200]
    check("aten.index_put.default", put, x, [i64(-1, 0), i64(1, -2)], f32(100, 200))


def test_indexed_axes_that_are_apart_come_first():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    check("aten.index.Tensor", x[[1, 0, 1], :, [0, 2, 3]], x, [i64(1, 0, 1), None, i64(0, 2, 3)])
    check("aten.index.Tensor", x[:, [1, 0], [0, 2]], x, [None, i64(1, 0), i64(0, 2)])


def test_indices_may_be_shorter_than_the_tensor():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    ids = np.array([[2, 0]], np.int64)
    check("aten.gather.default", np.array([[8, 1]], np.float32), x, 0, ids)
    written = x.copy()
    written[2, 0], written[0, 1] = -1, -2
    check("aten.scatter.src", written, x, 0, ids, np.array([[-1, -2, -3]], np.float32))


def test_slices_are_clamped():
    x = np.arange(5, dtype=np.float32)
    check("aten.slice.Tensor", x[-3:], x, 0, -3, 2**63 - 1)
    check("aten.slice.Tensor", x[4:2], x, 0, 4, 2)
    check("aten.slice.Tensor", x[1:100:3], x, 0, 1, 100, 3)


# -- windows --------------------------------------------------------------------------------------


def test_the_divisor_of_a_mean():
    x = np.ones((1, 1, 3), np.float32)
    edge = np.array([[[2 / 3, 1, 2 / 3]]], np.float32)
    check("aten.avg_pool1d.default", edge, x, [3], [1], [1])
    check("aten.avg_pool1d.default", np.ones_like(x), x, [3], [1], [1], False, False)
    check("aten.avg_pool1d.default", np.ones((1, 1, 2), np.float32), x, [2], [2], [0], True)
    square = np.ones((1, 1, 2, 2), np.float32)
    four = np.full((1, 1, 1, 1), 0.4, np.float32)
    check("aten.avg_pool2d.default", four, square, [2, 2], [2, 2], [0, 0], False, True, 10)


# -- the tables -----------------------------------------------------------------------------------


def test_an_overload_comes_before_its_op():
    assert find_converter("aten.max.dim") is not find_converter("aten.max.default")
    assert find_converter("aten.add.Scalar") is find_converter("aten.add.Tensor")
    assert find_converter("aten.no_such_op.default") is None
    assert len(converters()) > 500


def test_complex_operands_have_a_table_of_their_own():
    assert find_converter("aten.mul.Tensor", of_complex=True) is not None
    assert find_converter("aten.floor.default", of_complex=True) is None


def test_what_has_no_converter_is_named():
    with pytest.raises(ost.UnsupportedOpError, match=r"'n' \(aten.no_such_op.default\)"):
        run("aten.no_such_op.default", f32(1.0), f32(1.0))


def test_what_a_bag_keeps_for_its_gradient_is_not_computed():
    table, ids = np.arange(12, dtype=np.float32).reshape(4, 3), i64(0, 3, 1)
    offsets, results = i64(0, 2), (np.zeros((2, 3), np.float32), ids, ids[:2], ids[:2])
    found = run("aten.embedding_bag.default", results, table, ids, offsets)
    np.testing.assert_array_equal(found, [table[0] + table[3], table[1]])


# -- 8-bit floats -------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scaled_products_of_8_bit_floats(rows: bool, with_bias: bool) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0, 8, (3, 16)).astype(ml_dtypes.float8_e4m3fn)
    b = rng.normal(0, 8, (16, 32)).astype(ml_dtypes.float8_e5m2)
    scale_a = rng.uniform(0.1, 1, (3, 1) if rows else ()).astype(np.float32)
    scale_b = rng.uniform(0.1, 1, (1, 32) if rows else (1,)).astype(np.float32)
    bias = rng.normal(0, 8, (32,)).astype(ml_dtypes.bfloat16)
    wide = a.astype(np.float32) @ b.astype(np.float32) * np.asarray(scale_a) * scale_b
    wide = wide + bias.astype(np.float32) if with_bias else wide
    expected = wide.astype(ml_dtypes.bfloat16)
    given = (a, b, np.asarray(scale_a), scale_b, *([bias] if with_bias else []))
    found = run("aten._scaled_mm.default", expected, *given, out_dtype=None)
    assert found.dtype == expected.dtype
    distance = np.abs(found.astype(np.float32) - expected.astype(np.float32))
    assert (distance <= 2.0**-7 * np.abs(expected.astype(np.float32)) + 1e-5).all()

"""Affine quantisation against its definition, and the operands that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import GraphError

Array = np.ndarray[Any, Any]

BYTES = ("uint8", "int8")
USUAL = ("uint8", "int8")  # of activations and weights: with these, every shape is tried


def random_bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def agree(g: ost.Graph, data: dict[str, Array]) -> list[Array]:
    """The oracle's results, which the CPU's equal, optimised or not."""
    wanted = ost.reference.evaluate(g, data)
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize, verify=True)
        found = ost.Session("cpu", threads=2).compile(g, options=options).run(data)
        for actual, exact in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(actual, exact)
    return list(wanted)


def test_quantize_saturates_and_rounds_ties_to_even() -> None:
    x = np.array([-1e30, -300, -0.75, -0.25, 0, 0.25, 0.75, 1.25, 300, 1e30, np.nan], np.float32)
    g = ost.Graph("quantize")
    value = g.input("x", x.shape)
    g.set_outputs([
        g.quantize(value, np.float32(0.5), np.uint8(3)),
        g.quantize(value, np.float32(0.5), np.int8(-3)),
        g.quantize(value, np.float32(0.5), np.int16(0)),
    ])  # fmt: skip
    unsigned, signed, wide = agree(g, {"x": x})
    np.testing.assert_array_equal(unsigned, [0, 0, 1, 3, 3, 3, 5, 5, 255, 255, 0])
    np.testing.assert_array_equal(signed, [-128, -128, -5, -3, -3, -3, -1, -1, 127, 127, 0])
    np.testing.assert_array_equal(wide[[0, 1, -2]], [-32768, -600, 32767])


def test_dequantize_and_requantize() -> None:
    q = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    sums = np.array([-(2**31), -5, 0, 5, 2**31 - 1, 250], np.int32)
    g = ost.Graph("numbers")
    scale = g.constant(np.array([[0.5], [0.25]], np.float32))
    g.set_outputs([
        g.dequantize(g.input("q", q.shape, "int8"), scale, np.int8(-128)),
        g.requantize(g.input("sums", sums.shape, "int32"), np.float32(0.5), np.uint8(7)),
    ])  # fmt: skip
    numbers, codes = agree(g, {"q": q, "sums": sums})
    np.testing.assert_array_equal(numbers, (q + 128.0) * [[0.5], [0.25]])
    np.testing.assert_array_equal(codes, [0, 5, 7, 9, 255, 132])


@pytest.mark.parametrize(("left", "right"), [*product(BYTES, BYTES)])
def test_matmuls_with_zero_points(left: str, right: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [((5, 7), (7, 3)), ((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)),
              ((2, 1, 5, 7), (3, 7, 4)), ((3, 0), (0, 2)), ((0, 3), (3, 2))]  # fmt: skip
    for a_shape, b_shape in shapes[:: 1 if (left, right) == USUAL else 4]:
        a, b = random_bytes(rng, a_shape, left), random_bytes(rng, b_shape, right)
        rows = (*a_shape[:-1], 1)
        columns = (*b_shape[:-2], 1, b_shape[-1]) if len(b_shape) > 1 else (1,)
        for zeros in (((), ()), (rows, columns)):
            a_zero, b_zero = random_bytes(rng, zeros[0], left), random_bytes(rng, zeros[1], right)
            g = ost.Graph("matmul")
            operands = g.input("a", a.shape, left), g.input("b", b.shape, right)
            g.set_outputs([
                g.affine_matmul(*operands, g.constant(a_zero), g.constant(b_zero)),
                g.affine_matmul(*operands, g.input("z", a_zero.shape, left), 3),
                g.affine_matmul(*operands),
            ])  # fmt: skip
            results = agree(g, {"a": a, "b": b, "z": a_zero})
            wide = a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero
            np.testing.assert_array_equal(results[0], wide[0] @ wide[1])
            np.testing.assert_array_equal(results[1], wide[0] @ (b.astype(np.int64) - 3))


#: Channels, filters, groups, kernel, stride, padding, dilation.
CONVOLUTIONS: list[tuple[Any, ...]] = [
    (3, 5, 1, (3, 3), 1, 1, 1), (17, 16, 1, (1, 1), 2, 0, 1), (16, 16, 16, (3, 3), 2, 1, 1),
    (24, 12, 4, (2, 3), 1, [(1, 0), (2, 1)], 2), (64, 6, 2, (1, 1), 1, 0, 1),
    (5, 4, 1, (5,), 1, 2, 1), (1, 7, 1, (7, 7), 3, 3, 1), (2, 3, 1, (2, 2, 2), 1, 1, 1),
    (20, 40, 20, (3, 3), 1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), [*product(BYTES, BYTES)])
def test_convolutions_with_zero_points(left: str, right: str) -> None:
    rng = np.random.default_rng(1)
    some = CONVOLUTIONS[:: 1 if (left, right) == USUAL else 3]
    for channels, filters, groups, kernel, stride, padding, dilation in some:
        x = random_bytes(rng, (2, channels, *(9, 8, 5)[: len(kernel)]), left)
        w = random_bytes(rng, (filters, channels // groups, *kernel), right)
        x_zero, w_zero = random_bytes(rng, (), left), random_bytes(rng, (filters,), right)
        g = ost.Graph("conv")
        operands = g.input("x", x.shape, left), g.param("w", w.shape, right, value=w)
        geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        g.set_outputs([
            g.affine_conv(*operands, g.constant(x_zero), g.constant(w_zero), **geometry),
            g.affine_conv(*operands, g.input("z", (), left), 3, **geometry),
            g.affine_conv(*operands, **geometry),
            g.integer_conv(*operands, **geometry),
        ])  # fmt: skip
        results = agree(g, {"x": x, "z": x_zero})
        np.testing.assert_array_equal(results[2], results[3])


def test_symbolic_sizes() -> None:
    rng = np.random.default_rng(2)
    n, s = ost.Variable("n", 1, 9), ost.Variable("s", 1, 12)
    g = ost.Graph("sizes")
    x = g.input("x", (n, 16, s, 7), "uint8")
    a = g.input("a", (n, 4, s), "int8")
    w = g.param("w", (16, 16, 3, 3), "int8", value=random_bytes(rng, (16, 16, 3, 3), "int8"))
    b = g.input("b", (s, 5), "uint8")
    g.set_outputs([g.affine_conv(x, w, 100, padding=1), g.affine_matmul(a, b, -7, 130)])
    compiled = ost.Session("cpu", threads=2).compile(g)
    for size, length in ((1, 1), (3, 12), (9, 5)):
        data = {
            "x": random_bytes(rng, (size, 16, length, 7), "uint8"),
            "a": random_bytes(rng, (size, 4, length), "int8"),
            "b": random_bytes(rng, (length, 5), "uint8"),
        }
        for actual, exact in zip(compiled.run(data), ost.reference.evaluate(g, data), strict=True):
            np.testing.assert_array_equal(actual, exact)


G = ost.Graph
REFUSED: dict[str, Callable[[G], Any]] = {
    "x is of floats": lambda g: g.quantize(g.input("x", (2,), "int8"), 1.0, np.uint8(0)),
    "scale is of floats": lambda g: g.dequantize(g.input("x", (2,), "int8"), 1, np.int8(0)),
    "zero_point is of integers": lambda g: g.quantize(g.input("x", (2,)), 1.0, 0.0),
    "q is of integers": lambda g: g.dequantize(g.input("x", (2,)), 1.0, np.int8(0)),
    "do not broadcast to": lambda g: g.quantize(
        g.input("x", (2,)), np.ones((3, 2), np.float32), np.uint8(0)
    ),
    "sums are int32": lambda g: g.requantize(g.input("x", (2,), "int8"), 1.0, np.uint8(0)),
    "and its zero point int8": lambda g: g.affine_matmul(
        g.input("a", (2, 3), "uint8"), g.input("b", (3, 2), "int8"), np.int8(1)
    ),
    "the zero point 300 does not fit uint8": lambda g: g.affine_matmul(
        g.input("a", (2, 3), "uint8"), g.input("b", (3, 2), "int8"), 300
    ),
    "has no element for each slice": lambda g: g.affine_matmul(
        g.input("a", (2, 3), "uint8"), g.input("b", (3, 2), "int8"), np.ones((1, 3), np.uint8)
    ),
    "x_zero is a scalar": lambda g: g.affine_conv(
        g.input("x", (1, 2, 3, 3), "uint8"), g.input("w", (4, 2, 3, 3), "int8"),
        np.ones(2, np.uint8),
    ),
    "w_zero is a scalar or has 4 elements": lambda g: g.affine_conv(
        g.input("x", (1, 2, 3, 3), "uint8"), g.input("w", (4, 2, 3, 3), "int8"), 0,
        np.ones(2, np.int8),
    ),
    "expected int8 or uint8, got float32": lambda g: g.integer_conv(
        g.input("x", (1, 2, 3, 3)), g.input("w", (4, 2, 3, 3), "int8")
    ),
    "x has 2 channels, the weight takes 3": lambda g: g.integer_conv(
        g.input("x", (1, 2, 3, 3), "uint8"), g.input("w", (4, 3, 3, 3), "int8")
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(GraphError) as caught:
        REFUSED[message](ost.Graph("refused"))
    assert message in str(caught.value)

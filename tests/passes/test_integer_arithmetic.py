"""Graphs in which quantisation is spelled out, taken back to integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import BaseGraph, Value
from ostinato.passes.base import PassReport
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.integer_arithmetic import IntegerArithmetic

Array = np.ndarray[Any, Any]

SCALE, ZERO = np.float32(0.05), np.uint8(120)


def rewritten(g: ost.Graph) -> BaseGraph:
    report = PassReport()
    return DeadCode().run(IntegerArithmetic().run(g, report), report)


def ops(graph: BaseGraph) -> list[str]:
    """The ops of a graph in order, leaves aside."""
    return [node.op.name for node in graph.nodes if node.inputs]


def weights(g: ost.Graph, shape: tuple[int, ...], axis: int, dtype: str = "int8") -> Value:
    """Dequantised bytes with a scale for each slice along ``axis``."""
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    codes = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    line = [1] * len(shape)
    line[axis] = shape[axis]
    scale = rng.uniform(0.01, 0.02, line).astype(np.float32)
    zero_point = np.zeros(line, dtype)
    return g.dequantize(g.param("w", shape, dtype, value=codes), g.constant(scale), zero_point)


def same_results(g: ost.Graph, steps: int = 1) -> None:
    """The rewritten graph computes what ``g`` does, to so many steps of its integers."""
    rng = np.random.default_rng(1)
    data: dict[str, Array] = {}
    for name, value in g.inputs.items():
        info = np.iinfo(value.dtype.numpy)
        data[name] = rng.integers(info.min, info.max, value.shape, value.dtype.numpy, endpoint=True)
    literal = ost.reference.evaluate(g, data)
    for exact, actual in zip(literal, ost.reference.evaluate(rewritten(g), data), strict=True):
        assert actual.dtype == exact.dtype
        if exact.dtype.kind == "f":
            np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=1e-5)
        else:
            assert np.abs(actual.astype(int) - exact.astype(int)).max() <= steps


def test_a_convolution_between_quantisations_is_one_of_integers() -> None:
    g = ost.Graph("conv")
    x = g.dequantize(g.input("x", (1, 4, 6, 6), "uint8"), SCALE, ZERO)
    bias = g.dequantize(g.constant(np.arange(5, dtype=np.int32)), np.float32(1.0), np.int32(0))
    y = g.relu(g.conv(x, weights(g, (5, 4, 3, 3), 0), bias, padding=1))
    g.set_outputs([g.quantize(y, np.float32(0.3), np.uint8(3))])
    found = ops(rewritten(g))
    assert "affine_conv" in found
    assert "conv" not in found
    same_results(g)


def test_a_bias_of_the_same_scale_joins_the_sums() -> None:
    g = ost.Graph("bias")
    x = g.dequantize(g.input("x", (3, 8), "uint8"), SCALE, ZERO)
    w = g.dequantize(g.param("w", (8, 5), "int8", value=np.ones((8, 5), np.int8)), 0.5, np.int8(0))
    b = g.dequantize(g.constant(np.arange(5, dtype=np.int32)), SCALE * np.float32(0.5), np.int32(0))
    g.set_outputs([g.quantize(g.add(g.matmul(x, w), b), np.float32(0.1), np.int8(-3))])
    assert ops(rewritten(g)) == ["affine_matmul", "add", "requantize", "bitwise_xor", "cast"]
    same_results(g)


@pytest.mark.parametrize("zero_point", [np.uint8(7), np.int8(-128), np.int8(5)])
def test_limits_become_limits_of_codes(zero_point: Any) -> None:
    g = ost.Graph("limits")
    x = g.dequantize(g.input("x", (3, 8), "uint8"), SCALE, ZERO)
    y = g.matmul(x, weights(g, (8, 5), 1))
    limited = (g.relu(y), g.relu6(y), g.clip(y, -1.0, None), g.clip(y, None, 2.5))
    g.set_outputs([g.quantize(value, np.float32(0.03), zero_point) for value in limited])
    found = ops(rewritten(g))
    assert found.count("requantize") == 4
    assert found.count("affine_matmul") == 1
    same_results(g)


def test_movement_is_of_bytes() -> None:
    g = ost.Graph("moves")
    q = g.input("x", (2, 4, 6, 6), "int8")
    x = g.dequantize(q, SCALE, np.int8(-5))
    other = g.dequantize(g.input("o", (2, 4, 6, 6), "int8"), SCALE, np.int8(-5))
    moved = [
        g.max_pool(x, 2), g.reshape(x, (8, 36)), g.permute_dims(x, (0, 2, 3, 1)), x[:, 1:3],
        g.pad(x, ((0, 0), (0, 0), (1, 1), (2, 0))), g.concat([x, other], axis=1),
    ]  # fmt: skip
    g.set_outputs([g.quantize(value, SCALE, np.int8(-5)) for value in moved])
    found = ops(rewritten(g))
    assert {"quantize", "dequantize"}.isdisjoint(found)
    same_results(g, steps=0)


def test_transposed_weights_keep_a_scale_for_each_column() -> None:
    g = ost.Graph("transposed")
    x = g.dequantize(g.input("x", (3, 8), "uint8"), SCALE, ZERO)
    g.set_outputs([g.matmul(x, g.permute_dims(weights(g, (5, 8), 0), (1, 0)))])
    assert "affine_matmul" in ops(rewritten(g))
    same_results(g)


def test_float_operands_other_scales_and_nans_stay_as_they_are() -> None:
    g = ost.Graph("floats")
    x = g.input("x", (3, 8))
    by_row = g.dequantize(
        g.param("w", (8, 5), "int8"), g.constant(np.ones((8, 1), np.float32)), np.int8(0)
    )
    q = g.dequantize(g.input("q", (3, 8), "uint8"), SCALE, ZERO)
    g.set_outputs([g.matmul(q, by_row),
                   g.quantize(x, SCALE, np.int8(3))])  # fmt: skip
    assert ops(rewritten(g)) == ops(g)


def test_residuals_are_read_as_bytes() -> None:
    """A value that the next convolution reads as bytes is dequantised where the branches meet."""
    g = ost.Graph("residual")
    w = g.param("w", (16, 16, 1, 1), "int8", value=np.ones((16, 16, 1, 1), np.int8))
    number = np.float32(0.001)

    def conv(x: Value) -> Value:
        numbers = g.dequantize(x, SCALE, ZERO)
        return g.quantize(g.conv(numbers, g.dequantize(w, number, np.int8(0))), SCALE, ZERO)

    first = conv(g.input("x", (1, 16, 8, 8), "uint8"))
    branch = g.dequantize(conv(first), SCALE, ZERO)
    g.set_outputs([g.quantize(g.add(branch, g.dequantize(first, SCALE, ZERO)), SCALE, ZERO)])
    plan = ost.Session("cpu", threads=1).compile(g).plan
    loops = [kernel.loops for kernel in plan.kernels if "gemm" in kernel.loops]
    assert len(loops) == 2
    assert not any(": f32, written" in text for text in loops)
    same_results(g)

"""Depthwise convolutions, and sums over positions of images with channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from tests.pairwise import every_second

Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


OPTIMISED = ost.CompileOptions()
BOTH = (OPTIMISED, ost.CompileOptions(optimize=False))


def check(
    session: ost.Session,
    graph: ost.Graph,
    tolerance: float = 2e-5,
    options: Sequence[ost.CompileOptions] = BOTH,
) -> ost.CompiledGraph:
    """``graph``, optimised and not, against the oracle; returns the optimised one."""
    random = np.random.default_rng(0)
    arrays: Arrays = {
        name: random.standard_normal(value.shape).astype(value.dtype.numpy)  # type: ignore[arg-type]
        for name, value in graph.inputs.items()
    }
    wanted = reference.evaluate(graph, arrays)
    compiled = [session.compile(graph, options=each) for each in options]
    for program in compiled:
        for found, exact in zip(program.run(arrays), wanted, strict=True):
            atol = tolerance * np.abs(exact).max(initial=1.0)
            np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0, atol=atol)
    return compiled[0]


def depthwise(
    channels: int, height: int, width: int, size: int, dtype: str = "float32", **attrs: Any
) -> ost.Graph:
    """A 1x1 convolution, which makes channels last worth it, then a depthwise one."""
    g = ost.Graph("depthwise")
    x = g.input("x", (2, 8, height, width), dtype)
    wide = g.relu(g.conv(x, g.input("v", (channels, 8, 1, 1), dtype)))
    w = g.input("w", (channels, 1, size, size), dtype)
    y = g.conv(wide, w, g.input("b", (channels,), dtype), groups=channels, **attrs)
    g.set_outputs({"y": g.conv(g.hard_swish(y), g.input("u", (16, channels, 1, 1), dtype))})
    return g


def sums_together(compiled: ost.CompiledGraph) -> int:
    """The number of neighbouring results that the depthwise kernel computes at a time."""
    return max(str(kernel.loops).count("fused sum") for kernel in compiled.plan.kernels)


@pytest.mark.parametrize(
    ("width", "window"), every_second([1, 3, 5, 7, 13, 14, 17, 40], [(3, 1), (3, 2), (5, 1)])
)
def test_widths(session: ost.Session, width: int, window: tuple[int, int]) -> None:
    size, stride = window
    graph = depthwise(35, 5, width, size, stride=stride, padding=size // 2)
    found = sums_together(check(session, graph, options=BOTH if width in (3, 14) else [OPTIMISED]))
    columns = (width - 1) // stride + 1
    assert columns % found == 0
    if columns in (7, 8, 14, 40):
        wide = TargetSpec.host().vector_bytes == 64  # 32 registers, not 16
        assert found in ((7, 8) if wide or columns % 4 else (4,))


@pytest.mark.parametrize(("channels", "size"), every_second([16, 17, 127], [1, 2, 7, 9]))
def test_channels_and_windows(session: ost.Session, channels: int, size: int) -> None:
    check(session, depthwise(channels, 9, 12, size, padding=size // 2))


def test_windows_of_more_columns_than_there_are_registers(session):
    check(session, depthwise(8, 5, 9, 35, padding=17))


@pytest.mark.parametrize(
    "attrs",
    [
        {"stride": (1, 2), "padding": 1},
        {"stride": (2, 1), "padding": 1},
        {"stride": 3},
        {"dilation": 2, "padding": 2},
        {"dilation": (1, 3), "padding": (1, 3)},
    ],
)
def test_strides_and_dilations(session: ost.Session, attrs: dict[str, Any]) -> None:
    check(session, depthwise(24, 11, 14, 3, **attrs))


@pytest.mark.parametrize("dtype, tolerance", [("float16", 2e-2), ("bfloat16", 2e-1)])
def test_narrow_floats(session: ost.Session, dtype: str, tolerance: float) -> None:
    check(session, depthwise(33, 6, 8, 3, dtype, padding=1), tolerance)


def test_float64(session: ost.Session) -> None:
    check(session, depthwise(33, 6, 8, 3, "float64", padding=1), 1e-12)


def test_several_filters_for_a_channel(session: ost.Session) -> None:
    g = ost.Graph("multiplier")
    x = g.relu(g.conv(g.input("x", (1, 8, 6, 8)), g.input("v", (24, 8, 1, 1))))
    y = g.conv(x, g.input("w", (48, 1, 3, 3)), groups=24, padding=1)
    g.set_outputs({"y": g.conv(y, g.input("u", (16, 48, 1, 1)))})
    check(session, g)


def test_a_residual_is_read_before_it_is_overwritten(session: ost.Session) -> None:
    g = ost.Graph("residual")
    x = g.relu(g.conv(g.input("x", (1, 8, 7, 14)), g.input("v", (32, 8, 1, 1))))
    y = g.conv(x, g.input("w", (32, 1, 3, 3)), groups=32, padding=1) + x
    g.set_outputs({"y": g.conv(g.relu(y), g.input("u", (16, 32, 1, 1)))})
    check(session, g)


@pytest.mark.parametrize("channels, height, width", [(16, 1, 7), (35, 3, 5), (300, 9, 8)])
@pytest.mark.parametrize("op", ["mean", "sum", "max"])
def test_reductions_over_positions(
    session: ost.Session, channels: int, height: int, width: int, op: str
) -> None:
    g = ost.Graph("excite")
    x = g.conv(g.input("x", (2, 8, height, width)), g.input("v", (channels, 8, 1, 1)))
    y = g.conv(g.relu(x), g.input("w", (channels, 1, 3, 3)), groups=channels, padding=1)
    means = getattr(g, op)(y, axis=(2, 3), keepdims=True)
    factor = g.sigmoid(g.conv(means, g.input("s", (channels, channels, 1, 1))))
    g.set_outputs({"y": g.conv(y * factor, g.input("u", (16, channels, 1, 1)))})
    loops = [str(kernel.loops) for kernel in check(session, g).plan.kernels]
    reduction = next(text for text in loops if f"= {'max' if op == 'max' else 'sum'} f32" in text)
    if channels == 300:  # the others are too small for channels last to be worth it
        assert "inner" in reduction


@pytest.mark.parametrize(
    ("channels", "dtype", "apart"),
    [(128, "float32", 144), (256, "float32", 272), (256, "bfloat16", 288), (96, "float32", 96)],
)
def test_weights_of_a_window_are_in_several_sets_of_a_cache(
    session: ost.Session, channels: int, dtype: str, apart: int
) -> None:
    graph = depthwise(channels, 5, 6, 5, dtype, padding=2)
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    found = check(session, graph, tolerance, options=[OPTIMISED])
    (loops,) = (str(k.loops) for k in found.plan.kernels if "fused sum" in str(k.loops))
    assert f"{apart}*" in loops

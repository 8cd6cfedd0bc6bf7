"""Matmuls of dequantised 8-bit floats become those of the floats themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType

Array = np.ndarray[Any, Any]
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def widened(g: ost.Graph, q: ost.Value, scale: ost.Value | Array | None) -> ost.Value:
    wide = g.cast(q, "float32")
    return wide if scale is None else wide * scale


def agreed(graph: ost.Graph, data: dict[str, Array]) -> str:
    """The report, after checking that optimised and literal results are near the oracle's."""
    (expected,) = ost.reference.evaluate(graph, data)
    session = ost.Session("cpu", threads=1)
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize, verify=True)
        compiled = session.compile(graph, options=options)
        (found,) = compiled.run(data)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4 * np.abs(expected).max())
    return session.compile(graph).explain()


@pytest.mark.parametrize("x_scale", [None, (), (1,), (1, 1), (3, 1)])
@pytest.mark.parametrize(
    ("w_scale", "turned"),
    [(None, True), ((), False), ((7,), False), ((1, 7), False), ((7, 1), True)],
)
def test_scales_of_numbers_rows_and_columns(
    x_scale: tuple[int, ...] | None,
    w_scale: tuple[int, ...] | None,
    turned: bool,
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5)).astype(DType.parse(E4M3).numpy)
    w = rng.standard_normal((7, 5) if turned else (5, 7)).astype(DType.parse(E5M2).numpy)
    scales = [
        None if shape is None else np.asarray(rng.uniform(0.5, 2, shape), np.float32)
        for shape in (x_scale, w_scale)
    ]
    g = ost.Graph("float8")
    a = widened(g, g.input("x", x.shape, x.dtype), scales[0])
    b = widened(g, g.param("w", w.shape, w.dtype, value=w), scales[1])
    g.set_outputs([g.matmul(a, g.permute_dims(b, (1, 0)) if turned else b)])
    assert "float8_matmuls: " in agreed(g, {"x": x})


def test_other_scales_stay() -> None:
    """A scale that differs along the axis of sums, and operands one of which is wide."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5)).astype(DType.parse(E4M3).numpy)
    w = rng.standard_normal((5, 7)).astype(DType.parse(E4M3).numpy)
    for scale, wide in ((np.ones((5,), np.float32) * 2, False), (None, True)):
        g = ost.Graph("others")
        a = widened(g, g.input("x", x.shape, x.dtype), scale)
        b = widened(g, g.param("w", w.shape, w.dtype, value=w), None)
        g.set_outputs([g.matmul(g.exp(a) if wide else a, b)])
        assert "float8_matmuls" not in agreed(g, {"x": x})

"""The bits of a row of a matmul: the same alone, among others, and in a graph of another size."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from tests.pairwise import every_second

Array = np.ndarray[Any, Any]

#: One vector of columns and less, two, many, and more than a panel of one kind.
COLUMNS = (1, 3, 10, 16, 17, 31, 40, 64, 100, 257)

#: First rows and their number: tiles of every height, with one row left over and without.
PARTS = ((0, 1), (46, 1), (3, 2), (5, 7), (8, 8), (1, 9), (0, 13), (10, 33), (0, 47))


def graph(rows: Any, depth: int, columns: int, dtype: Any, *, fused: bool) -> ost.Graph:
    g = ost.Graph("rows")
    x = g.input("x", (rows, depth), "float32")
    left = g.rms_norm(x, g.param("gain", (depth,))) if fused else x

    def product(name: str, width: int) -> Any:
        w = g.param(name, (depth, width), dtype)
        return g.matmul(left, w if dtype == "float32" else g.cast(w, "float32"))

    made = product("w", columns)
    g.set_outputs([made, g.multiply(g.silu(made), product("v", columns))] if fused else [made])
    return g


def weights(depth: int, columns: int, dtype: Any) -> dict[str, Array]:
    rng = np.random.default_rng(columns)
    return {
        "gain": rng.standard_normal(depth).astype(np.float32),
        **{name: rng.standard_normal((depth, columns)).astype(dtype) for name in ("w", "v")},
    }


def compiled(g: ost.Graph, params: dict[str, Array], level: str, threads: int = 1) -> Any:
    options = ost.CompileOptions(target=level)
    return ost.Session("cpu", threads=threads).compile(g, params, options=options)


@pytest.mark.parametrize(
    ("dtype", "fused"), every_second([np.float32, ml_dtypes.bfloat16], [False, True])
)
def test_rows_in_any_company(level: str, dtype: Any, fused: bool) -> None:
    depth = 131
    x = np.random.default_rng(0).standard_normal((47, depth)).astype(np.float32)
    name = np.dtype(dtype).name
    for columns in COLUMNS if level == "avx512" else COLUMNS[::2]:
        params = weights(depth, columns, dtype)
        if not fused:
            params = {"w": params["w"]}
        symbolic = graph(ost.Variable("n", 1, 47), depth, columns, name, fused=fused)
        whole = compiled(symbolic, params, level, threads=2)
        expected = [np.array(result) for result in whole.run({"x": x})]
        for first, count in PARTS:
            found = whole.run({"x": x[first : first + count]})
            for actual, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(actual, wanted[first : first + count])
        for count in (1, 13) if columns < 100 else (2,):
            fixed = compiled(graph(count, depth, columns, name, fused=fused), params, level)
            for actual, wanted in zip(fixed.run({"x": x[:count]}), expected, strict=True):
                np.testing.assert_array_equal(actual, wanted[:count])


def test_a_part_of_a_padded_batch() -> None:
    """The active extent, and rows that a graph of a fixed size leaves over."""
    params = {"w": weights(64, 48, np.float32)["w"]}
    x = np.random.default_rng(1).standard_normal((29, 64)).astype(np.float32)
    whole = compiled(graph(29, 64, 48, "float32", fused=False), params, "host")
    (expected,) = whole.run({"x": x})
    for rows in (1, 2, 13, 28):
        with whole.active_extent(rows, 29):
            (some,) = whole.run({"x": x})
        np.testing.assert_array_equal(some[:rows], expected[:rows])

"""Rows rounded to bfloat16: which matmuls are, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.ir.graph import BaseGraph
from ostinato.passes.pipeline import run_passes

Array = np.ndarray[Any, Any]

ROWS, DEPTH, COLUMNS = 3, 256, 256


def weights(shape: tuple[int, ...] = (DEPTH, COLUMNS), dtype: str = "bfloat16") -> Array:
    drawn = np.random.default_rng(0).standard_normal(shape)
    return drawn.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def rounded(graph: BaseGraph, wanted: bool = True, **options: Any) -> BaseGraph:
    after, _ = run_passes(
        graph, capabilities=CAPABILITIES, verify=True, bfloat16_rows=lambda: wanted, **options
    )
    return after


def count(graph: BaseGraph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def test_matmuls_of_the_same_rows_share_what_is_rounded() -> None:
    g = ost.Graph()
    x, w = g.input("x", (ROWS, DEPTH)), g.param("w", (COLUMNS, DEPTH), "bfloat16")
    v = g.param("v", (DEPTH, COLUMNS), "bfloat16")
    g.set_outputs([g.matmul(x, g.permute_dims(w, (1, 0))), g.matmul(x, v)])
    found = count(rounded(g))
    assert (found["widening_matmul"], found["matmul"], found["cast"]) == (2, 0, 1)
    found = count(rounded(g, optimize=False))
    assert (found["widening_matmul"], found["matmul"]) == (2, 0)
    assert count(rounded(g, wanted=False))["widening_matmul"] == 0


def test_results_are_those_of_rounded_rows() -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, DEPTH)).astype(np.float32)
    g = ost.Graph()
    w = weights()
    g.set_outputs([g.matmul(g.input("x", x.shape), g.param("w", w.shape, "bfloat16"))])
    (got,) = ost.reference.evaluate(rounded(g), {"x": x}, {"w": w})
    narrow = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_allclose(got, narrow @ w.astype(np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "shape", "dtype"),
    [
        ((ROWS, DEPTH), (DEPTH, COLUMNS - 1), "bfloat16"),
        ((ROWS, DEPTH), (DEPTH, COLUMNS), "float32"),
        ((ROWS, DEPTH), (DEPTH, COLUMNS), "float16"),
        ((ROWS, 1 << 16), (1 << 16, 1), "bfloat16"),
        ((DEPTH,), (DEPTH, COLUMNS), "bfloat16"),
        ((2, ROWS, DEPTH), (2, DEPTH, COLUMNS), "bfloat16"),
    ],
    ids=["small", "float32", "float16", "column", "vector", "batch"],
)
def test_others_stay(rows: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> None:
    g = ost.Graph()
    g.set_outputs([g.matmul(g.input("x", rows), g.param("w", shape, dtype))])
    assert count(rounded(g))["widening_matmul"] == 0


def test_matrices_that_are_no_weights_stay() -> None:
    g = ost.Graph()
    x, y = g.input("x", (ROWS, DEPTH)), g.input("y", (DEPTH, COLUMNS), "bfloat16")
    g.set_outputs([g.matmul(x, y)])
    assert count(rounded(g))["widening_matmul"] == 0


def test_nothing_is_asked_without_such_matmuls() -> None:
    def refuse() -> bool:
        raise AssertionError("asked in vain")

    g = ost.Graph()
    g.set_outputs([g.matmul(g.input("x", (ROWS, DEPTH)), g.param("w", (DEPTH, COLUMNS)))])
    run_passes(g, capabilities=CAPABILITIES, bfloat16_rows=refuse)

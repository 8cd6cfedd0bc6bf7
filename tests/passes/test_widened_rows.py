"""Rows of 16-bit floats that are widened once before a matmul: the same bits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES, widens_rows
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.dtypes import BFLOAT16, FLOAT16
from ostinato.ir.graph import BaseGraph
from ostinato.passes.pipeline import run_passes
from ostinato.passes.widened_rows import LEAST_COLUMNS, LEAST_ROWS

Array = np.ndarray[Any, Any]

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def numbers(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def linear(rows: tuple[Any, ...], depth: int, columns: int, dtype: str) -> ost.Graph:
    g, weight = ost.Graph("linear"), numbers(0, (columns, depth), dtype)
    x = g.input("x", (*rows, depth), dtype)
    w = g.permute_dims(g.param("w", weight.shape, dtype, value=weight), (1, 0))
    g.set_outputs([g.relu(g.matmul(x, w)) + 1.0])
    return g


def widened(graph: BaseGraph, wanted: bool = True, **options: Any) -> Counter[str]:
    """The ops of the graph after the passes."""
    after, _ = run_passes(
        graph, capabilities=CAPABILITIES, verify=True, widened_rows=lambda _: wanted, **options
    )
    return Counter(node.op.name for node in after.nodes)


def run(graph: ost.Graph, x: Array, **options: Any) -> Array:
    made = ost.CompileOptions(stored_programs=False, **options)
    return ost.Session("cpu", threads=1).compile(graph, options=made).run({"x": x})[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [((8,), 1, 32), ((3, 5), 67, 33), ((41,), 128, 131)]
)
def test_same_bits(rows: tuple[int, ...], depth: int, columns: int, dtype: str) -> None:
    graph, x = linear(rows, depth, columns, dtype), numbers(1, (*rows, depth), dtype)
    assert widened(graph)["cast"] == 3
    plain = run(graph, x, disabled_passes=frozenset({"widened_rows"}))
    assert run(graph, x).tobytes() == plain.tobytes()
    (expected,) = ost.reference.evaluate(graph, {"x": x}, dict(graph.param_values))
    np.testing.assert_allclose(plain.astype(float), expected, rtol=1e-2, atol=1e-2 * depth)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_of_any_number_of_rows(dtype: str) -> None:
    graph = linear((ost.Variable("rows", 0, 40),), 67, 65, dtype)
    assert widened(graph)["cast"] == 3
    for rows in (0, 1, 7, 40):
        x = numbers(rows, (rows, 67), dtype)
        plain = run(graph, x, disabled_passes=frozenset({"widened_rows"}))
        assert run(graph, x).tobytes() == plain.tobytes()


def test_matmuls_of_the_same_rows_share_what_is_widened() -> None:
    g = ost.Graph()
    x = g.input("x", (9, 64), "bfloat16")
    g.set_outputs([g.matmul(x, g.param(name, (64, 48), "bfloat16")) for name in "qkv"])
    assert widened(g)["cast"] == 1 + 3 + 3


def test_others_stay() -> None:
    few = linear((LEAST_ROWS - 1,), 64, 64, "bfloat16")
    narrow = linear((64,), 64, LEAST_COLUMNS - 1, "bfloat16")
    g = ost.Graph()
    a, b = (g.input(name, (64, 64), "bfloat16") for name in "ab")
    g.set_outputs([g.matmul(a, b)])
    for graph in (few, narrow, g):
        assert "cast" not in widened(graph)
    assert "cast" not in widened(linear((64,), 64, 64, "bfloat16"), wanted=False)


def test_instructions_that_multiply_16_bits_need_no_widening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, options = TargetSpec.host(), ost.CompileOptions(bfloat16_dots=True)
    for fast in (True, False):
        name = "ostinato.backends.cpu.capabilities.fast_bfloat16_dots"
        monkeypatch.setattr(name, lambda *_, fast=fast: lambda: fast)
        assert widens_rows(options, target, BFLOAT16) is not fast
        assert widens_rows(options, target, FLOAT16)

"""Grouped matmuls with packed weights against their definition and ``packed_matmul``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.ops.packed.decoding import decode
from ostinato.ops.packed.formats import FORMATS
from tests.packed_blocks import random_blocks

Array = np.ndarray[Any, Any]

COMPUTED = [name for name, form in FORMATS.items() if form.computed]


def packed(name: str, experts: int, columns: int, blocks: int, seed: int = 0) -> Array:
    rng, count = np.random.default_rng(seed), experts * columns * blocks
    found = random_blocks(rng, name.removeprefix("gguf:"), count, hard=False)
    return found.reshape(experts, columns, blocks * FORMATS[name].nbytes)


def activations(name: str, rows: int, blocks: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(rows + blocks)
    return rng.standard_normal((rows, blocks * FORMATS[name].size)).astype(dtype)


def grouped(name: str, x: Array, w: Array, *, rows: Any = None) -> ost.Graph:
    g = ost.Graph("grouped")
    rows = len(x) if rows is None else rows
    left = g.input("x", (rows, x.shape[1]), x.dtype)
    weights = g.param("w", w.shape, "uint8", value=w)
    g.set_outputs([g.packed_grouped_matmul(left, weights, g.input("ids", (rows,), "int64"), name)])
    return g


def one_expert(name: str, x: Array, w: Array) -> Array:
    """``packed_matmul`` with the matrix of an expert."""
    g = ost.Graph("alone")
    weights = g.param("w", w.shape, "uint8", value=w)
    g.set_outputs([g.packed_matmul(g.input("x", x.shape, x.dtype), weights, name)])
    (found,) = ost.Session("cpu", threads=1).compile(g).run({"x": x})
    return found


def as_defined(name: str, x: Array, w: Array, ids: Array) -> Array:
    """The definition: activations rounded by blocks, then a matmul in float64."""
    size = FORMATS[name].size
    blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // size, size)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    q = np.rint(blocks / np.where(scale > 0, scale, 1))
    rounded = (q.astype(np.float64) * scale).reshape(x.shape)
    weights = decode(w, name).astype(np.float64)
    return np.einsum("rk,rnk->rn", rounded, weights[ids])


def compiled(graph: ost.Graph, threads: int = 1, **options: Any) -> ost.CompiledGraph:
    chosen = ost.CompileOptions(verify=True, **options)
    return ost.Session("cpu", threads=threads).compile(graph, options=chosen)


#: Rows, experts, columns and blocks.
SIZES = [(13, 3, 19, 3), (1, 3, 17, 1), (4, 5, 1, 2)]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # Each format with many rows, and with few of one size.
        pytest.param(name, size, marks=[pytest.mark.slow] if n % 2 + 1 == i else [])
        for n, name in enumerate(COMPUTED)
        for i, size in enumerate(SIZES)
    ],
)
def test_by_the_definition(name: str, size: tuple[int, int, int, int]) -> None:
    """Few rows and many, ids from both ends, an expert without rows."""
    rows, experts, columns, blocks = size
    w, x = packed(name, experts, columns, blocks), activations(name, rows, blocks)
    x[rows // 2] = 0
    ids = np.random.default_rng(rows).integers(-experts, experts - 1, rows)
    graph, expected = grouped(name, x, w), as_defined(name, x, w, ids)
    feeds = {"x": x, "ids": ids}
    scale = np.abs(expected).max() + 1e-6
    (oracle,) = ost.reference.evaluate(graph, feeds)
    np.testing.assert_allclose(oracle, expected, rtol=1e-6, atol=1e-6 * scale)
    for optimize in (True, False) if rows > 4 else (True,):
        (actual,) = compiled(graph, optimize=optimize).run(feeds)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * scale)


def test_the_dtype_is_that_of_the_activations() -> None:
    name, ids = "gguf:q6_k", np.array([1, 0, 1])
    w = packed(name, 2, 7, 2)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = activations(name, 3, 2, dtype)
        (actual,) = compiled(grouped(name, x, w)).run({"x": x, "ids": ids})
        assert actual.dtype == dtype
        expected = as_defined(name, x, w, ids)
        np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0.01, atol=0.01)


def test_no_rows_no_columns_and_strided_operands() -> None:
    name = "gguf:q5_1"
    for rows, columns in ((0, 3), (2, 0), (3, 5)):
        w, x = packed(name, 2, columns, 2), activations(name, rows, 2)
        ids = np.arange(2 * rows)[::2] % 2
        wide = np.repeat(x, 2, axis=1)[:, ::2]
        (actual,) = compiled(grouped(name, x, w)).run({"x": wide, "ids": ids})
        assert actual.shape == (rows, columns)
        np.testing.assert_allclose(actual, as_defined(name, x, w, ids), rtol=1e-5, atol=1e-5)


def test_an_expert_that_does_not_exist() -> None:
    name = "gguf:q4_0"
    w, x = packed(name, 3, 5, 1), activations(name, 2, 1)
    graph = compiled(grouped(name, x, w))
    with pytest.raises(ost.InputError, match="3 experts"):
        graph.run({"x": x, "ids": np.array([0, 3])})
    g = ost.Graph("constant")
    with pytest.raises(ost.GraphError, match="expert 3 is out of range for 3 experts"):
        g.packed_grouped_matmul(g.input("x", x.shape), g.constant(w), np.array([0, 3]), name)


@pytest.mark.parametrize("name", ["gguf:q4_0", "gguf:q4_k", "gguf:mxfp4"])
def test_a_row_is_that_of_packed_matmul(name: str) -> None:
    """To the bit, whatever the other rows are, on one thread and on two."""
    experts, columns, blocks = 4, 70, 3
    w, x = packed(name, experts, columns, blocks), activations(name, 41, blocks)
    ids = np.random.default_rng(0).integers(0, experts, 41)
    ids[:20] = 2
    wanted = np.stack([one_expert(name, row[None], w[e])[0] for row, e in zip(x, ids, strict=True)])
    graph = grouped(name, x, w, rows=ost.Variable("n", 1, 41))
    for threads in (1, 2):
        ready = compiled(graph, threads)
        for start, count in ((0, 41), (0, 1), (40, 1), (3, 2), (5, 7), (8, 8), (0, 13)):
            some = slice(start, start + count)
            (actual,) = ready.run({"x": x[some], "ids": ids[some]})
            np.testing.assert_array_equal(actual, wanted[some])


def test_written_and_computed_weights() -> None:
    name, ids = "gguf:q8_0", np.array([1, 1, 0])
    x, one, other = activations(name, 3, 2), packed(name, 2, 6, 2), packed(name, 2, 6, 2, 7)
    graph = compiled(grouped(name, x, one))
    graph.run({"x": x, "ids": ids})
    graph.set_param("w", other)
    (actual,) = graph.run({"x": x, "ids": ids})
    np.testing.assert_allclose(actual, as_defined(name, x, other, ids), rtol=1e-5, atol=1e-5)
    g = ost.Graph("computed")
    given = g.reshape(g.input("w", (12, 68), "uint8"), one.shape)
    g.set_outputs([g.packed_grouped_matmul(g.input("x", x.shape), given, ids, name)])
    (actual,) = compiled(g).run({"x": x, "w": one.reshape(12, 68)})
    np.testing.assert_allclose(actual, as_defined(name, x, one, ids), rtol=1e-5, atol=1e-5)


Q4 = "gguf:q4_0"
G = ost.Graph


def _made(
    g: G,
    x: tuple[int, ...] = (2, 32),
    w: tuple[int, ...] = (3, 4, 18),
    ids: tuple[int, ...] = (2,),
    format: str = Q4,
    dtype: str = "uint8",
) -> Any:
    values = g.input("x", x), g.input("w", w, dtype), g.input("ids", ids, "int64")
    return g.packed_grouped_matmul(*values, format)


REFUSED: dict[str, Callable[[G], Any]] = {
    "format is one of gguf:q4_0": lambda g: _made(g, format="q4_0"),
    "w is uint8 [experts, N, bytes]": lambda g: _made(g, w=(4, 18)),
    "of known sizes, got i8[3,4,18]": lambda g: _made(g, dtype="int8"),
    "holds no expert": lambda g: _made(g, w=(0, 4, 18)),
    "blocks of 18 bytes, got 19 bytes": lambda g: _made(g, w=(3, 4, 19)),
    "nothing to sum over": lambda g: _made(g, x=(2, 0), w=(3, 4, 0)),
    "x is [rows, K], got f32[2,1,32]": lambda g: _made(g, x=(2, 1, 32)),
    "x has rows of 33, w of 32 elements": lambda g: _made(g, x=(2, 33)),
    "expert_ids are one for each row": lambda g: _made(g, ids=(3,)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(ost.GraphError) as caught:
        REFUSED[message](ost.Graph("refused"))
    assert message in str(caught.value)


def test_the_text_of_a_graph() -> None:
    g = ost.Graph("text")
    g.set_outputs([_made(g)])
    assert str(ost.parse_graph(str(g))) == str(g)

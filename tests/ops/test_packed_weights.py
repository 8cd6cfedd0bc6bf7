"""Matmuls with packed weights, their elements, and tables of them, against their definition."""

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


def quarters(first: int) -> list[Any]:
    """The computed formats, of which the fast tests run every fourth one."""
    return [
        pytest.param(name, marks=[] if number % 4 == first else [pytest.mark.slow])
        for number, name in enumerate(COMPUTED)
    ]


def packed(name: str, rows: int, blocks: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    count = rows * blocks
    found = random_blocks(rng, name.removeprefix("gguf:"), count, hard=False)
    return found.reshape(rows, blocks * FORMATS[name].nbytes)


def compiled(graph: ost.Graph, **options: Any) -> ost.CompiledGraph:
    chosen = ost.CompileOptions(verify=True, **options)
    return ost.Session("cpu", threads=1).compile(graph, options=chosen)


def matmul_graph(name: str, x: Array, w: Array) -> ost.Graph:
    g = ost.Graph("packed")
    weights = g.param("w", w.shape, "uint8", value=w)
    g.set_outputs([g.packed_matmul(g.input("x", x.shape, x.dtype), weights, name)])
    return g


def as_defined(name: str, x: Array, w: Array) -> Array:
    """The definition: activations rounded by blocks, then a matmul in float64."""
    size = FORMATS[name].size
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // size, size)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    q = np.rint(blocks / np.where(scale > 0, scale, 1))
    rounded = (q.astype(np.float64) * scale).reshape(x.shape)
    return rounded @ decode(w, name).astype(np.float64).T


@pytest.mark.parametrize("name", COMPUTED)
def test_by_the_definition(name: str) -> None:
    size = FORMATS[name].size
    rng = np.random.default_rng(1)
    w = packed(name, 19, 3)
    x = rng.standard_normal((5, 3 * size)).astype(np.float32)
    x[1], x[2, 7] = 0, 1e4
    graph, expected = matmul_graph(name, x, w), as_defined(name, x, w)
    (oracle,) = ost.reference.evaluate(graph, {"x": x})
    scale = np.abs(expected).max()
    np.testing.assert_allclose(oracle, expected, rtol=1e-6, atol=1e-6 * scale)
    for optimize in (True, False):
        (actual,) = compiled(graph, optimize=optimize).run({"x": x})
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * scale)
        np.testing.assert_array_equal(actual[1], 0)


@pytest.mark.parametrize("name", ["gguf:q4_1", "gguf:q6_k"])
def test_the_dtype_is_that_of_the_activations(name: str) -> None:
    w = packed(name, 7, 2)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.random.default_rng(2).standard_normal((2, 2 * FORMATS[name].size)).astype(dtype)
        graph = matmul_graph(name, x, w)
        (actual,), (expected,) = (
            compiled(graph).run({"x": x}),
            ost.reference.evaluate(graph, {"x": x}),
        )
        assert actual.dtype == dtype
        wide = expected.astype(np.float64)
        np.testing.assert_allclose(actual.astype(np.float64), wide, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", quarters(0))
def test_a_row_does_not_depend_on_the_others(name: str) -> None:
    """Bits of each row: alone, in fixed and symbolic numbers, fused, on one thread and on two."""
    size, blocks, columns = FORMATS[name].size, 3, 70
    rng = np.random.default_rng(3)
    first, second = packed(name, columns, blocks), packed(name, columns, blocks, 1)
    x = rng.standard_normal((33, blocks * size)).astype(np.float32)

    def graph(rows: Any) -> ost.Graph:
        g = ost.Graph("rows")
        left = g.input("x", (rows, x.shape[1]))
        made = [
            g.packed_matmul(left, g.param(f"w{i}", w.shape, "uint8", value=w), name)
            for i, w in enumerate((first, second))
        ]
        g.set_outputs([made[0], g.multiply(g.silu(made[0]), made[1])])
        return g

    def run(on: ost.CompiledGraph, rows: Array) -> list[Array]:
        return list(on.run({"x": rows}))

    symbolic = graph(ost.Variable("n", 1, 33))
    whole = ost.Session("cpu", threads=1).compile(symbolic)
    expected = run(whole, x)
    for threads in (1, 2):
        session = ost.Session("cpu", threads=threads)
        some = whole if threads == 1 else session.compile(symbolic)
        for start, count in ((0, 1), (32, 1), (3, 2), (5, 7), (8, 8), (0, 13), (0, 33)):
            rows = slice(start, start + count)
            found = run(some, x[rows])
            for actual, wanted in zip(found, expected, strict=True):
                np.testing.assert_array_equal(actual, wanted[rows])
    for count in (1, 9, 33):
        for options in ({}, {"optimize": False}):
            found = run(compiled(graph(count), **options), x[:count])
            np.testing.assert_array_equal(found[0], expected[0][:count])


@pytest.mark.parametrize("name", quarters(1))
def test_a_stack_of_matrices(name: str) -> None:
    """Each part has the bits that it has with its matrix alone, whatever the sizes."""
    size = FORMATS[name].size
    rng = np.random.default_rng(4)
    more = [(1, 1, 1, 1), (2, 1, 70, 1), (5, 13, 32, 1)] if name in (Q4, "gguf:q5_k") else []
    for count, rows, columns, blocks in [(3, 7, 19, 2), *more]:
        w = packed(name, count * columns, blocks).reshape(count, columns, -1)
        x = rng.standard_normal((rows, count, blocks * size)).astype(np.float32)

        def graph(n: Any, x: Array = x, w: Array = w) -> ost.Graph:
            g = ost.Graph("stack")
            left = g.permute_dims(g.input("x", (n, *x.shape[1:])), (1, 0, 2))
            product = g.packed_matmul(left, g.param("w", w.shape, "uint8", value=w), name)
            g.set_outputs([product, g.permute_dims(g.silu(product), (1, 0, 2))])
            return g

        expected = np.stack([
            compiled(matmul_graph(name, part, matrix)).run({"x": part})[0]
            for part, matrix in zip(np.ascontiguousarray(x.swapaxes(0, 1)), w, strict=True)
        ])  # fmt: skip
        truth = ost.reference.evaluate(graph(rows), {"x": x})
        for sizes, threads in ((rows, 1), (ost.Variable("n", 1, 40), 2)):
            found = ost.Session("cpu", threads=threads).compile(graph(sizes)).run({"x": x})
            np.testing.assert_array_equal(found[0], expected)
            for actual, wanted in zip(found, truth, strict=True):
                scale = max(np.abs(wanted).max(), 1e-3)
                np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5 * scale)
        (plain, _) = compiled(graph(rows), optimize=False).run({"x": x})
        np.testing.assert_array_equal(plain, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_nan_or_an_infinity_is_nan(bad: float) -> None:
    for name in ("gguf:q4_0", "gguf:q4_k"):
        x = np.ones((3, 2 * FORMATS[name].size), np.float32)
        x[1, -1] = bad
        (actual,) = compiled(matmul_graph(name, x, packed(name, 5, 2))).run({"x": x})
        np.testing.assert_array_equal(np.isnan(actual).all(-1), [False, True, False])
        assert not np.isnan(actual[[0, 2]]).any()


def test_no_rows_no_columns_and_more_dimensions() -> None:
    name = "gguf:q5_1"
    for shape, columns in (((0, 64), 3), ((2, 64), 0), ((64,), 3), ((2, 3, 64), 17)):
        x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
        w = packed(name, columns, 2)
        graph = matmul_graph(name, x, w)
        (actual,) = compiled(graph).run({"x": x})
        assert actual.shape == (*shape[:-1], columns)
        np.testing.assert_allclose(actual, as_defined(name, x, w), rtol=1e-5, atol=1e-5)


def test_weights_stay_packed() -> None:
    """A matmul reads hardly more than the blocks of its weights."""
    for name in COMPUTED:
        form = FORMATS[name]
        w = packed(name, 128, 1024 // form.size)
        x = np.ones((1, 1024), np.float32)
        plan = compiled(matmul_graph(name, x, w)).plan
        (read,) = [p.bytes for p in plan.execute_profiled() if "packed" in p.name]
        activations = 1024 + 4 * (1024 // form.size + 1024 // form.group) + 4 * 128
        assert w.nbytes <= read <= 1.045 * w.nbytes + activations, name


@pytest.mark.parametrize("name", quarters(2))
def test_elements_and_rows_of_a_table(name: str) -> None:
    """To the bit: what the host decodes."""
    form = FORMATS[name]
    w = random_blocks(np.random.default_rng(5), name.removeprefix("gguf:"), 22).reshape(11, -1)
    ids = np.array([[3, 0], [10, 3]], np.int32)
    g = ost.Graph("elements")
    table = g.param("w", w.shape, "uint8", value=w)
    g.set_outputs([
        g.dequantize_packed(table, name, (11, 2 * form.size)),
        g.packed_embedding(g.input("ids", ids.shape, "int32"), table, name),
        g.packed_embedding(g.constant(ids), table, name, "float16"),
        g.dequantize_packed(table, name, (form.size, 22), "bfloat16"),
    ])  # fmt: skip
    with np.errstate(all="ignore"):
        whole = decode(w, name)
        wanted = [
            whole, whole[ids], whole[ids].astype(np.float16),
            whole.reshape(form.size, 22).astype(ml_dtypes.bfloat16),
        ]  # fmt: skip
        for optimize in (True, False):
            found = compiled(g, optimize=optimize).run({"ids": ids})
            for actual, expected in zip(found, wanted, strict=True):
                assert actual.dtype == expected.dtype
                np.testing.assert_array_equal(
                    actual.astype(np.float32), expected.astype(np.float32)
                )


@pytest.mark.parametrize("op", ["dequantize_packed", "packed_embedding"])
def test_the_oracle_decodes_float64_by_way_of_float32(op: str) -> None:
    """As every device does: a wider sum of scale and minimum would be another number."""
    name = "gguf:q2_k"
    w = np.random.default_rng(0).integers(0, 100, (3, 168), np.uint8)  # scales are finite
    g = ost.Graph("wide")
    x = g.input("w", w.shape, "uint8")
    g.set_outputs([
        g.dequantize_packed(x, name, (3, 512), "float64")
        if op == "dequantize_packed"
        else g.packed_embedding(g.iota((3,), 0, "int64"), x, name, "float64")
    ])  # fmt: skip
    (truth,) = ost.reference.evaluate(g, {"w": w})
    np.testing.assert_array_equal(truth, decode(w, name).astype(np.float64))
    np.testing.assert_array_equal(compiled(g).run({"w": w})[0], truth)


def test_a_written_param_is_packed_again() -> None:
    name = "gguf:q4_k"
    x = np.random.default_rng(6).standard_normal((2, 256)).astype(np.float32)
    one, other = packed(name, 9, 1), packed(name, 9, 1, 7)
    graph = compiled(matmul_graph(name, x, one))
    graph.run({"x": x})
    graph.set_param("w", other)
    (actual,) = graph.run({"x": x})
    np.testing.assert_allclose(actual, as_defined(name, x, other), rtol=1e-5, atol=1e-5)


def test_weights_that_are_computed() -> None:
    """Weights need not be a param: an input, and one behind a view."""
    name = "gguf:q8_0"
    x = np.random.default_rng(8).standard_normal((3, 64)).astype(np.float32)
    w = packed(name, 6, 2)
    g = ost.Graph("computed")
    left, given = g.input("x", x.shape), g.input("w", (2, 3, 68), "uint8")
    g.set_outputs([g.packed_matmul(left, g.reshape(given, (6, 68)), name)])
    (actual,) = compiled(g).run({"x": x, "w": w.reshape(2, 3, 68)})
    np.testing.assert_allclose(actual, as_defined(name, x, w), rtol=1e-5, atol=1e-5)


G = ost.Graph
Q4 = "gguf:q4_0"
REFUSED: dict[str, Callable[[G], Any]] = {
    "format is one of gguf:q4_0": lambda g: g.packed_matmul(
        g.input("x", (1, 32)), g.input("w", (2, 18), "uint8"), "q4_0"
    ),
    "got 'gguf:iq2_xxs'": lambda g: g.packed_matmul(
        g.input("x", (1, 256)), g.input("w", (2, 66), "uint8"), "gguf:iq2_xxs"
    ),
    "blocks of 18 bytes, got 19 bytes": lambda g: g.packed_matmul(
        g.input("x", (1, 32)), g.input("w", (2, 19), "uint8"), Q4
    ),
    "x has rows of 33, w of 32 elements": lambda g: g.packed_matmul(
        g.input("x", (1, 33)), g.input("w", (2, 18), "uint8"), Q4
    ),
    "x is float32, float16 or bfloat16, got float64": lambda g: g.packed_matmul(
        g.input("x", (1, 32), "float64"), g.input("w", (2, 18), "uint8"), Q4
    ),
    "expected rows, got a scalar": lambda g: g.packed_matmul(
        g.input("x", ()), g.input("w", (2, 18), "uint8"), Q4
    ),
    "a stack u8[2,3,18] takes [2, rows, K], got f32[3,4,32]": lambda g: g.packed_matmul(
        g.input("x", (3, 4, 32)), g.input("w", (2, 3, 18), "uint8"), Q4
    ),
    "w is uint8 [rows, bytes]": lambda g: g.packed_embedding(
        g.input("i", (2,), "int64"), g.input("w", (2, 18), "int8"), Q4
    ),
    "ids are integers": lambda g: g.packed_embedding(
        g.input("i", (2,)), g.input("w", (2, 18), "uint8"), Q4
    ),
    "nothing to sum over": lambda g: g.packed_matmul(
        g.input("x", (1, 0)), g.input("w", (2, 0), "uint8"), Q4
    ),
    "64 elements take 36 bytes": lambda g: g.dequantize_packed(
        g.input("x", (18,), "uint8"), Q4, (64,)
    ),
    "33 elements are no blocks of 32": lambda g: g.dequantize_packed(
        g.input("x", (18,), "uint8"), Q4, (33,)
    ),
    "dtype is a float": lambda g: g.dequantize_packed(
        g.input("x", (18,), "uint8"), Q4, (32,), "int8"
    ),
    "shape is a tuple of known sizes": lambda g: g.dequantize_packed(
        g.input("x", (18,), "uint8"), Q4, (-32,)
    ),
    "q_scales is f32[2,1]": lambda g: g.packed_block_matmul(
        g.input("q", (2, 32), "int8"), g.input("r", (2, 2)), g.input("s", (2, 1), "int32"),
        g.input("w", (4, 18), "uint8"), Q4,
    ),
    "q_sums is i32[2,1]": lambda g: g.packed_block_matmul(
        g.input("q", (2, 32), "int8"), g.input("r", (2, 1)), g.input("s", (2, 1)),
        g.input("w", (4, 18), "uint8"), Q4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(ost.GraphError) as caught:
        REFUSED[message](ost.Graph("refused"))
    assert message in str(caught.value)


def test_the_text_of_a_graph() -> None:
    g = ost.Graph("text")
    w = g.input("w", (4, 144), "uint8")
    x = g.input("x", (2, 256))
    ids = g.input("ids", (3,), "int64")
    g.set_outputs([
        g.packed_matmul(x, w, "gguf:q4_k"),
        g.packed_embedding(ids, w, "gguf:q4_k", "bfloat16"),
        g.dequantize_packed(w, "gguf:q4_k", (2, 512)),
    ])  # fmt: skip
    assert str(ost.parse_graph(str(g))) == str(g)

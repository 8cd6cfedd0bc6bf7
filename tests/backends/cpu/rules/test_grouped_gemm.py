"""The kernels of ``grouped_matmul`` and ``expert_mlp`` against the oracle, and row against row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ostinato import reference
from ostinato.backends.cpu.rules.group_rows import GroupLayout, GroupRows
from ostinato.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, DType
from ostinato.lower.loopir.text import kernel_text
from ostinato.ops.builder import Graph
from ostinato.variables import Variable
from tests.backends.cpu.levels import across_levels
from tests.pairwise import every_second

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1e-2}


def random(rng: np.random.Generator, *shape: int, dtype: DType = FLOAT32) -> Array:
    scale = 1 / np.sqrt(max(1, shape[-2] if len(shape) > 2 else 1))
    if dtype.is_integer:
        return rng.integers(-50, 50, shape).astype(dtype.numpy)
    return (rng.standard_normal(shape) * scale).astype(dtype.numpy)


def close(got: Array, want: Array) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    limit = TOLERANCE[want.dtype.name]
    np.testing.assert_allclose(a, b, rtol=limit, atol=limit * np.abs(b).max(initial=1))


def evaluate(g: Graph, given: dict[str, Array]) -> list[Array]:
    inputs = {name: array for name, array in given.items() if name in g.inputs}
    params = {name: array for name, array in given.items() if name in g.params}
    return reference.evaluate(g, inputs, params)


def product_graph(inputs: dict[str, Array], *, rows: Any = None) -> Graph:
    g = Graph("g")
    x, w, ids = inputs["x"], inputs["w"], inputs["ids"]
    count = len(x) if rows is None else rows
    left = g.input("x", (count, x.shape[1]), x.dtype)
    chosen = g.input("ids", (count,), ids.dtype)
    g.set_outputs([g.grouped_matmul(left, g.param("w", w.shape, w.dtype), chosen)])
    return g


def layer_graph(inputs: dict[str, Array], *, tokens: Any = None, activation: str = "silu") -> Graph:
    """An ``expert_mlp`` whose results another node reads, too."""
    g = Graph("g")
    count = len(inputs["x"]) if tokens is None else tokens
    leaves = {
        name: g.input(name, (count, *a.shape[1:]), a.dtype)
        for name, a in inputs.items()
        if name in ("x", "ids", "weights")
    }
    params = {n: g.param(n, a.shape, a.dtype) for n, a in inputs.items() if n not in leaves}
    y = g.expert_mlp(
        leaves["x"], leaves["ids"], leaves["weights"],
        params.get("gate"), params["up"], params["down"], activation=activation,
    )  # fmt: skip
    g.set_outputs([y, g.tanh(y) * 0.5])
    return g


def layer_inputs(
    rng: np.random.Generator, t: int, e: int, d: int, f: int, o: int, k: int,
    dtype: DType = FLOAT32, *, gated: bool = True,
) -> dict[str, Array]:  # fmt: skip
    inputs = {
        "x": random(rng, t, d, dtype=dtype),
        "ids": rng.integers(0, e, (t, k)),
        "weights": rng.random((t, k)).astype(dtype.numpy),
        "up": random(rng, e, d, f, dtype=dtype),
        "down": random(rng, e, f, o, dtype=dtype),
    }
    return inputs | ({"gate": random(rng, e, d, f, dtype=dtype)} if gated else {})


# -- against the oracle --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32], ids=str)
def test_products_of_every_dtype(lowered: Lowered, level: str, dtype: DType) -> None:
    rng = np.random.default_rng(dtype.bits)
    inputs = {
        "x": random(rng, 23, 17, dtype=dtype),
        "w": random(rng, 5, 17, 37, dtype=dtype),
        "ids": rng.integers(0, 5, 23).astype(np.int32),
    }
    g = product_graph(inputs)
    close(lowered(g, level)(inputs)[0], evaluate(g, inputs)[0])


#: Rows, experts, depth and columns.
PRODUCTS = [
    (0, 3, 4, 5), (1, 1, 1, 1), (1, 300, 3, 2), (9, 2, 0, 7), (7, 4, 33, 64), (40, 3, 5, 131),
    (600, 2, 3, 4),
]  # fmt: skip


@pytest.mark.parametrize(("level", "sizes"), across_levels(PRODUCTS), indirect=["level"])
def test_products_of_every_size(
    lowered: Lowered, level: str, sizes: tuple[int, int, int, int]
) -> None:
    rows, e, k, n = sizes
    rng = np.random.default_rng(rows + e)
    ids = np.zeros(rows, np.int64) if rows == 600 else rng.integers(-e, e, rows)
    inputs = {"x": random(rng, rows, k), "w": random(rng, e, k, n), "ids": ids}
    g = product_graph(inputs)
    close(lowered(g, level)(inputs)[0], evaluate(g, inputs)[0])


def test_ids_that_no_expert_has(lowered: Lowered, level: str) -> None:
    rng = np.random.default_rng(1)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    ids = np.array([least, most, -4, 3, -1, 0])
    inputs = {"x": random(rng, 6, 5), "w": random(rng, 3, 5, 20), "ids": ids}
    g = product_graph(inputs)
    close(lowered(g, level)(inputs)[0], evaluate(g, inputs)[0])


def test_epilogue_and_a_transposed_left_operand(lowered: Lowered, level: str) -> None:
    rng = np.random.default_rng(2)
    inputs = {
        "x": random(rng, 9, 14), "w": random(rng, 4, 9, 21), "ids": rng.integers(0, 4, 14),
        "r": random(rng, 14, 21),
    }  # fmt: skip
    g = Graph("g")
    x, w, ids, r = (g.input(name, a.shape, a.dtype) for name, a in inputs.items())
    y = g.grouped_matmul(g.permute_dims(x, (1, 0)), w, ids)
    g.set_outputs([g.gelu(y) + r, y])
    made = lowered(g, level)
    assert "grouped_matmul+gelu+add" in [call.title for call in made.program.calls]
    for got, want in zip(made(inputs), evaluate(g, inputs), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    ("dtype", "gated"), every_second([FLOAT32, FLOAT64, FLOAT16, BFLOAT16], [True, False]), ids=str
)
def test_layers_of_every_dtype(lowered: Lowered, level: str, dtype: DType, gated: bool) -> None:
    inputs = layer_inputs(np.random.default_rng(3), 11, 4, 13, 50, 19, 2, dtype, gated=gated)
    g = layer_graph(inputs, activation="gelu")
    for got, want in zip(lowered(g, level)(inputs), evaluate(g, inputs), strict=True):
        close(got, want)


#: Tokens, experts, depth, width, features, and experts of a token.
LAYERS = [
    (1, 8, 64, 96, 64, 2), (1, 1, 1, 1, 1, 1), (0, 4, 3, 3, 3, 2), (5, 3, 0, 4, 6, 2),
    (5, 3, 4, 0, 6, 1), (70, 2, 6, 9, 5, 4), (3, 70, 6, 9, 5, 70),
]  # fmt: skip


@pytest.mark.parametrize(("level", "sizes"), across_levels(LAYERS), indirect=["level"])
def test_layers_of_every_size(lowered: Lowered, level: str, sizes: tuple[int, ...]) -> None:
    inputs = layer_inputs(np.random.default_rng(sizes[0]), *sizes)
    g = layer_graph(inputs)
    for got, want in zip(lowered(g, level)(inputs), evaluate(g, inputs), strict=True):
        close(got, want)


def test_symbolic_numbers_of_tokens(lowered: Lowered, level: str) -> None:
    rng = np.random.default_rng(4)
    tokens = Variable("T", 1, 300)
    inputs = layer_inputs(rng, 300, 5, 7, 18, 9, 2)
    g = layer_graph(inputs, tokens=tokens)
    made = lowered(g, level)
    for count in (1, 2, 37, 300):
        some = {n: a[:count] if n in ("x", "ids", "weights") else a for n, a in inputs.items()}
        for got, want in zip(made(some, T=count), evaluate(g, some), strict=True):
            close(got, want)


# -- row against row -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize(("level", "n"), across_levels([5, 64, 100]), indirect=["level"])
def test_rows_do_not_depend_on_the_rows_beside_them(
    lowered: Lowered, level: str, dtype: DType, n: int
) -> None:
    """Experts of every number of rows give each row the bits that it has alone."""
    rng = np.random.default_rng(5)
    rows = 40
    x, w = random(rng, rows, 97, dtype=dtype), random(rng, 2, 97, n, dtype=dtype)
    g = product_graph({"x": x, "w": w, "ids": np.zeros(rows, np.int64)})
    made = lowered(g, level)
    apart = [made({"x": x, "w": w, "ids": np.full(rows, e)})[0] for e in range(2)]
    for first in range(0, rows + 1, 3):
        ids = rng.permutation(np.arange(rows) < first).astype(np.int64)
        got = made({"x": x, "w": w, "ids": ids})[0]
        want = np.where(ids[:, None] == 0, apart[0], apart[1])
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_layers_do_not_depend_on_the_order_of_tokens(lowered: Lowered, level: str) -> None:
    rng = np.random.default_rng(6)
    inputs = layer_inputs(rng, 30, 4, 33, 65, 50, 3)
    made = lowered(layer_graph(inputs), level)
    order = rng.permutation(30)
    moved = {n: a[order] if n in ("x", "ids", "weights") else a for n, a in inputs.items()}
    np.testing.assert_array_equal(made(moved)[0], made(inputs)[0][order])


@pytest.mark.parametrize(
    ("dtype", "n"),
    [(FLOAT32, 16), (FLOAT32, 112), (FLOAT32, 20), (FLOAT64, 48), (FLOAT16, 64), (BFLOAT16, 64),
     (INT32, 32)],
)  # fmt: skip
def test_matrices_may_stay_where_they_are(
    lowered: Lowered, level: str, dtype: DType, n: int
) -> None:
    """Those that are inputs are not packed, if vectors fit their rows; the bits are the same."""
    rng = np.random.default_rng(9)
    x, w = random(rng, 21, 33, dtype=dtype), random(rng, 3, 33, n, dtype=dtype)
    inputs = {"x": x, "w": w, "ids": rng.integers(0, 3, 21)}
    g = Graph("g")
    g.set_outputs([g.grouped_matmul(*(g.input(k, a.shape, a.dtype) for k, a in inputs.items()))])
    made, packed = lowered(g, level), lowered(product_graph(inputs), level)
    titles = [call.title for call in made.program.calls]
    if dtype in (FLOAT32, FLOAT64) and n != 20:
        assert titles == ["group", "grouped_matmul"]
    got, want = made(inputs)[0], packed(inputs)[0]
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_layers_whose_matrices_are_inputs(lowered: Lowered, level: str) -> None:
    inputs = layer_inputs(np.random.default_rng(10), 11, 4, 13, 64, 32, 2)
    g = Graph("g")
    x, ids, scale, up, down, gate = (g.input(n, a.shape, a.dtype) for n, a in inputs.items())
    g.set_outputs([g.expert_mlp(x, ids, scale, gate, up, down)])
    made, packed = lowered(g, level), lowered(layer_graph(inputs), level)
    assert "pack" not in [call.title for call in made.program.calls]
    np.testing.assert_array_equal(made(inputs)[0], packed(inputs)[0])


# -- what is shared, and what it says ------------------------------------------------------------


def test_rows_are_grouped_once(lowered: Lowered) -> None:
    inputs = layer_inputs(np.random.default_rng(7), 6, 3, 4, 5, 4, 2)
    program = lowered(layer_graph(inputs), "host").program
    titles = [call.title for call in program.calls]
    assert titles == ["group", "experts in", "experts out", "expert_mlp+tanh+multiply"]
    assert [call.title for call in program.prepare] == ["pack"] * 3
    flops = [call.flops for call in program.calls]
    assert flops[:3] == [0, 2 * 12 * 2 * 20, 2 * 12 * 20]
    (routing,) = program.routings
    assert (routing.node, routing.shape) == (program.calls[0].nodes[0], (6, 2))
    assert routing.groups in program.calls[0].writes()


def test_parts_of_the_list() -> None:
    layout = GroupLayout(experts=4, rows=10, part_rows=3)
    assert layout.most_parts == 7
    assert layout.first_row == 22
    assert layout.type.shape == (32,)


def test_text_tells_kernels_apart(lowered: Lowered) -> None:
    rng = np.random.default_rng(8)
    inputs = layer_inputs(rng, 6, 3, 4, 5, 4, 2)
    silu = lowered(layer_graph(inputs), "host").kernels
    relu = lowered(layer_graph(inputs, activation="relu"), "host").kernels
    differ = [kernel_text(a) != kernel_text(b) for a, b in zip(silu, relu, strict=True)]
    assert differ == [False, False, False, False, True, False, False]
    grouping = next(k for k in silu if isinstance(k, GroupRows))
    assert "12 rows, 3 experts, parts of 256" in kernel_text(grouping)

"""Mixture of experts against an implementation in plain NumPy, token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.dtypes import DType
from ostinato.reference import evaluate

Array = np.ndarray[Any, Any]
Run = Callable[..., Any]

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


# -- the independent implementation ----------------------------------------------------------------


def activated(name: str, x: Array) -> Array:
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "relu":
        return np.where(x > 0, x, 0)
    if name == "gelu":
        return np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x])
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def expert(x: Array, gate: Array | None, up: Array, down: Array, activation: str) -> Array:
    hidden = x @ up
    hidden = activated(activation, hidden if gate is None else x @ gate) * (
        1 if gate is None else hidden
    )
    return hidden @ down


def chosen_by(logits: Array, k: int, route: str, renormalize: bool) -> list[tuple[int, float]]:
    """Experts and weights of one token, the greatest first, ties to the lower number."""
    order = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:k]
    among = order if route == "topk_softmax" else range(len(logits))
    shift = max(logits)
    total = sum(math.exp(logits[e] - shift) for e in among)
    weights = [math.exp(logits[e] - shift) / total for e in order]
    if route == "softmax_topk" and renormalize:
        weights = [w / sum(weights) for w in weights]
    return list(zip(order, weights, strict=True))


def layer(
    x: Array,
    router: Array,
    gate: Array | None,
    up: Array,
    down: Array,
    *,
    k: int,
    activation: str = "silu",
    route: str = "softmax_topk",
    renormalize: bool = True,
    shared: tuple[Array | None, Array, Array] | None = None,
    shared_router: Array | None = None,
) -> Array:
    lead, dtype = x.shape[:-1], x.dtype
    wide = [None if a is None else a.astype(np.float64) for a in (gate, up, down)]
    out = []
    for token in x.reshape(-1, x.shape[-1]).astype(np.float64):
        logits = token @ router.astype(np.float64)
        total = np.zeros(down.shape[2])
        for e, weight in chosen_by(logits, k, route, renormalize):
            mine = [None if a is None else a[e] for a in wide]
            total = total + weight * expert(token, *mine, activation)  # type: ignore[arg-type]
        if shared is not None:
            ours = [None if a is None else a.astype(np.float64) for a in shared]
            extra = expert(token, *ours, activation)  # type: ignore[arg-type]
            if shared_router is not None:
                extra = extra / (1 + np.exp(-(token @ shared_router.astype(np.float64))))
            total = total + extra
        out.append(total)
    return np.array(out).reshape(*lead, down.shape[2]).astype(dtype)


def close(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    limit = TOLERANCE[got.dtype.name]
    a, b = got.astype(np.float64), want.astype(np.float64)
    scale = np.abs(b).max(initial=1.0)
    np.testing.assert_allclose(a, b, rtol=limit, atol=limit * scale)


class Weights:
    """Random matrices of a layer."""

    def __init__(
        self, rng: np.random.Generator, dtype: Any, e: int, d: int, f: int, o: int, gated: bool
    ) -> None:
        def draw(*shape: int) -> Array:
            return (rng.standard_normal(shape) / math.sqrt(shape[-2])).astype(dtype)

        self.router = draw(d, e)
        self.gate = draw(e, d, f) if gated else None
        self.up, self.down = draw(e, d, f), draw(e, f, o)
        self.shared = (draw(d, f) if gated else None, draw(d, f), draw(f, o))
        self.shared_router = draw(d, 1)

    def arrays(self) -> list[Array]:
        return [self.router, *([] if self.gate is None else [self.gate]), self.up, self.down]


def run_layer(run: Run, x: Array, w: Weights, **options: Any) -> Array:
    def build(g: Any, x: Any, router: Any, *matrices: Any) -> Any:
        gate = [] if w.gate is not None else [None]
        return g.moe(x, router, *gate, *matrices, **options)

    return run(build, x, *w.arrays())  # type: ignore[no-any-return]


# -- moe -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("route", ["softmax_topk", "topk_softmax"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_routes(
    run: Run, rng: np.random.Generator, dtype: Any, gated: bool, route: str, renormalize: bool
) -> None:
    w = Weights(rng, dtype, 5, 8, 12, 6, gated)
    x = rng.standard_normal((7, 8)).astype(dtype)
    options = {"k": 2, "route": route, "renormalize": renormalize}
    close(run_layer(run, x, w, **options), layer(x, w.router, w.gate, w.up, w.down, **options))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [True, False])
def test_activations(run: Run, rng: np.random.Generator, activation: str, gated: bool) -> None:
    w = Weights(rng, np.float32, 3, 5, 4, 5, gated)
    x = rng.standard_normal((4, 5)).astype(np.float32)
    options: dict[str, Any] = {"k": 2, "activation": activation}
    close(run_layer(run, x, w, **options), layer(x, w.router, w.gate, w.up, w.down, **options))


@pytest.mark.parametrize(
    ("lead", "e", "k"),
    [
        ((0,), 4, 2),
        ((1,), 1, 1),
        ((3,), 1, 1),
        ((5,), 4, 4),
        ((2, 3), 6, 1),
        ((), 3, 2),
        ((2, 0), 3, 1),
    ],
)
def test_sizes(run: Run, rng: np.random.Generator, lead: tuple[int, ...], e: int, k: int) -> None:
    w = Weights(rng, np.float32, e, 6, 3, 6, True)
    x = rng.standard_normal((*lead, 6)).astype(np.float32)
    close(run_layer(run, x, w, k=k), layer(x, w.router, w.gate, w.up, w.down, k=k))


def test_all_tokens_on_one_expert(run: Run, rng: np.random.Generator) -> None:
    w = Weights(rng, np.float32, 4, 6, 5, 6, True)
    w.router = np.zeros((6, 4), np.float32)
    w.router[:, 2] = 1
    x = np.abs(rng.standard_normal((9, 6))).astype(np.float32)
    got = run_layer(run, x, w, k=1)
    assert w.gate is not None
    want = np.array([expert(t, w.gate[2], w.up[2], w.down[2], "silu") for t in x])
    close(got, want.astype(np.float32))


def test_ties_go_to_the_lower_number(run: Run, rng: np.random.Generator) -> None:
    w = Weights(rng, np.float32, 5, 4, 3, 4, False)
    w.router[:] = w.router[:, :1]  # all logits are equal
    x = rng.standard_normal((3, 4)).astype(np.float32)
    want = np.array(
        [sum(expert(t, None, w.up[e], w.down[e], "silu") for e in (0, 1)) / 2 for t in x]
    )
    close(run_layer(run, x, w, k=2), want.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_shared_experts(
    run: Run, rng: np.random.Generator, dtype: Any, gated: bool, scaled: bool
) -> None:
    w = Weights(rng, dtype, 4, 6, 5, 7, gated)
    x = rng.standard_normal((5, 6)).astype(dtype)
    extra: dict[str, Any] = {"shared": w.shared}
    if scaled:
        extra["shared_router"] = w.shared_router
    got = run_layer(run, x, w, k=2, **extra)
    close(got, layer(x, w.router, w.gate, w.up, w.down, k=2, **extra))


def test_router_in_float32_beside_bfloat16(run: Run, rng: np.random.Generator) -> None:
    w = Weights(rng, ml_dtypes.bfloat16, 4, 6, 5, 6, True)
    w.router = rng.standard_normal((6, 4)).astype(np.float32)
    x = rng.standard_normal((5, 6)).astype(ml_dtypes.bfloat16)
    close(run_layer(run, x, w, k=2), layer(x, w.router, w.gate, w.up, w.down, k=2))


# -- expert_mlp ------------------------------------------------------------------------------------


def test_experts_of_a_router_elsewhere(run: Run, rng: np.random.Generator) -> None:
    w = Weights(rng, np.float32, 4, 6, 5, 7, True)
    x = rng.standard_normal((3, 6)).astype(np.float32)
    ids = np.array([[0, 3], [1, 1], [-1, 2]], np.int32)
    weights = rng.random((3, 2)).astype(np.float32)
    got = run(
        lambda g, *o: g.expert_mlp(*o, activation="gelu"), x, ids, weights, w.gate, w.up, w.down
    )
    assert w.gate is not None
    want = [
        sum(p * expert(t, w.gate[e], w.up[e], w.down[e], "gelu") for e, p in zip(i, s, strict=True))
        for t, i, s in zip(x, ids, weights, strict=True)
    ]
    close(got, np.array(want, np.float32))


def test_results_have_the_dtype_of_the_weights(type_of: Callable[..., str]) -> None:
    def build(g: Any, x: Any, weights: Any, up: Any, down: Any) -> Any:
        ids = np.zeros((3, 2), np.int64)
        return g.expert_mlp(x, ids, g.cast(weights, "float32"), None, up, down)

    shapes = [(3, 4), (3, 2), (5, 4, 6), (5, 6, 7)]
    assert type_of(build, *shapes, dtype="bfloat16") == "f32[3,7]"


# -- grouped_matmul --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.int32)], ids=str)
@pytest.mark.parametrize(("rows", "e"), [(0, 3), (1, 1), (2, 9), (11, 4), (30, 1)])
def test_grouped_matmul(run: Run, rng: np.random.Generator, dtype: Any, rows: int, e: int) -> None:
    x = (rng.standard_normal((rows, 5)) * 3).astype(dtype)
    w = (rng.standard_normal((e, 5, 6)) * 3).astype(dtype)
    ids = rng.integers(0, e, rows)
    got = run(lambda g, *o: g.grouped_matmul(*o), x, w, ids)
    wide = np.int32 if dtype.kind == "i" else np.float64
    want = [row.astype(wide) @ w[i].astype(wide) for row, i in zip(x, ids, strict=True)]
    want = np.array(want).reshape(rows, 6).astype(dtype)
    if dtype.kind == "i":
        np.testing.assert_array_equal(got, want)
    else:
        close(got, want)


@pytest.mark.parametrize("rows", [2, 8])
def test_ids_beyond_the_experts_are_clamped(run: Run, rng: np.random.Generator, rows: int) -> None:
    w = rng.standard_normal((3, 4, 5)).astype(np.float32)
    x = rng.standard_normal((rows, 4)).astype(np.float32)
    ids = np.resize([7, -1, -9, 3], rows)
    got = run(lambda g, *o: g.grouped_matmul(*o), x, w, ids)
    close(got, np.array([r @ w[e] for r, e in zip(x, np.resize([2, 2, 0, 2], rows), strict=True)]))


@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 9, 9], [0, 0, 0]])
def test_rows_grouped_by_offsets(run: Run, rng: np.random.Generator, ends: list[int]) -> None:
    x, w = rng.standard_normal((9, 4)), rng.standard_normal((3, 4, 5))
    want = np.zeros((9, 5))
    for e, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        want[start:end] = x[start:end] @ w[e]
    got = run(lambda g, x, w, o: g.grouped_matmul(x, w, offsets=o), x, w, np.int32(ends))
    np.testing.assert_allclose(got, want)
    g = ost.Graph()
    rows, matrices = g.input("x", (9, 4)), g.input("w", (3, 4, 5))
    with pytest.raises(ost.GraphError, match="by expert_ids, or by offsets"):
        g.grouped_matmul(rows, matrices)
    with pytest.raises(ost.GraphError, match="an offset for each of"):
        g.grouped_matmul(rows, matrices, offsets=[1, 2])


# -- what does not fit -----------------------------------------------------------------------------


def test_known_ids_beyond_the_experts_raise() -> None:
    g = ost.Graph()
    x, w = g.input("x", (2, 4)), g.input("w", (3, 4, 5))
    for ids in ([0, 3], np.array([-4, 0]), g.constant(np.array([1, 5]))):
        with pytest.raises(ost.GraphError, match="out of range for 3 experts"):
            g.grouped_matmul(x, w, ids)
    up, down, weights = g.input("up", (3, 4, 5)), g.input("down", (3, 5, 4)), g.input("s", (2, 1))
    with pytest.raises(ost.GraphError, match="expert 3 is out of range"):
        g.expert_mlp(x, np.array([[0], [3]]), weights, None, up, down)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k is an int from 1 to 3"),
        ({"k": 4}, "k is an int from 1 to 3"),
        ({"route": "greedy"}, "route is one of softmax_topk, topk_softmax"),
        ({"activation": "tanh"}, "activation is one of silu, gelu"),
        ({"router": (4, 2)}, r"router is float32\[4,3\]"),
        ({"up": (3, 5, 6)}, r"up is float32\[\*,4,\*\]"),
        ({"gate": (3, 4, 5)}, r"gate is float32\[3,4,6\]"),
        ({"down": (2, 6, 4)}, r"down is float32\[3,6,\*\]"),
        ({"down": (6, 4)}, r"down is float32\[3,6,\*\]"),
        ({"shared": ((4, 6), (4, 6))}, r"shared is \(gate, up, down\)"),
        ({"shared": (None, (4, 6), (6, 4))}, "gated if and only if"),
        ({"shared": ((4, 6), (4, 6), (5, 4))}, "shared_down is"),
        ({"shared_router": (4, 1)}, "given without shared_up"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    g = ost.Graph()
    shapes: dict[str, Any] = {
        "x": (2, 4), "router": (4, 3), "gate": (3, 4, 6), "up": (3, 4, 6), "down": (3, 6, 4),
    } | {n: s for n, s in change.items() if n not in ("k", "route", "activation")}  # fmt: skip

    def leaf(name: str, shape: Any) -> Any:
        if shape is None:
            return None
        if isinstance(shape[0], int):
            return g.input(name, shape)
        return tuple(leaf(f"{name}{i}", part) for i, part in enumerate(shape))

    leaves = {name: leaf(name, shape) for name, shape in shapes.items()}
    options = {"k": 2} | {n: s for n, s in change.items() if n in ("k", "route", "activation")}
    operands = [leaves.pop(name) for name in ("x", "router", "gate", "up", "down")]
    with pytest.raises(ost.GraphError, match=message):
        g.moe(*operands, **leaves, **options)


def test_flops_count_the_chosen_experts() -> None:
    g = ost.Graph()
    y = g.moe(
        g.input("x", (2, 3, 4)), g.input("r", (4, 8)), g.input("g", (8, 4, 5)),
        g.input("u", (8, 4, 5)), g.input("d", (8, 5, 4)), k=2,
    )  # fmt: skip
    types = [v.type for v in y.node.inputs]
    assert y.node.op.flops(types, y.node.attrs) == 2 * 6 * (32 + 2 * 3 * 20)


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_matrices_beside_float32_rows_may_be_narrow(run, rng, narrow):
    x = rng.standard_normal((5, 7)).astype(np.float32)
    gate, up, down = (
        rng.standard_normal(shape).astype(DType.parse(narrow).numpy)
        for shape in ((3, 7, 4), (3, 7, 4), (3, 4, 6))
    )
    ids, weights = np.array([[0, 2]] * 5), rng.random((5, 2)).astype(np.float32)

    def wide(g, *operands):
        return [g.cast(o, "float32") if o.dtype.name == narrow else o for o in operands]

    every = (x, ids, weights, gate, up, down)
    found = run(lambda g, *operands: g.expert_mlp(*operands), *every)
    wanted = run(lambda g, *operands: g.expert_mlp(*wide(g, *operands)), *every)
    assert np.array_equal(found, wanted)
    row = (x, gate, ids[:, 0])
    found = run(lambda g, *operands: g.grouped_matmul(*operands), *row)
    wanted = run(lambda g, *operands: g.grouped_matmul(*wide(g, *operands)), *row)
    assert np.array_equal(found, wanted)
    compiled = ost.Graph("narrow")
    values = [compiled.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(every)]
    compiled.set_outputs([compiled.expert_mlp(*values)])
    feed = {f"x{i}": a for i, a in enumerate(every)}
    (ours,) = ost.Session("cpu").compile(compiled).run(feed)
    np.testing.assert_allclose(ours, evaluate(compiled, feed)[0], rtol=1e-5, atol=1e-5)

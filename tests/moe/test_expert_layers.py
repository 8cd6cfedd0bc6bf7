"""Layers of experts in compiled graphs: the same bits, however they are run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.passes.pipeline import run_passes
from tests.devices.registered import open_session

Array = np.ndarray[Any, Any]

TOKENS, EXPERTS, FEATURES, HIDDEN = 37, 6, 96, 200


def layer(tokens: Any = TOKENS, **options: Any) -> ost.Graph:
    g = ost.Graph("layer")
    x = g.input("x", (tokens, FEATURES))
    shapes = {
        "router": (FEATURES, EXPERTS),
        "gate": (EXPERTS, FEATURES, HIDDEN),
        "up": (EXPERTS, FEATURES, HIDDEN),
        "down": (EXPERTS, HIDDEN, FEATURES),
    }
    weights = [g.param(name, shape) for name, shape in shapes.items()]
    g.set_outputs([x + g.moe(x, *weights, k=2, **options)])
    return g


@pytest.fixture
def arrays() -> dict[str, Array]:
    rng = np.random.default_rng(11)
    shapes = {v.name: v.shape for v in layer().params.values()}
    made = {n: rng.standard_normal(s) / np.sqrt(int(s[-2])) for n, s in shapes.items()}
    return {n: a.astype(np.float32) for n, a in made.items()}


def tokens_of(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(np.float32)


@pytest.mark.needs("host_threads")
def test_threads_make_no_difference(arrays: dict[str, Array], device: str) -> None:
    x = tokens_of(TOKENS)
    runs = [
        open_session(device, threads=threads).compile(layer(), params=arrays).run({"x": x})[0]
        for threads in (1, 2, 5)
    ]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0], other)


@pytest.mark.needs("llvm")
def test_tokens_make_no_difference_to_each_other(
    arrays: dict[str, Array], session: ost.Session
) -> None:
    tokens = ost.Variable("tokens", 1, TOKENS)
    g = ost.Graph("experts")
    x, scale = g.input("x", (tokens, FEATURES)), g.input("scale", (tokens, 2))
    ids = g.input("ids", (tokens, 2), "int64")
    weights = {n: a for n, a in arrays.items() if n != "router"}
    g.set_outputs([g.expert_mlp(x, ids, scale, *(g.param(n, a.shape) for n, a in weights.items()))])
    compiled = session.compile(g, params=weights)
    rng = np.random.default_rng(3)
    inputs = {
        "x": tokens_of(TOKENS),
        "scale": rng.random((TOKENS, 2)).astype(np.float32),
        "ids": rng.integers(0, EXPERTS, (TOKENS, 2)),
    }
    (whole,) = compiled.run(inputs)
    for i in range(TOKENS):
        (alone,) = compiled.run({name: array[i : i + 1] for name, array in inputs.items()})
        np.testing.assert_array_equal(alone, whole[i : i + 1])


def test_without_kernels_for_experts(arrays: dict[str, Array], session: ost.Session) -> None:
    """The decomposition, for backends that have none, is the same layer."""

    class Fewer:
        ops = frozenset(CAPABILITIES.ops) - {"expert_mlp", "grouped_matmul"}
        dtypes = CAPABILITIES.dtypes
        padded_conv = False
        excluded = CAPABILITIES.excluded

    x = tokens_of(TOKENS)
    plain, _ = run_passes(layer(), capabilities=Fewer())
    assert not {n.op.name for n in plain.nodes} & {"expert_mlp", "grouped_matmul", "moe"}
    (expected,) = session.compile(plain, params=arrays).run({"x": x})
    for optimize in (True, False):
        options = ost.CompileOptions(optimize=optimize)
        (got,) = session.compile(layer(), params=arrays, options=options).run({"x": x})
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_weights_written_later(arrays: dict[str, Array], session: ost.Session) -> None:
    compiled = session.compile(layer(), params=arrays)
    x = tokens_of(TOKENS)
    (before,) = compiled.run({"x": x})
    compiled.set_param("down", 2 * arrays["down"])
    (after,) = compiled.run({"x": x})
    np.testing.assert_allclose(after - x, 2 * (before - x), rtol=1e-4, atol=1e-5)


@pytest.mark.needs("llvm")
def test_kernels_of_a_layer(arrays: dict[str, Array], session: ost.Session) -> None:
    compiled = session.compile(layer(1), params=arrays)
    compiled.run({"x": tokens_of(1)})
    profile = {p.name: p for p in compiled.plan.execute_profiled()}
    assert "expert_mlp+add" in profile
    inner = profile["experts in"]
    assert inner.flops == 2 * 2 * 2 * FEATURES * HIDDEN
    # Of six experts the two that one token can choose.
    assert inner.bytes < 3 * 2 * FEATURES * 256 * 4


@pytest.mark.needs("llvm")
def test_lists_of_rows_outlive_the_run(arrays: dict[str, Array], session: ost.Session) -> None:
    """The lists of the experts of each layer are overwritten by no later kernel."""
    g = ost.Graph("layers")
    value = g.input("x", (TOKENS, FEATURES))
    weights = [g.param(name, array.shape, value=array) for name, array in arrays.items()]
    outputs = []
    for _ in range(4):
        _, ids = g.topk(value @ weights[0], 2)
        outputs.append(ids)
        value = g.expert_mlp(value, ids, g.ones((TOKENS, 2)), *weights[1:]) * 0.1
    g.set_outputs([*outputs, g.sum(g.tanh(value), axis=0)])
    compiled = session.compile(g)
    *chosen, _ = compiled.run({"x": tokens_of(TOKENS)})
    ops = [op for op in compiled.plan.prepared_ops if op.name == "group"]
    for op, ids in zip(ops, chosen, strict=True):
        listed = op.writes[0].copyout()
        layout = op.kernel.kernel.layout
        found = np.full(2 * TOKENS, -1)
        for part in range(int(listed[0])):
            expert, first, count = listed[1 + 3 * part : 4 + 3 * part]
            rows = listed[layout.first_row + first : layout.first_row + first + count]
            assert list(rows) == sorted(rows)
            found[rows] = expert
        np.testing.assert_array_equal(found, ids.ravel())


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "uint64"])
def test_ids_of_experts_that_do_not_exist_are_refused(dtype: str, session: ost.Session) -> None:
    g = ost.Graph()
    x, w, ids = g.input("x", (4, 8)), g.param("w", (3, 8, 5)), g.input("ids", (2, 2), dtype)
    g.set_outputs([g.grouped_matmul(x, w, g.reshape(ids, (4,)))])
    matrices = np.random.default_rng(5).standard_normal((3, 8, 5)).astype(np.float32)
    compiled = session.compile(g, {"w": matrices})
    rows = np.ones((4, 8), np.float32)
    fine = np.array([[0, 1], [2, 2]], dtype)
    (want,) = compiled.run({"x": rows, "ids": fine})
    for wrong in (3, 100) if dtype.startswith("u") else (3, 100, -4):
        ids_beyond = np.array([[0, 1], [wrong, 2]], dtype)
        with pytest.raises(ost.InputError, match=f"'ids' has expert {wrong}.*3 experts"):
            compiled.run({"x": rows, "ids": ids_beyond})
    if not dtype.startswith("u"):
        (from_the_end,) = compiled.run({"x": rows, "ids": np.array([[-3, -2], [-1, 2]], dtype)})
        np.testing.assert_array_equal(want, from_the_end)
    (again,) = compiled.run({"x": rows, "ids": fine})
    np.testing.assert_array_equal(want, again)

"""Writing weights: what is refused, what is prepared again, and when runs see it."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost

from .graphs import FED, B, W, X, refused, strided, tiny, tiny_graph


def close(compiled: ost.CompiledGraph, w: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(compiled.run(FED)[0], tiny(X, w, b), rtol=1e-5, atol=1e-6)


# ---- written and never written -----------------------------------------------------------------


def test_params_may_come_later_one_by_one(session):
    compiled = session.compile(tiny_graph())
    out = [np.full((2, 3), 7, np.float32)]
    for left in ("b: f32[3], w: f32[4,3]", "b: f32[3]"):
        for call in (
            lambda: compiled.run(FED),
            lambda: compiled.run_raw(FED),
            lambda: compiled.run(FED, out=out),
            lambda: compiled.bind(FED, out),
        ):
            with pytest.raises(ost.InputError, match="never set") as caught:
                call()
            assert left in str(caught.value)
            assert "set_param" in str(caught.value)
        compiled.set_param("w", W)
    assert (out[0] == 7).all()
    compiled.set_param("b", B)
    close(compiled, W, B)


def test_values_in_the_graph_are_the_start(session):
    g = ost.Graph()
    w = g.param("w", (3,), value=np.full(3, 2, np.float32))
    v = g.param("v", (3,), value=np.full(3, 10, np.float32))
    g.set_outputs([g.input("x", (3,)) * w + v])
    x = np.arange(3, dtype=np.float32)
    assert session.compile(g).run({"x": x})[0].tolist() == [10, 12, 14]
    compiled = session.compile(g, {"w": np.full(3, 5, np.float32)})
    assert compiled.run({"x": x})[0].tolist() == [10, 15, 20]
    compiled.set_param("v", np.zeros(3, np.float32))
    assert compiled.run({"x": x})[0].tolist() == [0, 5, 10]
    assert session.compile(g).run({"x": x})[0].tolist() == [10, 12, 14], "the graph kept its values"


def test_a_param_is_a_copy(own):
    w = W.copy()
    own.set_param("w", w)
    before = own.run(FED)[0]
    w[:] = 100
    assert own.run(FED)[0].tobytes() == before.tobytes()


def test_writing_changes_results_and_only_what_is_written(own):
    close(own, W, B)
    own.set_param("b", B + 1)
    close(own, W, B + 1)
    own.set_param("w", W * 2)
    close(own, W * 2, B + 1)
    own.set_params({"w": W, "b": B})
    close(own, W, B)
    own.set_params({})
    close(own, W, B)


def test_layouts_of_all_kinds(own):
    before = own.run(FED)[0].tobytes()
    for w in (strided(W), np.asfortranarray(W), W[::-1].copy()[::-1], memoryview(W)):
        own.set_param("w", np.zeros((4, 3), np.float32))
        own.set_param("w", w)
        assert own.run(FED)[0].tobytes() == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "bool"])
def test_params_of_every_width(session, dtype):
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    g = ost.Graph()
    w = g.param("w", (5,), dtype)
    g.set_outputs([w, g.concat([w, w], 0)])
    values = np.array([0, 1, 1, 0, 1], numpy_dtype)
    alone, twice = session.compile(g, {"w": values}).run()
    assert alone.tobytes() == values.tobytes()
    assert twice.tobytes() == 2 * values.tobytes()


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "float64": ({"w": W.astype(np.float64)}, ("param 'w'", "float32", "float64")),
    "shape": ({"w": W.T}, ("param 'w'", "(4, 3)", "(3, 4)")),
    "rank": ({"w": W.ravel()}, ("param 'w'", "(4, 3)", "(12,)")),
    "byte order": ({"w": W.astype(">f4")}, ("param 'w'", "byte order")),
    "nothing": ({"w": None}, ("param 'w'", "NoneType")),
    "an input": ({"x": X}, ("unknown param 'x'", "'w', 'b'")),
    "a number as name": ({0: W}, ("param", "0")),
    "no mapping": ([W, B], ("mapping", "list")),
    "an array": (W, ("mapping", "ndarray")),
    "the second is wrong": ({"b": B + 1, "w": W[0]}, ("param 'w'", "(3,)")),
    "the second is unknown": ({"b": B + 1, "v": W}, ("unknown param 'v'",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_param_is_named_and_none_is_written(session, own, name):
    given, parts = WRONG[name]
    with refused(lambda: own.run(FED), ost.InputError, *parts):
        own.set_params(given)
    with pytest.raises(ost.InputError):
        session.compile(tiny_graph(), given)
    for param, array in given.items() if isinstance(given, dict) and len(given) == 1 else ():
        with refused(lambda: own.run(FED), ost.InputError, *parts):
            own.set_param(param, array)


# ---- what is prepared from them ----------------------------------------------------------------


def layered_graph(layers: int = 3) -> ost.Graph:
    """Weights that meet before an input does, alone and together, besides plain products."""
    g = ost.Graph()
    x = g.input("x", (8, 24))
    shared = g.param("shared", (24,))
    for i in range(layers):
        w, s = g.param(f"w{i}", (24, 24)), g.param(f"s{i}", (24,))
        scaled = w * g.exp(s) + shared
        x = g.tanh(g.matmul(x, scaled) + g.matmul(x, g.permute_dims(w, (1, 0))))
    g.set_outputs([x, g.concat([g.param("top", (2, 3)), g.param("bottom", (4, 3))], 0)])
    return g


@pytest.mark.needs("lowers")
def test_what_is_prepared_follows_every_write(session):
    g = layered_graph()
    rng = np.random.default_rng(0)

    def fresh(name: str) -> np.ndarray:
        return (rng.standard_normal(g.params[name].shape) / 5).astype(np.float32)

    params = {name: fresh(name) for name in g.params}
    compiled = session.compile(g, params)
    assert compiled.plan.preparation, "this graph is meant to have some"
    x = rng.standard_normal((8, 24)).astype(np.float32)
    y = [np.empty((8, 24), np.float32), np.empty((6, 3), np.float32)]
    bound = compiled.bind({"x": x}, y)
    names = [*g.params, "shared", *reversed(g.params)]
    for batch in [[name] for name in names] + [["w0", "s2"], ["top", "shared"], list(g.params)]:
        params |= {name: fresh(name) for name in batch}
        compiled.set_params({name: params[name] for name in batch})
        expected = ost.reference.evaluate(g, {"x": x}, params)
        bound()
        for got, again, wanted in zip(y, compiled.run({"x": x}), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
            assert got.tobytes() == again.tobytes()


def test_order_of_writing_does_not_matter(session):
    g = layered_graph(1)
    rng = np.random.default_rng(1)
    params = {n: rng.random(v.shape, np.float32) for n, v in g.params.items()}
    x = {"x": rng.random((8, 24), np.float32)}
    whole = [a.tobytes() for a in session.compile(g, params).run(x)]
    for shift in range(len(params)):
        names = [*params]
        compiled = session.compile(g, {names[shift]: params[names[shift]]})
        for name in names[shift + 1 :] + names[:shift]:
            compiled.set_param(name, params[name])
        assert [a.tobytes() for a in compiled.run(x)] == whole


# ---- together with runs ------------------------------------------------------------------------


def test_no_run_sees_half_of_a_write(session):
    """Two params that always sum to zero, written by some threads while others run."""
    size = 200_000
    g = ost.Graph()
    a, b = g.param("a", (size,)), g.param("b", (size,))
    g.set_outputs([g.input("x", (size,)) + a + b])
    ones = np.ones(size, np.float32)
    compiled = session.compile(g, {"a": ones, "b": -ones})
    x = np.zeros(size, np.float32)
    stop, wrong = threading.Event(), []

    def write(value: float) -> None:
        pair = {"a": ones * value, "b": ones * -value}
        while not stop.is_set():
            compiled.set_params(pair)

    def run(use_bound: bool) -> None:
        y = np.ones(size, np.float32)
        bound = compiled.bind({"x": x}, [y])
        for _ in range(60):
            result = (bound(), y)[1] if use_bound else compiled.run({"x": x})[0]
            if result.any():
                wrong.append(result.copy())

    writers = [threading.Thread(target=write, args=(v,)) for v in (3.0, 5.0)]
    runners = [threading.Thread(target=run, args=(bound,)) for bound in (True, False)]
    for thread in (*writers, *runners):
        thread.start()
    for thread in runners:
        thread.join()
    stop.set()
    for thread in writers:
        thread.join()
    assert not wrong

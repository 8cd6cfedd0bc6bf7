"""Users' arrays: with any strides, overlapping, shared between threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import InputError
from tests.devices.registered import open_session

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)


def _affine() -> ost.Graph:
    """A graph that reads elements at other positions than it writes."""
    g = ost.Graph("affine")
    x = g.input("x", (6, 7))
    g.set_outputs([g.flip(x, 1) * 2.0 + g.sum(x, axis=0)])
    return g


def _layouts(array: Array) -> dict[str, Array]:
    """The same elements in memory of every kind."""
    wide = np.zeros((array.shape[0] * 2, array.shape[1] * 3), array.dtype)
    wide[::2, ::3] = array
    raw = bytearray(array.nbytes + 1)
    odd: Array = np.frombuffer(memoryview(raw)[1:], array.dtype).reshape(array.shape)
    odd[...] = array
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "strided": wide[::2, ::3],
        "fortran": np.asfortranarray(array),
        "negative": np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1],
        "misaligned": odd,
        "read-only": frozen,
    }


@pytest.mark.parametrize("layout", list(_layouts(np.zeros((2, 2)))))
def test_any_layout(layout: str, session: ost.Session) -> None:
    array = np.random.default_rng(0).uniform(-1, 1, (6, 7)).astype(np.float32)
    graph = _affine()
    (expected,) = ost.reference.evaluate(graph, {"x": array})
    given = _layouts(array)[layout]
    kept = given.copy()
    compiled = session.compile(graph)
    for _ in range(2):  # sizes that were seen before take a shorter path
        (actual,) = compiled.run({"x": given})
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
        np.testing.assert_array_equal(given, kept)


def test_foreign_byte_order_is_another_dtype(session: ost.Session) -> None:
    array = np.zeros((6, 7), ">f4")
    with pytest.raises(InputError, match="byte order"):
        session.compile(_affine()).run({"x": array})
    (actual,) = session.compile(_affine(), options=ost.CompileOptions(cast_inputs=True)).run(
        {"x": array + 1}
    )
    np.testing.assert_array_equal(actual, np.full((6, 7), 8, np.float32))


def test_broadcast_input(session: ost.Session) -> None:
    array = np.broadcast_to(np.float32(2), (6, 7))
    (actual,) = session.compile(_affine()).run({"x": array})
    np.testing.assert_array_equal(actual, np.full((6, 7), 16, np.float32))


@pytest.mark.parametrize("number", [0, 1, 2, 255])
def test_bool_bytes_other_than_0_and_1(number: int, session: ost.Session) -> None:
    g = ost.Graph("bools")
    x, t = g.input("x", (40,), "bool"), g.input("t", (40,))
    g.set_outputs([g.where(x, t, -t), g.logical_not(x), g.sum(g.cast(x, "int32"))])
    flags = np.full(40, number, np.uint8).view(bool)
    picked, opposite, count = session.compile(g).run({"x": flags, "t": np.ones(40, np.float32)})
    assert (picked == (1 if number else -1)).all()
    assert (opposite.view(np.uint8) == (number == 0)).all()
    assert count == (40 if number else 0)


# -- memory that overlaps --------------------------------------------------------------------------


def test_output_over_its_own_input(session: ost.Session) -> None:
    graph = _affine()
    array = np.random.default_rng(0).uniform(-1, 1, (6, 7)).astype(np.float32)
    (expected,) = ost.reference.evaluate(graph, {"x": array})
    compiled = session.compile(graph)
    with pytest.raises(InputError, match="memory"):
        compiled.bind({"x": array}, [array])
    with pytest.raises(InputError, match="memory"):
        compiled.run({"x": array}, out=[array])
    out = np.zeros_like(array)
    compiled.run({"x": array}, out=[out])
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_outputs_over_each_other(session: ost.Session) -> None:
    g = ost.Graph("two")
    x = g.input("x", (4,))
    g.set_outputs([x + 1.0, x * 2.0])
    compiled = session.compile(g)
    memory = np.zeros(6, np.float32)
    for out in ([memory[:4], memory[:4]], [memory[:4], memory[2:]]):
        with pytest.raises(InputError, match="memory"):
            compiled.run({"x": np.ones(4, np.float32)}, out=out)
        with pytest.raises(InputError, match="memory"):
            compiled.bind({"x": np.ones(4, np.float32)}, out)
    compiled.run({"x": np.ones(4, np.float32)}, out=[memory[:2].repeat(2), np.zeros(4, np.float32)])


def test_raw_results_as_inputs(session: ost.Session) -> None:
    """They lie where the next results will."""
    compiled = session.compile(_affine())
    (raw,) = compiled.run_raw({"x": np.ones((6, 7), np.float32)})
    kept = raw.copy()
    with pytest.raises(InputError, match="memory"):
        compiled.run_raw({"x": raw})
    np.testing.assert_array_equal(raw, kept)
    (actual,) = compiled.run({"x": raw})
    (expected,) = ost.reference.evaluate(_affine(), {"x": kept})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_results_never_change_later(session: ost.Session) -> None:
    g = ost.Graph("leaves")
    x, c = g.input("x", (4,)), g.constant(np.arange(4, dtype=np.float32))
    w, s = g.param("w", (4,)), g.state("s", (4,))
    g.assign(s, s + x)
    g.set_outputs([x, c, w, s, g.reshape(w, (2, 2))])
    compiled = session.compile(g, {"w": np.ones(4, np.float32)})
    given = np.ones(4, np.float32)
    first = compiled.run({"x": given})
    kept = [a.copy() for a in first]
    for array in first:
        np.add(array, 1, out=array)
    given += 5
    compiled.set_param("w", np.zeros(4, np.float32))
    second = compiled.run({"x": given})
    for mine, before in zip(first, kept, strict=True):
        np.testing.assert_array_equal(mine, before + 1)
    for mine, truth in zip(second, ([6] * 4, range(4), [0] * 4, [1] * 4), strict=False):
        np.testing.assert_array_equal(mine, np.array(truth, np.float32))


# -- params ----------------------------------------------------------------------------------------


def _dense() -> tuple[ost.Graph, dict[str, Array]]:
    g = ost.Graph("dense")
    x, w, b = g.input("x", (3, 20)), g.param("w", (20, 33)), g.param("b", (33,))
    g.set_outputs([g.relu(g.matmul(x, g.exp(w)) + b * 2.0), g.matmul(x, w)])
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 20), "w": (20, 33), "b": (33,)}
    return g, {name: rng.uniform(-1, 1, s).astype(np.float32) for name, s in shapes.items()}


def test_written_params_reach_every_kind_of_run(session: ost.Session) -> None:
    graph, arrays = _dense()
    inputs = {"x": arrays.pop("x")}
    compiled = session.compile(graph, arrays)
    out = [np.zeros((3, 33), np.float32) for _ in range(2)]
    call = compiled.bind(inputs, out)
    for turn in range(3):
        expected = ost.reference.evaluate(graph, inputs, arrays)
        call()
        for mine, truth in zip(out, expected, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-5)
        for mine, truth in zip(compiled.run(inputs), expected, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-5)
        name = ("w", "b", "w")[turn]
        arrays[name] = arrays[name] * -1.5
        compiled.set_param(name, arrays[name])


def test_a_param_is_copied(session: ost.Session) -> None:
    graph, arrays = _dense()
    inputs = {"x": arrays.pop("x")}
    expected = ost.reference.evaluate(graph, inputs, arrays)
    compiled = session.compile(graph, arrays)
    for array in arrays.values():
        array[...] = 0
    for mine, truth in zip(compiled.run(inputs), expected, strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-5)


# -- threads ---------------------------------------------------------------------------------------


def test_one_compiled_graph_from_many_threads(session: ost.Session) -> None:
    graph, arrays = _dense()
    del arrays["x"]
    compiled = session.compile(graph, arrays)
    _run_threads(lambda i: _check_some(graph, compiled, arrays, i))


def test_several_compiled_graphs_at_once(session: ost.Session) -> None:
    graph, arrays = _dense()
    del arrays["x"]
    _run_threads(lambda i: _check_some(graph, session.compile(graph, arrays), arrays, i))


def _check_some(graph: ost.Graph, compiled: Any, params: dict[str, Array], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        inputs = {"x": rng.uniform(-1, 1, (3, 20)).astype(np.float32)}
        expected = ost.reference.evaluate(graph, inputs, params)
        for mine, truth in zip(compiled.run(inputs), expected, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=1e-4, atol=1e-5)


def _run_threads(work: Any) -> None:
    failures: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]

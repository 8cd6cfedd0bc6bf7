"""Sessions: devices, options, and what compiling refuses."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import ostinato as ost

from .graphs import FED, B, W, tiny, tiny_graph


def test_what_a_compiled_graph_says_of_itself(session):
    g = ost.Graph()
    n = ost.Variable("n", 1, 8)
    x, k = g.input("x", (n, 4)), g.input("k", (), "int64")
    w = g.param("w", (4, 3), "float16")
    y = g.matmul(x, g.cast(w, "float32"))
    g.set_outputs({"y": y, "k1": k + 1})
    compiled = session.compile(g)
    assert list(compiled.inputs) == ["x", "k"]
    assert list(compiled.outputs) == ["y", "k1"]
    assert list(compiled.params) == ["w"]
    spec = compiled.inputs["x"]
    assert (spec.name, str(spec.dtype), spec.shape) == ("x", "float32", (n, 4))
    assert (compiled.params["w"].dtype.numpy, compiled.params["w"].shape) == (np.float16, (4, 3))
    assert compiled.outputs["y"].shape == (n, 3)
    assert compiled.outputs["k1"].shape == ()
    assert str(compiled.inputs["k"]) == "k: i64[]"
    assert compiled.device == session.device
    with pytest.raises(TypeError):
        compiled.inputs["z"] = spec


def test_outputs_keep_their_order_and_their_names(session):
    g = ost.Graph()
    x = g.input("x", (2,))
    g.set_outputs({"z": x + 1, "a": x + 2, "m": x + 1})
    z, a, m = session.compile(g).run({"x": np.zeros(2, np.float32)})
    assert (z.tolist(), a.tolist(), m.tolist()) == ([1, 1], [2, 2], [1, 1])


def test_compiling_leaves_the_graph_as_it_is(session):
    g = tiny_graph()
    before = str(g)
    first = session.compile(g, {"w": W, "b": B})
    second = session.compile(g, {"w": W * 2, "b": B})
    assert str(g) == before
    assert first.run(FED)[0].tobytes() != second.run(FED)[0].tobytes()
    g.set_outputs([g.inputs["x"] * 3])
    np.testing.assert_allclose(first.run(FED)[0], tiny(), rtol=1e-5, atol=1e-6)


OPTIONS = [
    {"optimize": False},
    {"elementwise_fusion": False},
    {"epilogue_fusion": False},
    {"rowwise_fusion": False},
    {"product_fusion": False},
    {"joint_weights": False},
    {"disabled_passes": frozenset({"algebraic", "recover_gelu"})},
    {"verify": True},
    {"target": "sse2"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_options_change_no_results(session, options):
    chosen = ost.CompileOptions(**options)
    for where, how in ((session, chosen), (ost.Session("cpu", options=chosen), None)):
        compiled = where.compile(tiny_graph(), {"w": W, "b": B}, options=how)
        np.testing.assert_allclose(compiled.run(FED)[0], tiny(), rtol=1e-5, atol=1e-6)


@pytest.mark.needs("llvm")
def test_progress_is_told(session):
    calls: list[tuple[int, int]] = []
    session.compile(tiny_graph(), progress=lambda done, total: calls.append((done, total)))
    assert calls
    assert calls[-1][0] == calls[-1][1] == len(calls)
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))


@pytest.mark.parametrize(
    ("arguments", "error", "parts"),
    [
        (("nowhere",), ost.DeviceUnavailableError, ("NOWHERE:0", "cpu")),
        (("cpu:1",), ost.DeviceUnavailableError, ("CPU:1", "CPU:0")),
        (("cuda:99",), ost.DeviceUnavailableError, ("CUDA:99",)),
        (("",), ost.DeviceUnavailableError, ("''",)),
        ((3,), ost.DeviceUnavailableError, ("3",)),
        ((None,), ost.DeviceUnavailableError, ("None",)),
        (("cpu:-1",), ost.DeviceUnavailableError, ("cpu:-1",)),
        (("cpu:99999",), ost.DeviceUnavailableError, ("cpu:99999",)),
        ((ost.Device("CPU", -1),), ost.DeviceUnavailableError, ("CPU:-1",)),
    ],
)
def test_sessions_that_can_not_be_opened(arguments, error, parts):
    with pytest.raises(error) as caught:
        ost.Session(*arguments)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("threads", [0, -1, 1025, 2.0, "2", True, [2], 1 << 70])
def test_thread_counts_that_make_no_sense(threads):
    with pytest.raises(ost.InputError, match=r"threads is an int within 1\.\.1024"):
        ost.Session("cpu", threads=threads)
    with pytest.raises(ost.InputError, match=r"threads is an int within 1\.\.1024"):
        ost.GraphExecutor("cpu", threads=threads)


def no_outputs() -> ost.Graph:
    g = ost.Graph("empty")
    g.input("x", (2,))
    return g


@pytest.mark.parametrize(
    ("graph", "kwargs", "error", "parts"),
    [
        (no_outputs(), {}, ost.GraphError, ("'empty'", "no outputs", "set_outputs")),
        ("graph", {}, ost.GraphError, ("Graph", "str")),
        (None, {}, ost.GraphError, ("Graph", "NoneType")),
        (ost.Graph, {}, ost.GraphError, ("expected a Graph",)),
        (tiny_graph(), {"options": {}}, ost.InputError, ("CompileOptions", "dict")),
        (tiny_graph(), {"params": [W]}, ost.InputError, ("mapping", "list")),
        (
            tiny_graph(),
            {"options": ost.CompileOptions(disabled_passes=frozenset({"magic"}))},
            ost.InputError,
            ("magic", "algebraic"),
        ),
    ],
)
def test_what_can_not_be_compiled(session, graph, kwargs, error, parts):
    with pytest.raises(error) as caught:
        session.compile(graph, **kwargs)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.needs("llvm")
def test_an_unknown_target(session):
    with pytest.raises(ost.DeviceUnavailableError, match=r"z80.*avx2"):
        session.compile(tiny_graph(), options=ost.CompileOptions(target="z80"))


def test_wrong_options_of_a_session():
    with pytest.raises(ost.InputError, match="CompileOptions"):
        ost.Session("cpu", options="fast")


def test_errors_are_of_the_documented_kinds():
    assert issubclass(ost.InputError, (ost.OstinatoError, ValueError))
    assert issubclass(ost.VariableError, (ost.OstinatoError, ValueError))
    assert issubclass(ost.UnsupportedOpError, (ost.OstinatoError, NotImplementedError))
    for name in ost.__all__:
        if name == "from_torch" and find_spec("torch") is None:
            with pytest.raises(ModuleNotFoundError, match=r"needs PyTorch.*pip install"):
                ost.from_torch  # noqa: B018
            continue
        value: Any = getattr(ost, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, ost.OstinatoError)


def test_memory_that_no_machine_has(session):
    g = ost.Graph()
    x = g.input("x", ())
    big = g.broadcast_to(x, (1 << 40, 1 << 9))
    g.set_outputs([g.sum(g.cumsum(big, axis=1))])
    with pytest.raises((MemoryError, ost.OstinatoError)):
        session.compile(g).run({"x": np.float32(1)})
    for shape in ((1 << 62, 1 << 62), (1 << 55, 4)):
        g = ost.Graph()
        g.set_outputs([g.input("x", shape) + 1])
        with pytest.raises(ost.GraphError, match="too large"):
            session.compile(g)


def test_states_live_from_run_to_run(session):
    g = ost.Graph()
    count = g.state("count", (3,), "int32", init=10)
    g.assign(count, count + g.input("x", (3,), "int32"))
    g.set_outputs([count * 2])
    first, second = session.compile(g), session.compile(g)
    x = np.array([1, 2, 3], np.int32)
    seen = [first.run({"x": x})[0].tolist() for _ in range(3)]
    assert seen == [[20, 20, 20], [22, 24, 26], [24, 28, 32]]
    with pytest.raises(ost.InputError):
        first.run({"x": x[:2]})
    assert first.run({"x": x})[0].tolist() == [26, 32, 38], "a refused call moved no state"
    assert second.run({"x": x})[0].tolist() == [20, 20, 20], "states are each graph's own"

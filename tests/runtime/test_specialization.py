"""Graphs that are compiled for the sizes that runs bring."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost

Array = np.ndarray[Any, Any]

WEIGHT = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)


def info(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(nodes: list[Any], inputs: list[Any], outputs: list[Any], **stored: Array) -> Any:
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def resizing(shape: tuple[Any, ...] = ("batch", 3, "height", "width")) -> onnx.ModelProto:
    """A convolution, and a resize that takes numbers for sizes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Resize", ["c", "", "scales"], ["r"], mode="linear", name="bigger"),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    scales = np.array([1, 1, 1.3, 1.3], np.float32)  # no multiple of 1 / 64
    return proto(nodes, [info("x", list(shape))], [info("y", None)], w=WEIGHT, scales=scales)


def growing() -> onnx.ModelProto:
    """A model whose sizes are Variables: the sum of each row, and its rows once more."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=1),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    return proto(nodes, [info("x", ["n", "m"])], [info("y", None)], axes=np.array([1]))


def image(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def expected(graph: ost.Graph, x: Array) -> Array:
    return ost.reference.evaluate(graph, {"x": x})[0]


def close(ours: Array, theirs: Array) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def graph() -> ost.Graph:
    return ost.load_onnx(resizing())


@pytest.fixture
def compiled(session: ost.Session, graph: ost.Graph) -> ost.CompiledGraph:
    return session.compile(graph)


SIZES = [(1, 3, 5, 7), (2, 3, 16, 1), (1, 3, 13, 13)]


def test_runs_of_any_size(graph, compiled):
    for _ in range(2):
        for shape in SIZES:
            x = image(*shape)
            (y,) = compiled.run({"x": x})
            close(y, expected(graph, x))
            assert len(compiled.specializations) <= len(SIZES)
    assert len(compiled.specializations) == len(SIZES)


def test_the_fewest_sizes_are_numbers(compiled):
    compiled.run({"x": image(1, 3, 4, 4)})
    compiled.run({"x": image(5, 3, 4, 4)})
    (only,) = compiled.specializations
    assert "height = 4" in only.sizes
    assert "batch" not in only.sizes
    assert only.seconds > 0
    report = compiled.explain()
    assert "symbolic: batch" in report
    assert "specialised: height, width, because of Resize 'bigger'" in report
    assert "compiled for height = 4, width = 4" in report


def test_every_way_to_run(graph, compiled):
    x = image(1, 3, 6, 5)
    y = expected(graph, x)
    close(compiled.run_raw({"x": x})[0], y)
    close(compiled.run_read_outputs({"x": x}, [0])[0], y)
    close(compiled.run({"x": x}, out=[out := np.empty(y.shape, y.dtype)])[0], y)
    close(out, y)
    ((offset, count),) = compiled.run_slots(x)
    close(np.frombuffer(compiled.arena, np.float32, count, offset), y.reshape(-1))
    other = image(1, 3, 3, 2)
    for got, wanted in zip(
        compiled.run_pipelined([{"x": x}, {"x": other}]), (x, other), strict=True
    ):
        close(got[0], expected(graph, wanted))
    close(compiled.read_output_row(0, 0), expected(graph, other)[0])
    compiled.commit_no_wait({"x": x})
    compiled.sync_pending()
    close(compiled.read_output_row(0, 0), y[0])


@pytest.mark.needs("capture")
def test_bound_calls_and_recordings(session, graph, compiled):
    x, out = image(1, 3, 4, 6), np.empty((1, 8, 5, 7), np.float32)
    call = compiled.bind({"x": x}, [out])
    call()
    close(out, expected(graph, x))
    x[:] = image(1, 3, 4, 6, seed=1)
    session.context.begin_graph_capture()
    call()
    compiled.commit_no_wait({"x": x})
    session.context.end_graph_capture(5)
    out[:] = 0
    assert session.context.replay_graph(5)
    close(out, expected(graph, x))
    close(compiled.read_output_row(0, 0), out[0])
    session.context.reset_graph(5)


def test_the_least_recently_used_is_dropped(session, graph):
    options = ost.CompileOptions(max_specializations=2)
    compiled = session.compile(graph, options=options)
    for width in (3, 4, 3, 5):
        compiled.run({"x": image(1, 3, 2, width)})
    assert [sizes.sizes for sizes in compiled.specializations] == [
        "height = 2, width = 3",
        "height = 2, width = 5",
    ]
    x = image(1, 3, 2, 4)
    close(compiled.run({"x": x})[0], expected(graph, x))
    assert len(compiled.specializations) == 2


def test_warm_compiles_and_runs_nothing(compiled):
    assert compiled.specializations == ()
    compiled.warm({"batch": 1, "height": 8, "width": 9})
    compiled.warm({"x": (1, 3, 9, 9)})
    assert len(compiled.specializations) == 2
    compiled.run({"x": image(4, 3, 8, 9)})
    assert len(compiled.specializations) == 2
    with pytest.raises(ost.VariableError, match="give width"):
        compiled.warm({"batch": 1, "height": 8})
    with pytest.raises(ost.InputError, match="no size and no input 'depth'"):
        compiled.warm({"depth": 1})
    with pytest.raises(ost.InputError, match="has shape"):
        compiled.warm({"x": (1, 4, 9, 9)})


def test_warm_takes_the_names_of_the_model(session):
    """Of a size that is a multiple of a Variable's too."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = proto(nodes, [info("x", ["a dim"])], [info("y", None)], shape=np.array([4, -1]))
    compiled = session.compile(ost.load_onnx(model))
    compiled.warm({"a dim": 8})
    assert len(compiled.specializations) == 1
    compiled.warm({"a dim": 4000})
    assert [s.sizes for s in compiled.specializations] == ["", "a dim in 4..4092"]
    assert "symbolic: a dim" in compiled.explain()


def test_never(session, graph):
    with pytest.raises(ost.GraphError, match=r"given height, width: Resize 'bigger'.*dims="):
        session.compile(graph, options=ost.CompileOptions(specialize="never"))
    compiled = session.compile(
        ost.load_onnx(growing()), options=ost.CompileOptions(specialize="never")
    )
    with pytest.raises(ost.VariableError, match=r"bounded by 1\.\.512"):
        compiled.run({"x": image(513, 2)})


def test_always(session):
    graph = ost.load_onnx(growing())
    compiled = session.compile(graph, options=ost.CompileOptions(specialize="always"))
    for shape in ((2, 3), (4, 3)):
        x = image(*shape)
        close(compiled.run({"x": x})[0], expected(graph, x))
    assert len(compiled.specializations) == 2
    assert "specialised: n, m" in compiled.explain()


def varied() -> ost.Graph:
    """A graph of Variables: with a nested graph, a size of the data, and one that a fact limits."""
    n, m = ost.Variable("n", 1, 64), ost.Variable("m", 0, 64)
    g = ost.Graph("varied")
    x, w = g.input("x", (n, m)), g.param("w", (1,))
    (y,) = g.cond(g.sum(x) > 0, lambda b: b.multiply(x, w), lambda b: b.reshape(x, (n, m)))
    total, sums = g.scan(lambda b, s, row: (b.add(s, row),) * 2, [g.zeros((m,))], [y])
    flat = g.reshape(y, (n * m,))
    positive = g.masked_select(flat, g.greater(flat, 0.0))
    g.set_outputs([g.max(y, axis=1), total, sums, g.multiply(positive, 2.0), g.dim_value(n * m)])
    return g


def test_always_of_a_graph_of_variables(session):
    graph, w = varied(), np.float32([3])
    always = ost.CompileOptions(specialize="always", max_specializations=2)
    compiled = session.compile(graph, {"w": w}, options=always)
    graph.set_outputs([graph.inputs["x"]])  # after the compile
    wanted = session.compile(varied(), {"w": w})
    for shape in ((2, 3), (4, 3), (2, 3), (1, 1), (64, 64)):
        x = image(*shape)
        for mine, general in zip(compiled.run({"x": x}), wanted.run({"x": x}), strict=True):
            close(mine, general)
    assert len(compiled.specializations) == 2
    assert "specialised: n, m" in compiled.explain()
    with pytest.raises(ost.VariableError, match=r"for n = 2, m = 0: .*max"):
        compiled.run({"x": image(2, 0)})
    with pytest.raises(ost.VariableError, match=r"bounded by 1\.\.64, got 65"):
        compiled.run({"x": image(65, 1)})
    compiled.set_param("w", np.float32([5]))
    wanted.set_param("w", np.float32([5]))
    x = image(4, 3)
    close(compiled.run({"x": x})[0], wanted.run({"x": x})[0])


def test_always_of_a_graph_without_variables(session):
    g = ost.Graph()
    g.set_outputs([g.exp(g.input("x", (2,)))])
    compiled = session.compile(g, options=ost.CompileOptions(specialize="always"))
    close(compiled.run({"x": np.zeros(2, np.float32)})[0], np.ones(2))


def test_always_of_a_graph_with_states(session):
    g = ost.Graph("counting")
    x, count = g.input("x", (ost.Variable("n", 1, 4),)), g.state("count", ())
    g.assign(count, count + g.sum(x))
    g.set_outputs([x])
    with pytest.raises(ost.GraphError, match="'counting' holds the state 'count'"):
        session.compile(g, options=ost.CompileOptions(specialize="always"))


@pytest.mark.parametrize("options", [{"specialize": "maybe"}, {"max_specializations": 0}])
def test_wrong_options(session, graph, options):
    with pytest.raises(ost.InputError, match=next(iter(options))):
        session.compile(graph, options=ost.CompileOptions(**options))


def test_sizes_beyond_the_first_bounds(session):
    """A Variable grows with the sizes that runs bring; zero is a size of its own."""
    graph = ost.load_onnx(growing())
    compiled = session.compile(graph)
    assert len(compiled.specializations) == 1
    for shape, count in (((3, 2), 1), ((513, 2), 2), ((1000, 5), 2), ((2, 3000), 3), ((0, 4), 4)):
        x = image(*shape)
        close(compiled.run({"x": x})[0], x + x.sum(1, keepdims=True))
        assert len(compiled.specializations) == count, shape


def test_bounds_of_the_user_hold(session):
    compiled = session.compile(ost.load_onnx(growing(), dims={"n": (1, 4)}))
    with pytest.raises(ost.VariableError, match=r"'n' is bounded by 1\.\.4, got 5"):
        compiled.run({"x": image(5, 2)})
    assert compiled.run({"x": image(4, 600)})[0].shape == (4, 600)


@pytest.mark.needs("quick")
def test_a_full_hd_image(session):
    compiled = session.compile(ost.load_onnx(resizing(("n", 3, "h", "w"))))
    assert compiled.run({"x": image(1, 3, 1080, 1920)})[0].shape == (1, 8, 1404, 2496)


def test_sizes_beyond_the_device_are_left_out(session, monkeypatch):
    """A variant that no kernel can address is compiled for the sizes of each run."""
    backend = type(session._backend)
    compile_ = backend.compile
    refused = []

    def limited(self, graph, *given, **options):
        if "batch" in graph.variables:
            refused.append(graph)
            raise ost.UnsupportedOpError("a tensor is too large")
        return compile_(self, graph, *given, **options)

    monkeypatch.setattr(backend, "compile", limited)
    graph = ost.load_onnx(resizing())
    compiled = session.compile(graph)
    for size in (1, 2, 1):
        x = image(size, 3, 4, 4)
        close(compiled.run({"x": x})[0], expected(graph, x))
    assert [sizes.sizes.count("batch") for sizes in compiled.specializations] == [1, 1]
    assert len(refused) == 1


def test_sizes_that_make_no_sense(session):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="in_fours")]
    model = proto(nodes, [info("x", ["n"])], [info("y", None)], shape=np.array([4, -1]))
    graph = ost.load_onnx(model)
    compiled = session.compile(graph)
    for _ in range(2):
        with pytest.raises(ost.VariableError, match=r"in_fours"):
            compiled.run({"x": image(6)})
    assert compiled.run({"x": image(8)})[0].shape == (4, 2)


def test_params_are_written_in_all_sizes(graph, compiled):
    x, other = image(1, 3, 4, 4), image(1, 3, 5, 4)
    compiled.run({"x": x})
    compiled.run({"x": other})
    compiled.set_param("w", 2 * WEIGHT)
    third = image(1, 3, 6, 4)  # compiled after the write
    for array in (x, other, third):
        close(compiled.run({"x": array})[0], 2 * expected(graph, array))


def test_params_that_are_given_or_missing(session, graph):
    compiled = session.compile(graph, {"w": 3 * WEIGHT})
    x = image(1, 3, 4, 4)
    close(compiled.run({"x": x})[0], 3 * expected(graph, x))
    graph.param_values["w"] = 2 * WEIGHT
    close(session.compile(graph).run({"x": x})[0], 2 / 3 * compiled.run({"x": x})[0])


@pytest.mark.needs("shared_weights")
def test_packed_weights_are_shared(session):
    """One copy serves all sizes of the same packed form, until it is written."""
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["r"], mode="linear"),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    stored = {"w": image(64, 48), "scales": np.array([1.5, 1], np.float32)}
    graph = ost.load_onnx(proto(nodes, [info("x", ["n", 64])], [info("y", None)], **stored))
    compiled = session.compile(graph)
    for rows in (8, 12):
        compiled.run({"x": image(rows, 64)})
    blocks = {id(e.memory.weights.block.memory) for e in compiled._execution.executable._each()}
    assert len(blocks) == 1
    compiled.set_param("w", 2 * stored["w"])
    for rows in (8, 12, 16):
        x = image(rows, 64)
        close(compiled.run({"x": x})[0], 2 * expected(graph, x))


def test_clones_are_independent(session, graph, compiled):
    x = image(1, 3, 4, 4)
    before = compiled.run({"x": x})[0]
    twin = compiled.clone()
    twin.set_param("w", 2 * WEIGHT)
    close(twin.run({"x": x})[0], 2 * before)
    close(compiled.run({"x": x})[0], before)
    twin.run({"x": image(1, 3, 9, 9)})
    assert (len(twin.specializations), len(compiled.specializations)) == (2, 1)


def test_handles(graph, compiled):
    x = image(1, 3, 4, 4)
    assert compiled.bind_handle("x", x)
    close(compiled.run()[0], expected(graph, x))
    compiled.bind_handle("x", image(1, 3, 8, 4))
    assert compiled.run()[0].shape == (1, 8, 10, 5)
    close(compiled.run({"x": x})[0], expected(graph, x))
    compiled.unbind_handle("x")
    with pytest.raises(ost.InputError, match="missing inputs"):
        compiled.run()


def test_handles_that_take_outputs_of_growing_size(session):
    nodes = [helper.make_node("Concat", ["past", "x"], ["all"], axis=0)]
    model = proto(nodes, [info("past", ["p", 2]), info("x", ["n", 2])], [info("all", None)])
    compiled = session.compile(ost.load_onnx(model))
    compiled.bind_handle("past", np.zeros((0, 2), np.float32))
    compiled.set_handle_feed("past", 0)
    rows = [image(200, 2, seed=i) for i in range(4)]
    for x in rows:
        compiled.run({"x": x})
    np.testing.assert_array_equal(compiled.read_handle("past"), np.concatenate(rows))


def test_plans(session, graph, compiled):
    with pytest.raises(ost.PlanError, match="warm"):
        _ = compiled.plan
    x = image(1, 3, 4, 4)
    compiled.run({"x": x})
    first = compiled.plan
    assert compiled.plan is first
    compiled.run({"x": image(1, 3, 8, 4)})
    second = compiled.plan
    assert second is not first
    result = np.zeros_like(expected(graph, x))
    compiled.bind({"x": x}, [result])()
    assert compiled.plan is first
    compiled.run({"x": image(1, 3, 8, 4)})
    assert compiled.plan is second
    plan = session.prepare(graph, variables={"batch": 1, "height": 4, "width": 4})
    plan.inputs["x"].copyin(x)
    plan.execute()
    close(plan.output_buffer().copyout(), expected(graph, x))


def test_active_extents(session):
    """Of an input whose size along axis 0 is fixed."""
    graph = ost.load_onnx(resizing((4, 3, "height", "width")))
    compiled = session.compile(graph)
    x = image(4, 3, 5, 5)
    whole = expected(graph, x)
    compiled.set_active_extent((2, 4))
    close(compiled.run({"x": x})[0][:2], whole[:2])
    with compiled.active_extent(3, 4):
        close(compiled.run({"x": x})[0][:3], whole[:3])
        close(compiled.run({"x": x[..., :3]})[0][:3], expected(graph, x[..., :3])[:3])
    compiled.set_active_extent(None)
    close(compiled.run({"x": x})[0], whole)
    with pytest.raises(ost.VariableError, match="leading rows"):
        session.compile(ost.load_onnx(resizing())).set_active_extent((1, 2))


def test_compiling_while_serving_is_logged(compiled, caplog):
    with caplog.at_level(logging.INFO, "ostinato.specialization"):
        compiled.run({"x": image(1, 3, 4, 4)})
        compiled.run({"x": image(1, 3, 4, 4)})
    (record,) = caplog.records
    assert "compiled model for height = 4, width = 4 in" in record.getMessage()
    assert "Resize 'bigger'" in record.getMessage()


def test_many_threads(graph, compiled):
    """Each size is compiled once, and every run takes its own."""
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            x = image(1, 3, int(rng.integers(2, 5)), 3, seed=seed)
            if not np.allclose(compiled.run({"x": x})[0], expected(graph, x), atol=1e-4):
                wrong.append(str(x.shape))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(compiled.specializations) == 3


def test_released_memory(compiled):
    compiled.run({"x": image(1, 3, 4, 4)})
    compiled.plan.release_all_buffers()
    with pytest.raises(ost.PlanError):
        compiled.run({"x": image(1, 3, 4, 4)})


def test_contents_of_inputs_that_sizes_depend_on(session):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="as_asked")]
    inputs = [info("x", ["n", 6]), info("shape", [2], TensorProto.INT64)]
    graph = ost.load_onnx(proto(nodes, inputs, [info("y", [None, None])]))
    compiled = session.compile(graph)
    x = image(2, 6)
    for shape in ([3, 4], [12, 1], [3, 4]):
        feeds = {"x": x, "shape": np.array(shape)}
        np.testing.assert_array_equal(compiled.run(feeds)[0], x.reshape(shape))
        np.testing.assert_array_equal(ost.reference.evaluate(graph, feeds)[0], x.reshape(shape))
    assert len(compiled.specializations) == 2
    compiled.warm({"n": 2, "shape": [2, 6]})
    assert len(compiled.specializations) == 3
    with pytest.raises(ost.VariableError, match="as_asked"):
        compiled.run({"x": x, "shape": np.array([5, 5])})
    with pytest.raises(ost.GraphError, match="contents of shape"):
        compiled.bind({"x": x, "shape": np.array([3, 4])}, [np.empty((3, 4), np.float32)])


def test_copies_are_built_from_the_same_model(session, graph):
    x = image(1, 3, 4, 4)
    twin = copy.deepcopy(graph)
    close(session.compile(twin).run({"x": x})[0], expected(graph, x))


def test_pickled_graphs_have_the_bounds_they_had(session, graph):
    grown = pickle.loads(pickle.dumps(ost.load_onnx(growing())))
    compiled = session.compile(grown)
    x = image(3, 2)
    close(compiled.run({"x": x})[0], x + x.sum(1, keepdims=True))
    with pytest.raises(ost.VariableError, match="bounded"):
        compiled.run({"x": image(600, 2)})
    with pytest.raises(ost.GraphError, match="pickled since it was loaded; load it with dims="):
        session.compile(pickle.loads(pickle.dumps(graph)))


def test_a_graph_that_was_changed_is_compiled_as_it_is(session):
    graph = ost.load_onnx(growing())
    graph.set_outputs({"z": graph.outputs["y"] * 2})
    compiled = session.compile(graph)
    x = image(3, 2)
    close(compiled.run({"x": x})[0], 2 * (x + x.sum(1, keepdims=True)))
    with pytest.raises(ost.VariableError, match="bounded"):
        compiled.run({"x": image(600, 2)})

"""Models that were loaded before are not read again, and are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from ostinato.cache.objects import ObjectCache
from ostinato.frontends.onnx import reading, remembered
from ostinato.ir.deferred_graph import deferred

Array = np.ndarray[Any, Any]

LARGE = (256, 300)  # is left in the file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectCache:
    cache = ObjectCache(tmp_path / "cache")
    monkeypatch.setattr(remembered, "process_cache", lambda: cache)
    return cache


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that were read from messages."""
    seen: list[Any] = []
    real = reading.open_model

    def counted(source: Any, *rest: Any) -> Any:
        seen.append(source)
        return real(source, *rest)

    monkeypatch.setattr(reading, "open_model", counted)
    return seen


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.standard_normal(LARGE).astype(np.float32),
        "b": np.arange(LARGE[1], dtype=np.float32),
        "shape": np.array([-1, 2, LARGE[1] // 2], np.int64),
    }


def written(path: Path, arrays: dict[str, Array] | None = None, nodes: Any = None) -> Path:
    """A matmul with a large weight, and some other kinds of nodes and tensors."""
    kind = TensorProto.FLOAT
    nodes = nodes or [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="product"),
        helper.make_node("Add", ["xw", "b"], ["sum"], name="sum"),
        helper.make_node("Reshape", ["sum", "shape"], ["split"]),
        helper.make_node("Softmax", ["split"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", kind, ["batch", LARGE[0]])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in (arrays or weights()).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "model.onnx")


def same(a: ost.Graph, b: ost.Graph) -> bool:
    values = [{n: v.tobytes() for n, v in g.param_values.items()} for g in (a, b)]
    return str(a) == str(b) and values[0] == values[1]


def outputs(graph: ost.Graph) -> Array:
    x = np.random.default_rng(1).standard_normal((3, LARGE[0])).astype(np.float32)
    return ost.Session("cpu").compile(graph).run({"x": x})[0]


def test_the_same_graph(path, read):
    first = ost.load_onnx(path)
    again = ost.load_onnx(path)
    assert len(read) == 1
    assert deferred(first) is None
    assert deferred(again) is not None
    assert isinstance(again, ost.Graph)
    assert same(first, again)
    assert [node.label for node in first.nodes] == [node.label for node in again.nodes]


def test_the_same_results(path, read):
    expected = outputs(ost.load_onnx(path))
    graph = ost.load_onnx(path)
    np.testing.assert_array_equal(outputs(graph), expected)
    assert deferred(graph) is not None  # not built yet
    options = ost.CompileOptions(stored_programs=False)
    x = np.ones((1, LARGE[0]), np.float32)
    other = ost.Session("cpu").compile(graph, options=options).run({"x": x})[0]
    np.testing.assert_array_equal(other, ost.Session("cpu").compile(graph).run({"x": x})[0])


def test_weights_are_those_of_the_file(path, read):
    ost.load_onnx(path)
    other = {**weights(), "w": weights(5)["w"]}
    written(path, other)
    graph = ost.load_onnx(path)
    assert len(read) == 1  # it says the same but for the large weight
    np.testing.assert_array_equal(graph.param_values["w"], other["w"])
    twin = written(path.with_name("twin.onnx"), other)
    np.testing.assert_array_equal(outputs(graph), outputs(ost.load_onnx(twin, name="model")))


def test_small_weights_are_told_apart(path, read):
    ost.load_onnx(path)
    written(path, {**weights(), "b": np.ones(LARGE[1], np.float32)})
    graph = ost.load_onnx(path)
    assert len(read) == 2
    assert (graph.param_values["b"] == 1).all()


def test_other_nodes_are_told_apart(path, read):
    first = str(ost.load_onnx(path))
    written(path, nodes=[helper.make_node("MatMul", ["x", "w"], ["y"])])
    assert str(ost.load_onnx(path)) != first
    assert len(read) == 2


def test_a_file_that_is_written_between_loading_and_compiling(path, read):
    ost.load_onnx(path)
    graph = ost.load_onnx(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    with pytest.raises(ost.ModelFormatError, match="was written after the model was loaded"):
        outputs(graph)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[10:]]
)
def test_a_damaged_file(damage: Callable[[bytes], bytes], path, read):
    ost.load_onnx(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ost.ModelFormatError):
        ost.load_onnx(path)


def test_what_is_asked_for_is_told_apart(path, read):
    n = ost.Variable("n", 1, 8)
    asked: list[dict[str, Any]] = [
        {},
        {"dims": {"batch": 3}},
        {"dims": {"batch": 4}},
        {"dims": {"batch": (1, 4)}},
        {"dims": {"batch": ost.Variable("batch", 2, 4)}},
        {"dims": {"batch": n}},
        {"dims": {"batch": ost.Variable("n", 1, 9)}},
        {"dims": {"x": (3, LARGE[0])}},
        {"dims": {"x": {0: 5}}},
        {"name": "other"},
    ]
    first = [str(ost.load_onnx(path, **kwargs)) for kwargs in asked]
    assert len(read) == len(asked)
    assert [str(ost.load_onnx(path, **kwargs)) for kwargs in asked] == first
    assert len(read) == len(asked)
    graph = ost.load_onnx(path, dims={"batch": n})
    (x,) = ost.Session("cpu").compile(graph).inputs.values()
    assert x.shape == (n, LARGE[0])


def test_sizes_that_make_no_sense(path, read):
    for _ in range(2):
        for dims in ({"nothing": 3}, {"batch": 1.5}, {"batch": object()}, {"x": [1, 2, 3]}):
            with pytest.raises(ost.VariableError):
                ost.load_onnx(path, dims=dims)
    with pytest.raises(ost.ModelFormatError, match="cannot read"):
        ost.load_onnx(path.with_name("nothing.onnx"))


def test_constants_are_read_each_time(path, read):
    x = np.ones((2, LARGE[0]), np.float32)
    for value in (1, 2):
        graph = ost.load_onnx(path, constants={"x": value * x})
        assert not graph.inputs
    assert len(read) == 2


def test_bytes_and_messages_are_read_each_time(path, read):
    for _ in range(2):
        ost.load_onnx(path.read_bytes())
        ost.load_onnx(onnx.load(path))
    assert len(read) == 4


def test_weights_that_the_importer_computes_with(tmp_path, read):
    """A value that the importer computes from a large weight is not kept with the rest."""
    path = tmp_path / "turned.onnx"
    nodes = [
        helper.make_node("Transpose", ["v"], ["w"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    for seed in (1, 2):
        arrays = weights(seed)
        written(path, {"v": np.ascontiguousarray(arrays["w"].T)}, nodes)
        graph = ost.load_onnx(path)
        np.testing.assert_array_equal(graph.param_values["w"], arrays["w"])
    assert len(read) == 2


def test_external_data_is_read_each_time(tmp_path, read):
    path = written(tmp_path / "inside.onnx")
    outside = tmp_path / "outside.onnx"
    for seed in (1, 2):
        model = onnx.load(written(path, weights(seed)))
        (tmp_path / "data.bin").unlink(missing_ok=True)
        onnx.save(model, outside, save_as_external_data=True, location="data.bin")
        graph = ost.load_onnx(outside)
        np.testing.assert_array_equal(graph.param_values["w"], weights(seed)["w"])


def test_large_constants_are_not_kept(path, read, monkeypatch):
    monkeypatch.setattr(remembered, "_MOST_BYTES", 100)
    for _ in range(2):
        ost.load_onnx(path)
    assert len(read) == 2


def test_dtypes_of_constants_and_weights(tmp_path, read):
    arrays = {
        "half": np.array([1.5, 2], np.float16),
        "flags": np.array([True, False]),
        "bytes": np.array([3, 4], np.int8),
        "wide": np.array([1e300, 2], np.float64),
    }
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in arrays]
    kinds = [TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT8, TensorProto.DOUBLE]
    outs = [
        helper.make_tensor_value_info(f"{name}_out", kind, [2])
        for name, kind in zip(arrays, kinds, strict=True)
    ]
    stored = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "model", [], outs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "dtypes.onnx"
    onnx.save(model, path)
    first, again = ost.load_onnx(path), ost.load_onnx(path)
    assert len(read) == 1
    for graph in (again, first):
        results = ost.Session("cpu").compile(graph).run()
        for got, expected in zip(results, arrays.values(), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert same(first, again)


def test_open_sizes_are_remembered(path, read):
    """With the first use of an attribute, and without."""
    for _ in range(2):
        graph = ost.load_onnx(path)
        assert graph.specialization is not None
        assert graph.specialization.open == {"batch"}
        compiled = ost.Session("cpu").compile(ost.load_onnx(path))
        assert compiled.run({"x": np.ones((600, LARGE[0]), np.float32)})[0].shape[0] == 600
    assert len(read) <= 2


def test_quantizing_a_model_that_was_loaded_before(path, read):
    first = ost.quantize(path, "int8")
    assert str(ost.quantize(path, "int8")) == str(first)
    assert len(read) == 1


def test_conditions_on_sizes_are_remembered(tmp_path, read):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], name="product"),
        helper.make_node("ArgMax", ["xw"], ["y"], name="greatest", axis=0, keepdims=0),
    ]
    path = written(tmp_path / "greatest.onnx", {"w": weights()["w"]}, nodes)
    dims = {"batch": ost.Variable("batch", 0, 8)}
    for _ in range(2):
        graph = ost.load_onnx(path, dims=dims)
        assert len(read) == 1
        compiled = ost.Session("cpu").compile(graph)
        with pytest.raises(ost.VariableError, match=r"argmax 'greatest'.*axis 0.*got batch = 0"):
            compiled.run({"x": np.zeros((0, LARGE[0]), np.float32)})
        (found,) = compiled.run({"x": np.zeros((2, LARGE[0]), np.float32)})
        assert (found == 0).all()
    assert deferred(graph) is not None

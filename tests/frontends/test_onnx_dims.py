"""The sizes of inputs: fixed, bounded, or Variables that flow through shape arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session


def model(
    nodes: list[Any],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, int],
    initializers: dict[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [onnx.numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


RELU = model(
    [helper.make_node("Relu", ["x"], ["y"])],
    {"x": (TensorProto.FLOAT, ["batch", "seq len", None, 4])},
    {"y": TensorProto.FLOAT},
)


def test_dynamic_dims_become_variables() -> None:
    shape = ost.load_onnx(RELU).inputs["x"].shape
    assert [str(d) for d in shape] == ["batch", "seq_len", "x_dim2", "4"]
    assert [ost.variables.bounds(d) for d in shape[:2]] == [(1, 512), (1, 512)]


@pytest.mark.parametrize(
    "dims",
    [
        {"batch": 8, "seq len": 3, "x": {2: 5}},
        {"x": (8, 3, 5, 4)},
        {"x": {0: 8, 1: 3, -2: 5}},
        {"batch": np.int64(8), "x": [None, 3, 5, None]},
    ],
)
def test_dims_can_be_fixed(dims: dict[str, Any]) -> None:
    assert ost.load_onnx(RELU, dims=dims).inputs["x"].shape == (8, 3, 5, 4)


def test_dims_can_be_bounded_or_given_as_variables() -> None:
    n = ost.Variable("n", 2, 6)
    shape = ost.load_onnx(RELU, dims={"batch": n, "seq len": (1, 128)}).inputs["x"].shape
    assert shape[0] is n
    assert str(shape[1]) == "seq_len"
    assert ost.variables.bounds(shape[1]) == (1, 128)


@pytest.mark.parametrize(
    "dims",
    [
        {"bach": 8},
        {"batch": "8"},
        {"batch": -1},
        {"batch": 1.5},
        {"batch": (5, 2)},
        {"x": (8, 3)},
        {"x": (8, 3, 5, 7)},
        {"x": {4: 1}},
        {"x": 3},
    ],
)
def test_wrong_dims_are_refused(dims: dict[str, Any]) -> None:
    with pytest.raises(ost.VariableError):
        ost.load_onnx(RELU, dims=dims)


def test_shape_arithmetic_vanishes() -> None:
    """``reshape(x, (shape(x)[0], shape(x)[1], heads, shape(x)[2] // heads))``."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        *(helper.make_node("Gather", ["s", f"i{i}"], [f"d{i}"], axis=0) for i in range(3)),
        helper.make_node("Div", ["d2", "heads"], ["q"]),
        *(
            helper.make_node("Unsqueeze", [name, "zero"], [f"{name}_1"])
            for name in ("d0", "d1", "heads", "q")
        ),
        helper.make_node("Concat", ["d0_1", "d1_1", "heads_1", "q_1"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    proto = model(
        nodes,
        {"x": (TensorProto.FLOAT, ["batch", "seq", 12])},
        {"y": TensorProto.FLOAT},
        {
            "i0": np.array(0),
            "i1": np.array(1),
            "i2": np.array(2),
            "heads": np.array(3),
            "zero": ints(0),
        },
    )
    graph = ost.load_onnx(proto)
    assert [str(d) for d in graph.outputs["y"].shape] == ["batch", "seq", "3", "4"]
    assert [node.op.name for node in graph.nodes] == ["input", "reshape"]


def test_a_fill_of_variable_shape() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["y"]),
    ]
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["n", 3])}, {"y": TensorProto.FLOAT})
    graph = ost.load_onnx(proto, dims={"n": (1, 8)})
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_array_equal(ost.reference.evaluate(graph, {"x": x}, {})[0], x)


def test_a_range_over_a_variable() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node("Range", ["zero", "n", "two"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    proto = model(
        nodes,
        {"x": (TensorProto.FLOAT, ["n"])},
        {"y": TensorProto.FLOAT},
        {"zero": np.array(0), "two": np.array(2)},
    )
    graph = ost.load_onnx(proto)
    for n in (1, 4, 7):
        (y,) = ost.reference.evaluate(graph, {"x": np.zeros(n, np.float32)}, {})
        np.testing.assert_array_equal(y, np.arange(0, n, 2, dtype=np.float32))


def test_a_size_used_as_a_number() -> None:
    """A sum divided by a length that is known only at run time."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ReduceProd", ["s"], ["count"], keepdims=0),
        helper.make_node("Cast", ["count"], ["divisor"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Div", ["total", "divisor"], ["y"]),
    ]
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["n", "m"])}, {"y": TensorProto.FLOAT})
    graph = ost.load_onnx(proto)
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    (y,) = ost.reference.evaluate(graph, {"x": x}, {})
    np.testing.assert_allclose(y, x.mean(), rtol=1e-6)


@pytest.mark.parametrize("divisor", [1, 3, 4])
def test_division_of_sizes_rounds_towards_zero(divisor: int) -> None:
    """A difference of sizes may be negative."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Sub", ["s", "five"], ["moved"]),
        helper.make_node("Div", ["moved", "divisor"], ["y"]),
    ]
    numbers = {"five": ints(5), "divisor": ints(divisor)}
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["n"])}, {"y": TensorProto.INT64}, numbers)
    compiled = ost.Session("cpu").compile(ost.load_onnx(proto))
    for n in (1, 2, 3, 4, 5, 6, 9, 12):
        (y,) = compiled.run({"x": np.zeros(n, np.float32)})
        assert y.tolist() == [int((n - 5) / divisor)]
    assert len(compiled.specializations) == 1


def test_the_end_of_an_axis_that_may_be_shorter() -> None:
    """The last positions of a cache, and a shape that is asked for a size of -1."""
    nodes = [
        helper.make_node("Slice", ["x", "last", "end"], ["kept"]),
        helper.make_node("Concat", ["kept", "new"], ["rows"], axis=0),
        helper.make_node("Shape", ["rows"], ["s"]),
        helper.make_node("Equal", ["s", "open"], ["missing"]),
        helper.make_node("Where", ["missing", "one", "s"], ["shape"]),
        helper.make_node("Expand", ["rows", "shape"], ["y"], name="expand"),
    ]
    ends = {"last": ints(-3), "end": ints(2**62), "open": ints(-1), "one": ints(1)}
    inputs = {name: (TensorProto.FLOAT, [name, 2]) for name in ("x", "new")}
    proto = model(nodes, inputs, {"y": TensorProto.FLOAT}, ends)
    compiled = ost.Session("cpu").compile(ost.load_onnx(proto))
    for rows in (1, 2, 3, 4, 9):
        x, new = np.random.default_rng(rows).standard_normal((2, rows, 2), np.float32)
        (y,) = compiled.run({"x": x, "new": new})
        np.testing.assert_array_equal(y, np.concatenate([x[-3:], new]))
    assert len(compiled.specializations) == 1


FLOAT = TensorProto.FLOAT
HALVES = {
    "ceil": [
        helper.make_node("Div", ["f", "three"], ["q"]),
        helper.make_node("Ceil", ["q"], ["y"]),
    ],
    "floor": [
        helper.make_node("Mul", ["f", "quarter"], ["q"]),
        helper.make_node("Floor", ["q"], ["y"]),
    ],
    "cut": [
        helper.make_node("Sub", ["f", "three"], ["d"]),
        helper.make_node("Mul", ["d", "quarter"], ["q"]),
        helper.make_node("Cast", ["q"], ["i"], to=TensorProto.INT64),
        helper.make_node("Cast", ["i"], ["y"], to=FLOAT),
    ],
    "round": [
        helper.make_node("Mul", ["f", "quarter"], ["q"]),
        helper.make_node("Round", ["q"], ["y"]),
    ],
    "kept": [helper.make_node("Div", ["f", "three"], ["y"])],
    "moved": [
        helper.make_node("Div", ["f", "three"], ["q"]),
        helper.make_node("Concat", ["q", "f"], ["both"], axis=0),
        helper.make_node("Add", ["both", "quarter"], ["y"]),
    ],
    "mixed": [
        helper.make_node("Concat", ["quarter", "f", "three"], ["q"], axis=0),
        helper.make_node("Mul", ["q", "three"], ["m"]),
        helper.make_node("Floor", ["m"], ["y"]),
    ],
    "whole": [
        helper.make_node("Concat", ["f", "three"], ["q"], axis=0),
        helper.make_node("Div", ["q", "three"], ["m"]),
        helper.make_node("Ceil", ["m"], ["i"]),
        helper.make_node("Cast", ["i"], ["k"], to=TensorProto.INT64),
        helper.make_node("Cast", ["k"], ["y"], to=FLOAT),
    ],
    "third": [
        helper.make_node("Mul", ["f", "third"], ["q"]),
        helper.make_node("Ceil", ["q"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", HALVES)
def test_sizes_over_numbers(name: str) -> None:
    """Sizes that are divided in float, and rounded or not."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
        *HALVES[name],
    ]
    numbers = {"three": 3.0, "quarter": 0.25, "third": 1 / 3}
    stored = {key: np.array([value], np.float32) for key, value in numbers.items()}
    proto = model(nodes, {"x": (FLOAT, ["n"])}, {"y": FLOAT}, stored)
    proto.ir_version = 8
    compiled = ost.Session("cpu").compile(ost.load_onnx(proto))
    peer = onnxruntime_session(proto)
    for n in (1, 2, 3, 4, 5, 6, 7, 11, 12, 500):
        feeds = {"x": np.zeros(n, np.float32)}
        np.testing.assert_array_equal(compiled.run(feeds)[0], peer.run(None, feeds)[0])
    assert len(compiled.specializations) == 1


def test_a_range_up_to_a_broken_size() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
        helper.make_node("Div", ["f", "four"], ["q"]),
        helper.make_node("Squeeze", ["q"], ["limit"]),
        helper.make_node("Range", ["zero", "limit", "one"], ["y"], name="range"),
    ]
    numbers = {"zero": np.float32(0), "one": np.float32(1), "four": np.full(1, 4, np.float32)}
    stored = {key: np.asarray(value) for key, value in numbers.items()}
    proto = model(nodes, {"x": (FLOAT, ["n"])}, {"y": FLOAT}, stored)
    compiled = ost.Session("cpu").compile(ost.load_onnx(proto))
    for n in (1, 4, 5, 9):
        (y,) = compiled.run({"x": np.zeros(n, np.float32)})
        assert y.tolist() == np.arange(0, n / 4).tolist()


def test_slices_of_variable_extent() -> None:
    nodes = [helper.make_node("Slice", ["x", "start", "stop", "axes", "steps"], ["y"])]
    for start, stop, step in [(1, 2**63 - 1, 2), (-3, 100, 1), (-1, -(2**31), -1), (0, -1, 1)]:
        proto = model(
            nodes,
            {"x": (TensorProto.FLOAT, ["n"])},
            {"y": TensorProto.FLOAT},
            {"start": ints(start), "stop": ints(stop), "axes": ints(0), "steps": ints(step)},
        )
        graph = ost.load_onnx(proto, dims={"n": (4, 9)})
        for n in (4, 9):
            x = np.arange(n, dtype=np.float32)
            (y,) = ost.reference.evaluate(graph, {"x": x}, {})
            np.testing.assert_array_equal(y, x[start:stop:step])


def test_sizes_from_data_are_refused_by_name() -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"], name="the_reshape")],
        {"x": (TensorProto.FLOAT, [4]), "s": (TensorProto.INT64, [2])},
        {"y": TensorProto.FLOAT},
    )
    with pytest.raises(
        ost.UnsupportedOpError, match=r"the_reshape.*\(Reshape\).*from the contents of inputs"
    ):
        ost.load_onnx(proto)
    graph = ost.load_onnx(proto, constants={"s": [2, 2]})
    assert list(graph.inputs) == ["x"]
    assert graph.outputs["y"].shape == (2, 2)


@pytest.mark.parametrize("given", [{"t": 1}, {"s": [1, 2, 3]}, {"s": "four"}, {"s": [[4]]}])
def test_wrong_constants_are_refused(given: dict[str, Any]) -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        {"x": (TensorProto.FLOAT, [4]), "s": (TensorProto.INT64, [2])},
        {"y": TensorProto.FLOAT},
    )
    with pytest.raises(ost.InputError):
        ost.load_onnx(proto, constants=given)


@pytest.mark.parametrize("position", [0, 1, 3, -1, -4])
def test_one_position_of_an_axis_that_may_be_shorter(position: int) -> None:
    """It is a slice where the least size has the position, and an index where it may not."""
    proto = model(
        [helper.make_node("Gather", ["x", "at"], ["y"], axis=1)],
        {"x": (TensorProto.FLOAT, [2, "n", 3])},
        {"y": TensorProto.FLOAT},
        {"at": np.array(position)},
    )
    compiled = ost.Session("cpu", threads=1).compile(ost.load_onnx(proto))
    for n in (4, 7):
        x = np.arange(6 * n, dtype=np.float32).reshape(2, n, 3)
        np.testing.assert_array_equal(compiled.run({"x": x})[0], x[:, position])


def test_a_leading_size_that_has_to_be_a_number_other_than_one() -> None:
    proto = model(
        [
            helper.make_node("TopK", ["x", "two"], ["top", "at"]),
            helper.make_node("Squeeze", ["top"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["N", 1, "N"])},
        {"y": TensorProto.FLOAT},
        {"two": ints(2)},
    )
    compiled = ost.Session("cpu").compile(ost.load_onnx(proto))
    for n in (2, 5):
        x = np.random.default_rng(n).random((n, 1, n), np.float32)
        (y,) = compiled.run({"x": x})
        np.testing.assert_array_equal(y, -np.sort(-x[:, 0], axis=-1)[:, :2])

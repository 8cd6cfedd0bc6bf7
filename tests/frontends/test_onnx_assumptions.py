"""Conditions on open sizes: assumed where most sizes meet them, left to other builds elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def model(
    nodes: list[Any], inputs: dict[str, list[Any]], **stored: np.ndarray[Any, Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="test"
    )


def position_table() -> onnx.ModelProto:
    """The first rows of a table of 64 positions, added to a sequence."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "length", "zero"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"], name="positions"),
    ]
    table = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    return model(nodes, {"x": ["batch", "s", 4]}, table=table, zero=np.array([0]))


def reflected() -> onnx.ModelProto:
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect", name="mirror")]
    return model(nodes, {"x": ["n", "m"]}, pads=np.array([0, 64, 0, 64]))


def in_fours() -> onnx.ModelProto:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="fours")]
    return model(nodes, {"x": ["n"]}, shape=np.array([4, -1]))


def up_and_down() -> onnx.ModelProto:
    """Two poolings by 2, two repetitions by 2, and the sum with what came in."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["b", "", "twice"], ["c"], mode="nearest"),
        helper.make_node("Resize", ["c", "", "twice"], ["d"], mode="nearest"),
        helper.make_node("Add", ["x", "d"], ["y"], name="skip"),
    ]
    return model(nodes, {"x": ["n", 2, "h", "w"]}, twice=np.array([1, 1, 2, 2], np.float32))


def one_left() -> onnx.ModelProto:
    """A pooling whose single result per row is squeezed."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[8], strides=[8]),
        helper.make_node("Squeeze", ["a", "axes"], ["y"], name="single"),
    ]
    return model(nodes, {"x": ["n", 3, "m"]}, axes=np.array([2]))


def float_sizes() -> onnx.ModelProto:
    """Sizes that are computed in float, as exporters do for a resize."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "two", "four"], ["image"]),
        helper.make_node("Slice", ["s", "zero", "two"], ["rest"]),
        helper.make_node("Cast", ["image"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["m"]),
        helper.make_node("Floor", ["m"], ["i"]),
        helper.make_node("Cast", ["i"], ["wanted"], to=INT),
        helper.make_node("Concat", ["rest", "wanted"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    numbers = {"zero": np.array([0]), "two": np.array([2]), "four": np.array([4])}
    scale = np.array([2, 3], np.float32)
    return model(nodes, {"x": ["n", 2, "h", "w"]}, scale=scale, **numbers)


def windows() -> onnx.ModelProto:
    """A reshape of what windows give, with one size left open."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[10], strides=[5], name="pool"),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "two"], ["w"]),
        helper.make_node("Concat", ["n", "w", "two", "open"], ["shape"], axis=0),
        helper.make_node("Reshape", ["a", "shape"], ["y"], name="heads"),
    ]
    numbers = {"zero": np.array([0]), "two": np.array([2]), "open": np.array([-1])}
    return model(nodes, {"x": ["n", 4, "m"]}, **numbers)


def area() -> onnx.ModelProto:
    """A reshape to an area whose sides are quotients of numbers that may be negative."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "two"], ["rest"]),
        helper.make_node("Slice", ["s", "two", "four"], ["image"]),
        helper.make_node("Sub", ["image", "eight"], ["moved"]),
        helper.make_node("Div", ["moved", "eight"], ["steps"]),
        helper.make_node("Add", ["steps", "one"], ["sides"]),
        helper.make_node("ReduceProd", ["sides"], ["area"], keepdims=1),
        helper.make_node("Concat", ["rest", "area"], ["shape"], axis=0),
        helper.make_node("Reshape", ["a", "shape"], ["y"], name="area"),
    ]
    numbers = {"zero": 0, "one": 1, "two": 2, "four": 4, "eight": 8}
    stored = {name: np.array([number]) for name, number in numbers.items()}
    return model(nodes, {"x": ["n", 2, "h", "w"]}, **stored)


def padded_to_fours(*nodes: Any) -> onnx.ModelProto:
    """An image that is padded to multiples of 4 at its end, and what follows."""
    padding = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "two"], ["rest"]),
        helper.make_node("Slice", ["s", "two", "four"], ["image"]),
        helper.make_node("Mod", ["image", "four"], ["over"]),
        helper.make_node("Sub", ["four", "over"], ["missing"]),
        helper.make_node("Mod", ["missing", "four"], ["border"]),
        helper.make_node("Concat", ["none", "border"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["a"], name="pad"),
    ]
    stored = {name: np.array([n]) for name, n in {"zero": 0, "two": 2, "four": 4}.items()}
    stored["none"] = np.zeros(6, np.int64)
    return model([*padding, *nodes], {"x": ["n", 2, "h", "w"]}, **stored)


def tiles() -> onnx.ModelProto:
    """The tiles of 4 by 4 of a padded image."""
    return padded_to_fours(
        helper.make_node("Add", ["image", "border"], ["padded"]),
        helper.make_node("Div", ["padded", "four"], ["counts"]),
        helper.make_node("Split", ["counts"], ["rows", "columns"], axis=0),
        helper.make_node("Concat", ["rest", "rows", "four", "columns", "four"], ["shape"], axis=0),
        helper.make_node("Reshape", ["a", "shape"], ["b"], name="tiles"),
        helper.make_node("Transpose", ["b"], ["y"], perm=[0, 2, 4, 1, 3, 5]),
    )


def never_padded() -> onnx.ModelProto:
    """A padded image in the shape that it had before: the exporter has seen no padding."""
    return padded_to_fours(helper.make_node("Reshape", ["a", "s"], ["y"], name="back"))


#: Models, the bounds or form of their sizes, shapes that they take, and shapes that they refuse.
CASES: dict[str, tuple[onnx.ModelProto, str, list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "position_table": (position_table(), "1..64", [(1, 1, 4), (2, 64, 4)], [(2, 65, 4)]),
    "reflected": (reflected(), "65..512", [(1, 65), (2, 200), (3, 700)], [(1, 64)]),
    "in_fours": (in_fours(), "4*n_by_4", [(4,), (64,), (3000,)], [(6,)]),
    "up_and_down": (
        up_and_down(),
        "4*h_by_4,4*w_by_4",
        [(1, 2, 4, 8), (3, 2, 16, 12), (1, 2, 600, 20)],
        [(1, 2, 5, 4)],
    ),
    "one_left": (one_left(), "8..15", [(1, 3, 8), (2, 3, 15)], [(1, 3, 16)]),
    "area": (area(), "9..512", [(1, 2, 9, 16), (2, 2, 31, 64), (1, 2, 600, 10)], []),
    "tiles": (tiles(), "", [(1, 2, 3, 5), (2, 2, 8, 4), (1, 2, 600, 9)], []),
    "never_padded": (
        never_padded(),
        "4*h_by_4,4*w_by_4",
        [(1, 2, 4, 8), (3, 2, 12, 4)],
        [(1, 2, 5, 4), (1, 2, 8, 6)],
    ),
    "windows": (windows(), "", [(1, 4, 10), (3, 4, 64), (2, 4, 600)], []),
    "float_sizes": (float_sizes(), "", [(1, 2, 3, 5), (2, 2, 7, 1)], []),
}


LABELS = {
    "position_table": "positions",
    "reflected": "mirror",
    "in_fours": "fours",
    "up_and_down": "skip",
    "one_left": "single",
    "never_padded": "back",
}


RULES = {
    "position_table": "s at most 64",
    "reflected": "m at least 65",
    "in_fours": "n a multiple of 4",
    "up_and_down": "h a multiple of 4, w a multiple of 4",
    "one_left": "m at least 8 and at most 15",
    "never_padded": "h a multiple of 4, w a multiple of 4",
}


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_meet_the_conditions(session: ost.Session, name: str) -> None:
    """One compile serves them all, but for those beyond the first bounds."""
    proto, _, shapes, _ = CASES[name]
    graph = ost.load_onnx(proto)
    assert graph.specialization is not None
    assert not graph.specialization.needed
    compiled = session.compile(graph)
    judge = onnxruntime_session(proto)
    for shape in shapes:
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        (expected,) = judge.run(None, {"x": x})
        (found,) = compiled.run({"x": x})
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert len(compiled.specializations) == 1 + any(max(shape) > 512 for shape in shapes)


@pytest.mark.parametrize("name", CASES)
def test_conditions_narrow_the_variables(name: str) -> None:
    proto, form, _, _ = CASES[name]
    graph = ost.load_onnx(proto)
    shown = ",".join(str(dim) for dim in graph.inputs["x"].shape)
    ranges = {f"{v.min}..{v.max}" for v in graph.variables.values()}
    assert form in ranges or form in shown


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_are_judged_by_the_file(session: ost.Session, name: str) -> None:
    """They are right where the file is, else the error names the node, and nothing has run."""
    proto, _, shapes, refused = CASES[name]
    compiled = session.compile(ost.load_onnx(proto))
    judge = onnxruntime_session(proto)
    for shape in refused:
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            judge.run(None, {"x": np.zeros(shape, np.float32)})
        for _ in range(2):
            with pytest.raises(ost.VariableError, match=f"{LABELS[name]}.*{RULES[name]}"):
                compiled.run({"x": np.zeros(shape, np.float32)})
        assert f"assumed: {RULES[name].partition(',')[0]}" in compiled.explain()
    x = np.ones(shapes[0], np.float32)
    np.testing.assert_allclose(compiled.run({"x": x})[0], judge.run(None, {"x": x})[0])


def test_another_reading_of_a_size(session: ost.Session) -> None:
    """A size that was taken for equal to another broadcasts where it is 1."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2], strides=[2]),
        helper.make_node("Add", ["a", "half"], ["y"], name="sum"),
    ]
    proto = model(nodes, {"x": ["n", 3, "m"]}, half=np.ones((1, 3, 4), np.float32))
    graph = ost.load_onnx(proto)
    compiled = session.compile(graph)
    judge = onnxruntime_session(proto)
    for size in (8, 9, 2, 3):
        x = np.random.default_rng(size).standard_normal((2, 3, size)).astype(np.float32)
        np.testing.assert_allclose(compiled.run({"x": x})[0], judge.run(None, {"x": x})[0])
    with pytest.raises(ost.VariableError, match="sum"):
        compiled.run({"x": np.zeros((2, 3, 6), np.float32)})


def test_equal_sizes_are_unified(session: ost.Session) -> None:
    """Of names that differ, and of a sum of others; where they are not equal, numbers decide."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=0),
        helper.make_node("Add", ["all", "mask"], ["y"], name="masked"),
    ]
    proto = model(nodes, {"past": ["p", 2], "x": ["n", "two"], "mask": ["total", 2]})
    graph = ost.load_onnx(proto)
    assert (
        graph.inputs["mask"].shape[0] == graph.inputs["past"].shape[0] + graph.inputs["x"].shape[0]
    )
    assert graph.inputs["x"].shape[1] == 2
    compiled = session.compile(graph)
    judge = onnxruntime_session(proto)
    for p, n, total in ((3, 4, 7), (1, 1, 2), (3, 4, 1), (0, 5, 5)):
        feeds = {
            "past": np.ones((p, 2), np.float32),
            "x": np.zeros((n, 2), np.float32),
            "mask": np.random.default_rng(p).standard_normal((total, 2)).astype(np.float32),
        }
        np.testing.assert_array_equal(compiled.run(feeds)[0], judge.run(None, feeds)[0])
    feeds["mask"] = np.zeros((3, 2), np.float32)
    with pytest.raises(ost.VariableError, match="masked"):
        compiled.run(feeds)


def test_bounds_of_the_user_are_kept() -> None:
    graph = ost.load_onnx(reflected(), dims={"m": (1, 100)})
    assert graph.inputs["x"].shape[1].bounds() == (1, 100)
    assert graph.specialization is not None
    assert "mirror" in graph.specialization.reasons["m"]


@pytest.mark.parametrize(
    "dim",
    [-1, "?", "", None, "-1", "None"],
    ids=["negative", "mark", "empty", "no", "text", "None"],
)
def test_dims_without_a_name(dim: Any, session: ost.Session) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    proto = model(nodes, {"x": [1, 1, 3]})
    for axis in (0, 1):
        target = proto.graph.input[0].type.tensor_type.shape.dim[axis]
        target.Clear()
        if isinstance(dim, int):
            target.dim_value = dim
        elif dim is not None:
            target.dim_param = dim
    compiled = session.compile(ost.load_onnx(proto))
    for shape in ((2, 5, 3), (600, 1, 3), (0, 4, 3)):
        assert compiled.run({"x": np.ones(shape, np.float32)})[0].shape == shape
    assert len(compiled.specializations) == 3


def test_the_same_name_for_different_sizes(session: ost.Session) -> None:
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    proto = model(nodes, {"x": ["n", 3], "z": ["n", 3]})
    del proto.graph.output[:]  # declared shapes of outputs are hints
    proto.graph.output.append(helper.make_tensor_value_info("y", FLOAT, [7, "n"]))
    compiled = session.compile(ost.load_onnx(proto))
    for rows in ((5, 5), (5, 1), (1, 4)):
        x, z = (np.ones((n, 3), np.float32) for n in rows)
        assert compiled.run({"x": x, "z": z})[0].shape == (max(rows), 3)
    with pytest.raises(ost.VariableError, match="Add"):
        compiled.run({"x": np.ones((5, 3), np.float32), "z": np.ones((4, 3), np.float32)})


def test_a_dim_of_zero_is_zero(session: ost.Session) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [0, 3]})
    compiled = session.compile(ost.load_onnx(proto))
    assert compiled.run({"x": np.ones((0, 3), np.float32)})[0].shape == (0, 3)
    with pytest.raises(ost.InputError, match="has shape"):
        compiled.run({"x": np.ones((2, 3), np.float32)})


def test_sizes_that_only_an_exporter_has_seen(session: ost.Session) -> None:
    """A height and a width of an image that are written into the file: it loads all the same."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Reshape", ["a", "halves"], ["b"], name="halves"),
        helper.make_node("Reshape", ["b", "whole"], ["c"], name="whole"),
        helper.make_node("Concat", ["a", "c"], ["y"], axis=1, name="both"),
    ]
    stored = {"halves": np.array([-1, 2, 6, 2]), "whole": np.array([2, 3, 4, 6])}
    proto = model(nodes, {"x": ["n", 3, "h", "w"]}, **stored)
    proto.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", FLOAT, ["n", 6, "height", "width"])
    )
    compiled = session.compile(ost.load_onnx(proto))
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 24)).astype(np.float32)
    judge = onnxruntime_session(proto)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], judge.run(None, {"x": x})[0])
    for shape in ((1, 3, 16, 24), (2, 3, 16, 16)):
        with pytest.raises(ost.VariableError, match="whole"):
            compiled.run({"x": np.zeros(shape, np.float32)})
    np.testing.assert_array_equal(compiled.run({"x": x})[0], judge.run(None, {"x": x})[0])


def test_a_batch_under_two_names(session: ost.Session) -> None:
    """A mask in rows of another input's batch: both batches are taken for one."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Concat", ["n", "open"], ["shape"], axis=0),
        helper.make_node("Reshape", ["mask", "shape"], ["rows"], name="rows"),
        helper.make_node("Add", ["x", "rows"], ["y"], name="masked"),
    ]
    proto = model(nodes, {"x": ["n", "s"], "mask": ["m", "t"]}, open=np.array([-1]))
    compiled = session.compile(ost.load_onnx(proto))
    judge = onnxruntime_session(proto)
    for shape in ((2, 5), (1, 7), (3, 4)):
        x, mask = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
        feeds = {"x": x, "mask": mask}
        np.testing.assert_array_equal(compiled.run(feeds)[0], judge.run(None, feeds)[0])
    assert len(compiled.specializations) == 1
    odd = {"x": np.ones((2, 6), np.float32), "mask": np.ones((4, 3), np.float32)}
    np.testing.assert_array_equal(compiled.run(odd)[0], judge.run(None, odd)[0])

"""ONNX models whose sizes depend on data, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

Array = np.ndarray[Any, Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Model:
    """A model under construction: each call of :meth:`node` appends one."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def input(self, name: str, shape: Sequence[Any], kind: int = FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def of(self, array: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, op: str, *operands: str, outputs: int = 1, **attrs: Any) -> Any:
        number = len(self.nodes)
        names = [f"{op}_{number}_{i}" for i in range(outputs)]
        node = helper.make_node(op, operands, names, name=f"/{op}_{number}", **attrs)
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def proto(self, results: Sequence[str]) -> onnx.ModelProto:
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph(self.nodes, "model", self.inputs, outputs, self.constants)
        opset = helper.make_opsetid("", 18)
        return helper.make_model(graph, opset_imports=[opset], ir_version=9)


Build = Callable[[Model], Sequence[str]]
Feeds = Callable[[np.random.Generator], Mapping[str, Array]]


def mask_model(m: Model) -> Sequence[str]:
    """Rows with a positive first element: NonZero, Gather, a layer, and statistics of them."""
    x = m.input("x", ["rows", 6])
    first = m.node("Gather", x, m.of(0), axis=1)
    where = m.node("NonZero", m.node("Greater", first, m.of(0, np.float32)))
    rows = m.node("Gather", x, m.node("Squeeze", where, m.of([0])), axis=0)
    layer = m.node("MatMul", rows, m.of(np.ones((6, 3)) / 5, np.float32))
    spread = m.node("Softmax", m.node("Relu", layer), axis=-1)
    count = m.node("Shape", rows)
    line = m.node("Range", m.of(0), m.node("Gather", count, m.of(0)), m.of(1))
    joined = m.node("Concat", rows, rows, axis=0)
    flat = m.node("Reshape", joined, m.of([-1, 2, 3]))
    total = m.node("ReduceSum", spread, m.of([0]), keepdims=0)
    return [where, rows, spread, count, line, flat, total]


def mask_feeds(rng: np.random.Generator) -> Mapping[str, Array]:
    return {"x": rng.normal(size=(rng.integers(1, 20), 6)).astype(np.float32)}


def detection_model(m: Model) -> Sequence[str]:
    """A detection head: suppression, boxes, scores and classes of those chosen, the best first."""
    boxes, scores = m.input("boxes", [1, "n", 4]), m.input("scores", [1, 3, "n"])
    limits = m.of([5]), m.of([0.4], np.float32), m.of([0.3], np.float32)
    chosen = m.node("NonMaxSuppression", boxes, scores, *limits)
    box_ids = m.node("Slice", chosen, m.of([2]), m.of([3]), m.of([1]))
    classes = m.node("Slice", chosen, m.of([1]), m.of([2]), m.of([1]))
    flat_ids = m.node("Squeeze", box_ids, m.of([1]))
    found = m.node("Gather", m.node("Squeeze", boxes, m.of([0])), flat_ids, axis=0)
    value = m.node("GatherND", scores, chosen)
    count = m.node("Shape", value)
    k = m.node("Min", count, m.of([4]))
    best, order = m.node("TopK", value, k, outputs=2)
    sorted_boxes = m.node("Gather", found, order, axis=0)
    kinds = m.node("Cast", m.node("Gather", classes, order, axis=0), to=FLOAT)
    column = m.node("Unsqueeze", best, m.of([1]))
    return [chosen, m.node("Concat", sorted_boxes, column, kinds, axis=1)]


def detection_feeds(rng: np.random.Generator) -> Mapping[str, Array]:
    n = int(rng.integers(1, 30))
    return {
        "boxes": rng.uniform(0, 1, (1, n, 4)).astype(np.float32),
        "scores": rng.uniform(0, 1, (1, 3, n)).astype(np.float32),
    }


def topk_model(m: Model) -> Sequence[str]:
    """The k best of each row, k computed from another input."""
    x, k = m.input("x", [3, "n"]), m.input("k", [1], INT64)
    values, order = m.node("TopK", x, m.node("Add", k, m.of([1])), axis=1, outputs=2)
    return [m.node("Exp", values), order, m.node("Transpose", values)]


def topk_feeds(rng: np.random.Generator) -> Mapping[str, Array]:
    n = int(rng.integers(2, 40))
    return {
        "x": rng.normal(size=(3, n)).astype(np.float32),
        "k": np.array([rng.integers(0, n)]),
    }


def window_model(m: Model) -> Sequence[str]:
    """Slices, paddings, repetitions and fills by computed sizes."""
    x, low, high = m.input("x", ["n", 4]), m.input("low", [1], INT64), m.input("high", [1], INT64)
    part = m.node("Slice", x, low, high, m.of([0]))
    back = m.node("Slice", x, high, low, m.of([0]), m.of([-1]))
    width = m.node("Abs", m.node("Sub", high, low))
    filled = m.node("ConstantOfShape", m.node("Concat", width, m.of([4]), axis=0))
    column = m.node("Concat", width, m.of([1]), axis=0)
    spread = m.node("Expand", m.of(np.ones((1, 4)), np.float32), column)
    pads = m.node("Concat", m.of([1, 0]), width, m.of([2]), axis=0)
    padded = m.node("Pad", x, pads, m.of(3.5, np.float32))
    tiled = m.node("Tile", x, m.node("Concat", width, m.of([2]), axis=0))
    halves = m.node("Split", filled, outputs=2, axis=1, num_outputs=2)
    ranged = m.node("Range", m.node("Squeeze", low), m.node("Squeeze", high), m.of(2))
    shaped = m.node("Reshape", tiled, m.node("Concat", m.of([-1]), width, axis=0), allowzero=0)
    return [part, back, m.node("Add", filled, spread), padded, tiled, *halves, ranged, shaped]


def window_feeds(rng: np.random.Generator) -> Mapping[str, Array]:
    n = int(rng.integers(2, 12))
    low, high = np.sort(rng.choice(n, 2, replace=False))
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return {"x": x, "low": np.array([low]), "high": np.array([high])}


def unique_model(m: Model) -> Sequence[str]:
    """Distinct values, their counts and a histogram of fixed size; a Compress of the columns."""
    x = m.input("x", ["n", 5])
    whole = m.node("Cast", x, to=INT64)
    sorted_ones = m.node("Unique", whole, outputs=4)
    first_ones = m.node("Unique", x, outputs=4, sorted=0)
    rows = m.node("Unique", x, outputs=4, axis=0)
    several = m.node("Greater", sorted_ones[3], m.of(2))
    common = m.node("Compress", sorted_ones[0], several)
    back = m.node("Gather", sorted_ones[0], sorted_ones[2])
    wide = m.node("Greater", m.node("ReduceSum", x, m.of([0]), keepdims=0), m.of(0, np.float32))
    columns = m.node("Compress", x, wide, axis=1)
    return [*sorted_ones, *first_ones, *rows, common, back, columns]


def unique_feeds(rng: np.random.Generator) -> Mapping[str, Array]:
    return {"x": rng.integers(-2, 3, (rng.integers(1, 9), 5)).astype(np.float32)}


def scatter_model(m: Model) -> Sequence[str]:
    """A masked update: what a boolean mask selects is changed and put back."""
    x, mask = m.input("x", ["n", 3]), m.input("mask", ["n"], BOOL)
    where = m.node("Transpose", m.node("NonZero", mask), perm=[1, 0])
    rows = m.node("GatherND", x, where)
    mean = m.node("ReduceMean", rows, m.of([1]), keepdims=1)
    changed = m.node("Mul", m.node("Sub", rows, mean), m.of(2, np.float32))
    return [m.node("ScatterND", x, where, changed), m.node("CumSum", changed, m.of(0))]


def scatter_feeds(rng: np.random.Generator) -> Mapping[str, Array]:
    n = int(rng.integers(1, 15))
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return {"x": x, "mask": rng.random(n) < rng.choice([0.0, 0.3, 1.0])}


MODELS: dict[str, tuple[Build, Feeds]] = {
    "mask": (mask_model, mask_feeds),
    "detection": (detection_model, detection_feeds),
    "topk": (topk_model, topk_feeds),
    "window": (window_model, window_feeds),
    "unique": (unique_model, unique_feeds),
    "scatter": (scatter_model, scatter_feeds),
}


def check(actual: Sequence[Array], expected: Sequence[Array], names: Sequence[str]) -> None:
    for mine, theirs, name in zip(actual, expected, names, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), name
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("name", "optimize"),
    [
        pytest.param(
            name,
            optimize,
            marks=[] if optimize or n % 2 else [pytest.mark.slow],
            id=f"{name}-{'optimised' if optimize else 'plain'}",
        )
        for n, name in enumerate(MODELS)
        for optimize in (True, False)
    ],
)
def test_models_against_onnx_runtime(name: str, optimize: bool) -> None:
    build, feeds = MODELS[name]
    model = Model()
    results = build(model)
    proto = model.proto(results)
    theirs = onnxruntime_session(proto)
    graph = ost.load_onnx(proto)
    options = ost.CompileOptions(optimize=optimize, verify=True)
    compiled = ost.Session("cpu", threads=2).compile(graph, options=options)
    rng = np.random.default_rng(0)
    for _ in range(25):
        feed = dict(feeds(rng))
        expected = theirs.run(list(results), feed)
        check(compiled.run(feed), expected, results)
        check(ost.reference.evaluate(graph, feed), expected, results)


def test_a_remembered_model(tmp_path: Any) -> None:
    """The second load builds the interface from the cache: the sizes of the data with it."""
    model = Model()
    results = detection_model(model)
    path = tmp_path / "detection.onnx"
    onnx.save(model.proto(results), path)
    feed = dict(detection_feeds(np.random.default_rng(3)))
    runs = [ost.Session("cpu").compile(ost.load_onnx(path)).run(feed) for _ in range(2)]
    check(runs[1], runs[0], results)


def test_errors_name_the_node_of_the_file() -> None:
    model = Model()
    k = model.input("k", [1], INT64)
    values = model.node("TopK", model.input("x", [3]), k, outputs=2)
    compiled = ost.Session("cpu").compile(ost.load_onnx(model.proto(values)))
    x = np.ones(3, np.float32)
    assert compiled.run({"x": x, "k": np.array([2])})[0].shape == (2,)
    with pytest.raises(ost.VariableError, match=r"/TopK_0.* at most 3, got 4"):
        compiled.run({"x": x, "k": np.array([4])})


@pytest.mark.parametrize("sizes", [(1, 4), (6, 1)])
def test_parts_that_do_not_add_up_are_refused(sizes: tuple[int, int]) -> None:
    model = Model()
    split = model.input("split", [2], INT64)
    parts = model.node("Split", model.input("x", [2, 6]), split, outputs=2, axis=1)
    compiled = ost.Session("cpu").compile(ost.load_onnx(model.proto(parts)))
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    ends = compiled.run({"x": x, "split": np.array([6, 0])})
    assert [part.shape for part in ends] == [(2, 6), (2, 0)]
    with pytest.raises(ost.VariableError, match="Split_0"):
        compiled.run({"x": x, "split": np.array(sizes)})

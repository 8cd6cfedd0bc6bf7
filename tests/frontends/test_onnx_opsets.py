"""Older spellings of ops, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((1, 2, 4, 5)).astype(np.float32)
ORDER = np.array([[[2, 0, 1, 1]] * 3] * 2)


def check(
    opset: int, op_type: str, operands: list[Any], outputs: int = 1, **attributes: Any
) -> None:
    """One node whose first operand is an input and whose others are stored."""
    names = [f"i{i}" for i in range(len(operands))]
    results = [f"o{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, **attributes)],
        "g",
        [helper.make_tensor_value_info("i0", TensorProto.FLOAT, operands[0].shape)],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(a, n) for a, n in zip(operands[1:], names[1:], strict=True)],
    )
    imports = [helper.make_opsetid("", opset)]
    data = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    expected = onnxruntime_session(data).run(None, {"i0": operands[0]})
    actual = ost.reference.evaluate(ost.load_onnx(data), {"i0": operands[0]}, {})
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("opset", "op_type", "operands", "attributes"),
    [
        (7, "Unsqueeze", [X], {"axes": [0, 2]}),
        (11, "Unsqueeze", [X], {"axes": [-1]}),
        (13, "Unsqueeze", [X, ints(-1, 0)], {}),
        (7, "Squeeze", [X[:1, :, :1]], {"axes": [0, 2]}),
        (7, "Squeeze", [X[:1]], {}),
        (13, "Squeeze", [X[:1], ints(0)], {}),
        (7, "ReduceSum", [X], {"axes": [1], "keepdims": 0}),
        (13, "ReduceSum", [X, ints(-1)], {"keepdims": 0}),
        (13, "ReduceMean", [X], {"axes": [0, 2]}),
        (18, "ReduceMean", [X, ints(0, 2)], {}),
        (18, "ReduceMean", [X], {"noop_with_empty_axes": 1}),
        (11, "ReduceLogSumExp", [X], {"axes": [1]}),
        (11, "ReduceL2", [X], {}),
        (9, "Slice", [X], {"starts": [1, -3], "ends": [2, 1000], "axes": [1, 2]}),
        (7, "Slice", [X], {"starts": [0, 1], "ends": [-1, 2]}),
        (10, "Slice", [X, ints(-1), ints(-100), ints(2), ints(-2)], {}),
        (13, "Slice", [X, ints(3, 0), ints(0, 2), ints(2, 0), ints(-1, 1)], {}),
        (13, "Slice", [X, ints(2), ints(1), ints(1)], {}),
        (7, "Pad", [X], {"pads": [0, 1, 0, 0, 2, 1], "value": 2.5}),
        (7, "Pad", [X], {"pads": [0, 1, 0, 0, 1, 1], "mode": "reflect"}),
        (11, "Pad", [X, ints(0, 1, -1, 0, 0, 2), floats(7)[0]], {}),
        (13, "Pad", [X, ints(0, 2, 0, 0, 1, 1)], {"mode": "edge"}),
        (18, "Pad", [X, ints(2, 1), floats(1)[0], ints(-1)], {}),
        (19, "Pad", [X, ints(0, 2, 3, 0, 1, 1)], {"mode": "wrap"}),
        (7, "Clip", [X], {"min": -0.5, "max": 0.5}),
        (7, "Clip", [X], {"max": 0.5}),
        (12, "Clip", [X, floats(-0.5)[0]], {}),
        (7, "Softmax", [X], {"axis": 1}),
        (7, "LogSoftmax", [X], {}),
        (13, "Softmax", [X], {"axis": 1}),
        (9, "Upsample", [IMAGE, floats(1, 1, 2, 3)], {}),
        (9, "Upsample", [IMAGE, floats(1, 1, 2, 2)], {"mode": "linear"}),
        (7, "Upsample", [IMAGE], {"scales": [1.0, 1.0, 2.0, 2.0]}),
        (10, "Resize", [IMAGE, floats(1, 1, 1.5, 0.6)], {}),
        (10, "Resize", [IMAGE, floats(1, 1, 2, 2)], {"mode": "linear"}),
        (9, "Scatter", [X, ORDER, X * 2], {"axis": 2}),
        (11, "ScatterElements", [X, ORDER, X * 2], {"axis": -1}),
        (9, "Flatten", [X], {"axis": 2}),
        (13, "Flatten", [X], {"axis": -1}),
        (9, "Gemm", [X[0], X[0].T.copy(), floats(1, 2, 3)], {"alpha": 0.5, "beta": 2.0}),
        (13, "Gemm", [X[0], X[1], floats(1)], {"transB": 1}),
        (9, "BatchNormalization", [IMAGE, *[floats(1, 2)] * 4], {"epsilon": 1e-3}),
        (7, "Dropout", [X], {"ratio": 0.3}),
        (12, "Dropout", [X, floats(0.3)[0]], {}),
        (7, "PRelu", [IMAGE, floats(0.1, 0.2).reshape(2, 1, 1)], {}),
        (8, "Sum", [X, X, X[:1]], {}),
        (8, "Expand", [X[:, :1], ints(1, 3, 1)], {}),
        (7, "AveragePool", [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 0, 1, 1]}),
        (7, "AveragePool", [IMAGE], {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}),
        (7, "MaxPool", [IMAGE], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        (10, "MaxPool", [IMAGE], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        (7, "LRN", [IMAGE], {"size": 3, "alpha": 0.1}),
        (7, "HardSigmoid", [X], {}),
        (7, "Selu", [X], {"alpha": 2.0, "gamma": 1.5}),
        (7, "Elu", [X], {"alpha": 0.5}),
        (7, "ConvTranspose", [IMAGE, np.ones((2, 1, 3, 3), np.float32)], {"strides": [2, 2]}),
        (
            11,
            "ConvTranspose",
            [IMAGE, np.ones((2, 1, 3, 3), np.float32)],
            {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        ),
        (13, "DepthToSpace", [X.reshape(1, 8, 3, 1)], {"blocksize": 2, "mode": "CRD"}),
        (7, "InstanceNormalization", [IMAGE, floats(1, 2), floats(0, 1)], {}),
        (11, "Resize", [IMAGE, floats(), floats(1, 1, 2, 2)], {"mode": "cubic"}),
        (
            13,
            "Resize",
            [IMAGE, floats(), floats(), ints(1, 2, 7, 3)],
            {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str | int) else "",
)
def test_against_onnx_runtime(
    opset: int, op_type: str, operands: list[Any], attributes: dict[str, Any]
) -> None:
    check(opset, op_type, operands, **attributes)


@pytest.mark.parametrize(
    ("opset", "op_type", "operands", "outputs", "attributes"),
    [
        (7, "Split", [X], 2, {"axis": 2}),
        (7, "Split", [X], 2, {"axis": 1, "split": [1, 2]}),
        (13, "Split", [X, ints(3, 1)], 2, {"axis": -1}),
        (18, "Split", [X.reshape(3, 8)], 3, {"axis": 1, "num_outputs": 3}),
        (7, "TopK", [X], 2, {"k": 2, "axis": 1}),
        (10, "TopK", [X, ints(2)], 2, {}),
        (11, "TopK", [X, ints(2)], 2, {"largest": 0, "axis": 0}),
    ],
)
def test_several_outputs(
    opset: int, op_type: str, operands: list[Any], outputs: int, attributes: dict[str, Any]
) -> None:
    check(opset, op_type, operands, outputs, **attributes)


def test_limits_of_clip_as_operands_of_an_old_operator_set() -> None:
    names = ["x", "low", "high"]
    graph = helper.make_graph(
        [helper.make_node("Clip", names, ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in names],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)])
    with pytest.raises(ost.ModelFormatError, match="operator set 10 has the limits of Clip as"):
        ost.load_onnx(model)


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 1, 4), (1, 1, 7), (2, 3, 0), (2, 3, 9)])
def test_gather_elements_of_a_part_of_the_other_axes(shape: tuple[int, ...]) -> None:
    check(18, "GatherElements", [X, np.random.default_rng(2).integers(-4, 4, shape)], axis=2)

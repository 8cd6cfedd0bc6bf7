"""Nodes of operator sets 1 to 6, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost

X = np.random.default_rng(0).standard_normal((2, 3, 5, 7)).astype(np.float32)
ROW = np.arange(1, 4, dtype=np.float32)


def load(opset: int, op_type: str, stored: list[Any], **attributes: Any) -> ost.Graph:
    """A model of one node whose first operand is the input and whose others are stored."""
    names = [f"i{i}" for i in range(1 + len(stored))]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("i0", TensorProto.FLOAT, X.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for a, n in zip(stored, names[1:], strict=True)],
    )
    imports = [helper.make_opsetid("", opset)]
    return ost.load_onnx(helper.make_model(graph, opset_imports=imports, ir_version=3))


@pytest.mark.parametrize(
    ("opset", "op_type", "stored", "attributes", "expected"),
    [
        (6, "Add", [ROW], {"broadcast": 1, "axis": 1}, X + ROW[:, None, None]),
        (1, "Mul", [ROW], {"broadcast": 1, "axis": -3}, X * ROW[:, None, None]),
        (1, "Sub", [X[0, 0]], {"broadcast": 1}, X - X[0, 0]),
        (6, "Pow", [ROW], {"broadcast": 1, "axis": 1}, X ** ROW.astype(np.int16)[:, None, None]),
        (6, "Less", [ROW], {"broadcast": 1, "axis": 1}, ROW[:, None, None] > X),
        (6, "PRelu", [ROW], {}, np.where(X < 0, X * ROW[:, None, None], X)),
        (6, "PRelu", [ROW[:1]], {}, np.where(X < 0, X * ROW[0], X)),
        (1, "Reshape", [], {"shape": [0, -1]}, X.reshape(2, -1)),
        (1, "Cast", [], {"to": "INT32"}, X.astype(np.int32)),
        (1, "Cast", [], {"to": "DOUBLE"}, X.astype(np.float64)),
        (1, "Concat", [X], {}, np.concatenate([X, X], 1)),
        (
            1,
            "Pad",
            [],
            {"paddings": [0, 0, 0, 1, 0, 0, 2, 0]},
            np.pad(X, [(0, 0), (0, 0), (0, 2), (1, 0)]),
        ),
        (1, "Tile", [np.array([3]), np.array([2])], {}, np.tile(X, (1, 1, 3, 1))),
        (6, "Tile", [np.array([1, 2, 1, 1])], {}, np.tile(X, (1, 2, 1, 1))),
        (1, "Upsample", [], {"height_scale": 2.0, "width_scale": 3.0}, X.repeat(2, 2).repeat(3, 3)),
        (1, "Sigmoid", [], {"consumed_inputs": [0]}, 1 / (1 + np.exp(-X))),
        (1, "Dropout", [], {"is_test": 1}, X),
    ],
)
def test_older_forms(opset, op_type, stored, attributes, expected) -> None:
    graph = load(opset, op_type, stored, **attributes)
    (result,) = ost.reference.evaluate(graph, {"i0": X})
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_an_operand_that_does_not_fit_its_axis_is_named() -> None:
    with pytest.raises(ost.ModelFormatError, match=r"Add 'y': its second operand .* at 3"):
        load(6, "Add", [X[0]], broadcast=1, axis=3)


def test_an_unknown_element_type_is_named() -> None:
    with pytest.raises(ost.UnsupportedOpError, match="casts to quaternion"):
        load(1, "Cast", [], to="QUATERNION")

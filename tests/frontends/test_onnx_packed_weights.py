"""``DequantizePacked`` of opset 29: every format, next to the decoder, stored and given."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from ostinato.ops.packed.decoding import decode, packed_format
from ostinato.ops.packed.formats import FORMATS
from ostinato.ops.packed.grid_formats import GRID_FORMATS
from tests.packed_blocks import random_blocks

ALL = sorted(name.removeprefix("gguf:") for name in (*FORMATS, *GRID_FORMATS))


def model(
    packed: np.ndarray[Any, Any], shape: tuple[int, ...], *, stored: bool, **attributes: Any
) -> onnx.ModelProto:
    """A model of that one node; its weight is in the model, or an input."""
    node = helper.make_node("DequantizePacked", ["x"], ["y"], shape=shape, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, packed.shape)
    to = attributes.get("output_dtype", TensorProto.FLOAT)
    y = helper.make_tensor_value_info("y", to, shape)
    weights = [numpy_helper.from_array(packed, "x")] if stored else []
    graph = helper.make_graph([node], "packed", [] if stored else [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 29)], ir_version=10)


def run(proto: onnx.ModelProto, **feeds: Any) -> np.ndarray[Any, Any]:
    (y,) = ost.Session("cpu", threads=1).compile(ost.load_onnx(proto)).run(feeds)
    return np.asarray(y)


def blocks(name: str, count: int = 3) -> np.ndarray[Any, Any]:
    return random_blocks(np.random.default_rng(0), name, count, hard=False).reshape(-1)


@pytest.mark.parametrize("name", ALL)
def test_stored_weights_are_decoded(name: str) -> None:
    packed, form = blocks(name), packed_format(f"gguf:{name}")
    shape = (3, form.size)
    found = run(model(packed, shape, stored=True, format=form.name))
    expected = decode(packed.reshape(3, -1), form.name)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.DOUBLE, np.float64),
    ],
)
@pytest.mark.parametrize("name", ["q4_k", "iq2_xs"])
def test_results_are_converted_once(name: str, number: int, dtype: Any) -> None:
    packed, form = blocks(name), packed_format(f"gguf:{name}")
    proto = model(packed, (form.size, 3), stored=True, format=form.name, output_dtype=number)
    expected = decode(packed.reshape(3, -1), form.name).reshape(form.size, 3).astype(dtype)
    np.testing.assert_array_equal(run(proto), expected)


def test_weights_that_are_given() -> None:
    packed = blocks("q5_1")
    found = run(model(packed, (2, 48), stored=False, format="gguf:q5_1"), x=packed)
    np.testing.assert_array_equal(found, decode(packed, "gguf:q5_1").reshape(2, 48))
    with pytest.raises(ost.UnsupportedOpError, match="iq1_s are not known"):
        ost.load_onnx(model(blocks("iq1_s"), (3, 256), stored=False, format="gguf:iq1_s"))


def test_a_weight_is_decoded_once() -> None:
    """A matmul reads what was decoded when the model was compiled."""
    packed = blocks("q8_0", 4)
    nodes = [
        helper.make_node("DequantizePacked", ["w"], ["d"], format="gguf:q8_0", shape=(4, 32)),
        helper.make_node("Gemm", ["x", "d"], ["y"], transB=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 32))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(packed, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 29)], ir_version=10)
    compiled = ost.Session("cpu", threads=1).compile(ost.load_onnx(proto))
    given = np.random.default_rng(1).standard_normal((2, 32), dtype=np.float32)
    (found,) = compiled.run({"x": given})
    expected = given @ decode(packed.reshape(4, -1), "gguf:q8_0").T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert len(compiled.plan.kernels) == 1


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"format": "gguf:q8_1"}, "no packed format 'gguf:q8_1'"),
        ({"format": "q4_0"}, "no packed format 'q4_0'"),
        ({"shape": (3, 31)}, "is not"),
        ({"shape": (4, 32)}, "is not"),
        ({"shape": (-3, -32)}, r"shape is \[-3, -32\]"),
        ({"output_dtype": TensorProto.INT8}, "output_dtype is FLOAT"),
        ({"output_dtype": 99}, "output_dtype is FLOAT"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], problem: str) -> None:
    packed = blocks("q4_0")
    given: dict[str, Any] = {"shape": (3, 32), "format": "gguf:q4_0", **changed}
    proto = model(packed, given.pop("shape"), stored=True, **given)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(ost.OstinatoError, match=problem):
        ost.load_onnx(proto)

"""ONNX's backend interface."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import ostinato as ost
from ostinato.frontends.onnx import backend

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def reshaping_model():
    """A model whose output has the shape that its second input holds."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Reshape", ["h", "shape"], ["y"])],
        "reshaping",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, ir_version=10)


def test_outputs_are_found_by_position_and_by_name() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xab"]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), ir_version=10)
    prepared = backend.prepare(model)
    for given in ([X], {"x": X}, X):
        outputs = prepared.run(given)
        np.testing.assert_array_equal(outputs[0], -X)
        np.testing.assert_array_equal(outputs["b"], X)


def test_shapes_may_follow_the_values_of_inputs() -> None:
    prepared = backend.prepare(reshaping_model())
    assert prepared.fixed == {"shape"}
    for shape in ([3, 2], [6, 1], [3, 2]):
        (y,) = prepared.run([X, np.array(shape)])
        np.testing.assert_array_equal(y, -X.reshape(shape))


def test_the_error_names_the_inputs_to_fix() -> None:
    with pytest.raises(ost.UnsupportedOpError, match=r"constants=, \['shape'\]") as caught:
        ost.load_onnx(reshaping_model())
    assert caught.value.inputs == {"shape"}


def test_single_nodes() -> None:
    node = helper.make_node("Gemm", ["a", "b", ""], ["y"], transB=1)
    (y,) = backend.run_node(node, [X, X])
    np.testing.assert_allclose(y, X @ X.T)
    node = helper.make_node("BiasGelu", ["a", "b"], ["y"], domain="com.microsoft")
    assert backend.run_node(node, [X, X[0]])[0].shape == X.shape


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(ost.InputError, match="device should be 'CPU', got 'CUDA:1'"):
        backend.prepare(reshaping_model(), "CUDA:1")


def test_the_path_that_tools_expect() -> None:
    import ostinato.backends.onnx_backend as alias

    assert alias.prepare == backend.prepare
    assert not hasattr(alias, "no_such_name")


def test_what_is_unsupported_is_incompatible() -> None:
    node = helper.make_node("ImageDecoder", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(n, TensorProto.UINT8, None) for n in "xy"]
    infos[0].type.tensor_type.shape.dim.add().dim_value = 4
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]), ir_version=10)
    assert not backend.OstinatoBackend.is_compatible(model)
    assert backend.OstinatoBackend.is_compatible(reshaping_model())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
def test_contents_that_shapes_follow_may_be_of_any_dtype(dtype) -> None:
    """Of NumPy's own names for element types, those of the dtypes it lacks say the width alone."""
    element = ost.DType.parse(dtype).numpy
    nodes = [
        helper.make_node("Cast", ["n"], ["m"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["m", "s"], ["shape"]),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("n", helper.np_dtype_to_tensor_dtype(element), []),
    ]
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [1])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [shape])
    prepared = backend.prepare(helper.make_model(graph, ir_version=10))
    for count in (3, 5):
        (y,) = prepared.run([np.ones(1, np.float32), np.array(count, element)])
        assert y.shape == (count,)

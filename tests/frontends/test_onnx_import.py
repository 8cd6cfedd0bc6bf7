"""The graphs that imports give, and the errors of imports that cannot be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ostinato as ost
from tests.peer_runtime import onnxruntime_session


def info(name: str, shape: list[Any] | None, type_: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, type_, shape)


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    initializers: dict[str, Any] | None = None,
    opset: int = 17,
    **extra: Any,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, **extra)


def run(graph: ost.Graph, **inputs: Any) -> list[Any]:
    return list(ost.reference.evaluate(graph, inputs, {}))


X = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


def test_weights_are_params_and_scalars_constants() -> None:
    proto = model(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="dense"),
            helper.make_node("Mul", ["h", "two"], ["y"], name="double"),
        ],
        [info("x", [2, 4])],
        [info("y", [2, 3])],
        {
            "w": np.ones((4, 3), np.float32),
            "b": np.ones(3, np.float32),
            "two": np.array(2.0, np.float32),
        },
    )
    graph = ost.load_onnx(proto)
    assert list(graph.inputs) == ["x"]
    assert list(graph.outputs) == ["y"]
    assert sorted(graph.params) == ["b", "w"]
    assert np.shares_memory(graph.param_values["w"], graph.param_values["w"])
    assert {node.label for node in graph.nodes if node.op.name != "input"} >= {"dense", "double"}
    np.testing.assert_allclose(run(graph, x=X)[0], (X.sum(1, keepdims=True) + 1) * 2 * [[1] * 3])


def test_initializers_listed_as_inputs_are_weights() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [info("x", [2, 4]), info("b", [4])],
        [info("y", [2, 4])],
        {"b": np.ones(4, np.float32)},
    )
    graph = ost.load_onnx(proto)
    assert list(graph.inputs) == ["x"]
    assert list(graph.params) == ["b"]


def test_every_unsupported_node_is_listed() -> None:
    proto = model(
        [
            helper.make_node("ImageDecoder", ["x"], ["a"], name="image"),
            helper.make_node("Relu", ["a"], ["b"], name="fine"),
            helper.make_node("Frobnicate", ["x"], ["c"], name="frob", domain="acme"),
            helper.make_node("Gradient", ["b"], ["d"], name="after_a_gap"),
            helper.make_node("BatchNormalization", ["x", *"ssss"], ["e"], spatial=0),
            helper.make_node("Add", ["c", "e"], ["y"]),
        ],
        [info("x", [2, 4]), info("s", [4])],
        [info("y", [2, 4]), info("d", None)],
    )
    with pytest.raises(ost.UnsupportedOpError) as caught:
        ost.load_onnx(proto)
    message = str(caught.value)
    assert "4 nodes not supported" in message
    for part in (
        "'image' (ImageDecoder)",
        "'frob' (acme.Frobnicate): unknown operator domain 'acme'",
        "'after_a_gap' (Gradient)",
        "'e' (BatchNormalization): its statistics are not per channel",
    ):
        assert part in message
    assert "fine" not in message


def test_unsupported_nodes_in_branches() -> None:
    bad = helper.make_graph(
        [helper.make_node("ImageDecoder", ["x"], ["a"], name="image")], "bad", [], [info("a", None)]
    )
    good = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "good", [], [info("b", None)])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=bad, else_branch=good)
    inputs = [info("x", [2, 2]), info("flag", [], TensorProto.BOOL)]
    proto = model([node], inputs, [info("y", None)])
    for constants in ({}, {"flag": True}):
        with pytest.raises(ost.UnsupportedOpError, match=r"'image' \(ImageDecoder\)"):
            ost.load_onnx(proto, constants=constants)
    graph = ost.load_onnx(proto, constants={"flag": False})
    assert [n.op.name for n in graph.nodes] == ["input", "neg"]


def test_a_condition_known_at_run_time_only_chooses_between_both() -> None:
    then = helper.make_graph([helper.make_node("Exp", ["x"], ["a"])], "t", [], [info("a", None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "e", [], [info("b", None)])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    inputs = [info("x", [2, 4]), info("flag", [], TensorProto.BOOL)]
    graph = ost.load_onnx(model([node], inputs, [info("y", None)]))
    np.testing.assert_allclose(run(graph, x=X, flag=np.array(True))[0], np.exp(X), rtol=1e-6)
    np.testing.assert_array_equal(run(graph, x=X, flag=np.array(False))[0], -X)


def test_branches_of_different_types_take_the_condition_of_a_run() -> None:
    then = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["a"], axis=0)], "t", [], [info("a", None)]
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "e", [], [info("b", None)])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other, name="if")
    inputs = [info("x", [2, 4]), info("flag", [], TensorProto.BOOL)]
    graph = ost.load_onnx(model([node], inputs, [info("y", None)]))
    compiled = ost.Session("cpu").compile(graph)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for flag, expected in ((True, x.reshape(1, 8)), (False, -x), (True, x.reshape(1, 8))):
        feeds = {"x": x, "flag": np.array(flag)}
        np.testing.assert_array_equal(compiled.run(feeds)[0], expected)
        np.testing.assert_array_equal(ost.reference.evaluate(graph, feeds)[0], expected)
    assert len(compiled.specializations) == 2
    assert "If 'if'" in compiled.explain()


def test_errors_name_the_node() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="the_product")],
        [info("x", [2, 4])],
        [info("y", None)],
        {"w": np.ones((5, 3), np.float32)},
    )
    with pytest.raises(ost.GraphError, match=r"MatMul 'the_product'.*4 and 5"):
        ost.load_onnx(proto)


def test_functions_of_the_model() -> None:
    function = helper.make_function(
        "mine",
        "ScaledRelu",
        ["a", "offset"],
        ["r"],
        [
            helper.make_node("Constant", [], ["slope"]),
            helper.make_node("Relu", ["a"], ["p"]),
            helper.make_node("Mul", ["p", "slope"], ["r"]),
        ],
        [helper.make_opsetid("", 17)],
        ["factor"],
    )
    reference = function.node[0].attribute.add()
    reference.name, reference.ref_attr_name = "value_float", "factor"
    reference.type = onnx.AttributeProto.FLOAT
    node = helper.make_node("ScaledRelu", ["x"], ["y"], domain="mine", factor=3.0)
    proto = model([node], [info("x", [2, 4])], [info("y", None)], functions=[function])
    np.testing.assert_allclose(run(ost.load_onnx(proto), x=X)[0], np.maximum(X, 0) * 3)


def test_functions_of_the_standard() -> None:
    proto = model(
        [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[1])],
        [info("x", [2, 4])],
        [info("y", None)],
    )
    expected = (X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True)
    np.testing.assert_allclose(run(ost.load_onnx(proto), x=X)[0], expected, rtol=1e-4)


def test_constant_subgraphs_are_computed_while_loading() -> None:
    proto = model(
        [
            helper.make_node("Sqrt", ["four"], ["two"]),
            helper.make_node("Cast", ["two"], ["i"], to=TensorProto.INT64),
            helper.make_node("Range", ["zero", "i", "one"], ["r"]),
            helper.make_node("Gather", ["x", "r"], ["y"], axis=1),
        ],
        [info("x", [2, 4])],
        [info("y", None)],
        {"four": np.array(4.0, np.float32), "zero": np.array(0), "one": np.array(1)},
    )
    graph = ost.load_onnx(proto)
    assert [n.op.name for n in graph.nodes] == ["input", "constant", "take"]
    np.testing.assert_array_equal(run(graph, x=X)[0], X[:, :2])


def test_softmax_before_and_after_operator_set_13() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for opset, axes in ((11, (1, 2)), (13, (2,))):
        node = helper.make_node("Softmax", ["x"], ["y"])
        proto = model([node], [info("x", [2, 3, 4])], [info("y", None)], opset=opset)
        exponential = np.exp(x)
        expected = exponential / exponential.sum(axis=axes, keepdims=True)
        np.testing.assert_allclose(run(ost.load_onnx(proto), x=x)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "operands", "expected"),
    [
        ("Gelu", ["x"], "gelu"),
        ("FastGelu", ["x", "b"], "gelu"),
        ("BiasGelu", ["x", "b"], "gelu"),
        ("QuickGelu", ["x"], "multiply"),
        ("SimplifiedLayerNormalization", ["x", "b"], "rms_norm"),
        ("SkipLayerNormalization", ["x", "x", "b", "b"], "layer_norm"),
        ("SkipSimplifiedLayerNormalization", ["x", "x", "b"], "rms_norm"),
    ],
)
def test_ops_of_onnx_runtime(op_type: str, operands: list[str], expected: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4)).astype(np.float32)
    proto = model(
        [helper.make_node(op_type, operands, ["y"], domain="com.microsoft")],
        [info("x", [1, 2, 4])],
        [info("y", None)],
        {"b": np.linspace(0.5, 2, 4, dtype=np.float32)} if "b" in operands else {},
        ir_version=10,
    )
    if op_type == "SimplifiedLayerNormalization":
        proto.graph.node[0].domain = ""
    graph = ost.load_onnx(proto)
    assert graph.outputs["y"].node.op.name == expected
    (wanted,) = onnxruntime_session(proto).run(None, {"x": x})
    np.testing.assert_allclose(run(graph, x=x)[0], wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "field"),
    [
        (np.float16, "int32_data"),
        (np.int8, "int32_data"),
        (np.uint16, "int32_data"),
        (np.bool_, "int32_data"),
        (np.uint32, "uint64_data"),
        (np.uint64, "uint64_data"),
        (np.int64, "int64_data"),
        (np.float64, "double_data"),
    ],
)
def test_typed_and_raw_tensors_agree(dtype: Any, field: str) -> None:
    array = np.array([[0, 1, 2], [3, 100, 5]]).astype(dtype)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    typed = helper.make_tensor("t", number, array.shape, array.reshape(-1).tolist())
    assert len(getattr(typed, field)) == array.size
    for tensor in (typed, numpy_helper.from_array(array, "t")):
        proto = model([helper.make_node("Identity", ["t"], ["y"])], [], [info("y", None, number)])
        proto.graph.initializer.append(tensor)
        np.testing.assert_array_equal(run(ost.load_onnx(proto))[0], array)

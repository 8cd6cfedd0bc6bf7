"""Sequences and optionals of ONNX models, taken apart while a model is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ostinato as ost

from .test_onnx_control import BOOL, INT64, check, info, model, node, stored

FLOAT = TensorProto.FLOAT


def sequence_info(name: str, shape: Any = None) -> onnx.ValueInfoProto:
    tensor = helper.make_tensor_type_proto(FLOAT, shape)
    return helper.make_value_info(name, helper.make_sequence_type_proto(tensor))


def optional_info(name: str, shape: Any = None) -> onnx.ValueInfoProto:
    tensor = helper.make_tensor_type_proto(FLOAT, shape)
    return helper.make_value_info(name, helper.make_optional_type_proto(tensor))


def run(graph: ost.Graph, **inputs: Any) -> list[Any]:
    return list(ost.Session("cpu").compile(graph).run(inputs))


A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((4, 3), np.float32)


def test_a_sequence_input_is_its_tensors() -> None:
    proto = model(
        [
            node("ConcatFromSequence", ["xs"], ["y"], axis=0),
            node("SequenceLength", ["xs"], ["n"]),
            node("SequenceAt", ["xs", "last"], ["z"]),
        ],
        [sequence_info("xs", [None, 3])],
        [info("y"), info("n", [], INT64), info("z")],
        [stored("last", np.int64(-1))],
    )
    graph = ost.load_onnx(proto, dims={"xs": [(2, 3), (4, 3)]})
    assert list(graph.inputs) == ["xs[0]", "xs[1]"]
    y, n, z = run(graph, **{"xs[0]": A, "xs[1]": B})
    np.testing.assert_array_equal(y, np.concatenate([A, B]))
    np.testing.assert_array_equal(z, B)
    assert n == 2
    with pytest.raises(ost.UnsupportedOpError, match=r"input 'xs' is a sequence: give the shape"):
        ost.load_onnx(proto)
    with pytest.raises(ost.VariableError, match="give a list with the shape of each tensor"):
        ost.load_onnx(proto, dims={"xs": 2})
    with pytest.raises(ost.InputError, match="expected a list"):
        ost.load_onnx(proto, constants={"xs": A})


def test_a_sequence_output_is_its_tensors() -> None:
    proto = model(
        [
            node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
            node("SequenceErase", ["parts", "first"], ["rest"]),
            node("SequenceInsert", ["rest", "x"], ["ys"]),
        ],
        [info("x", [4, 3])],
        [sequence_info("ys")],
        [stored("sizes", np.array([1, 2, 1])), stored("first", np.int64(0))],
    )
    graph = ost.load_onnx(proto)
    assert list(graph.outputs) == ["ys[0]", "ys[1]", "ys[2]"]
    first, second, third = run(graph, x=B)
    assert [first.shape, second.shape] == [(2, 3), (1, 3)]
    np.testing.assert_array_equal(third, B)


def test_a_position_that_depends_on_data() -> None:
    proto = model(
        [
            node("Neg", ["x"], ["minus"]),
            node("SequenceConstruct", ["x", "minus"], ["xs"]),
            node("SequenceAt", ["xs", "i"], ["y"]),
        ],
        [info("x", [2, 3]), info("i", [], INT64)],
        [info("y")],
    )
    check(proto, *({"x": A, "i": np.array(i)} for i in (0, 1, -1, -2)))


def test_a_loop_that_carries_a_sequence() -> None:
    body = helper.make_graph(
        [
            node("Identity", ["cond"], ["go"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Add", ["x", "f"], ["item"]),
            node("SequenceInsert", ["xs", "item"], ["more"]),
        ],
        "body",
        [info("i", [], INT64), info("cond", [], BOOL), sequence_info("xs")],
        [info("go", [], BOOL), sequence_info("more")],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["n", "", "none"], ["all"], body=body, name="collect"),
        node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
    ]
    proto = model(nodes, [info("x", [2, 3])], [info("y")], [stored("n", np.int64(5))])
    check(proto, {"x": A})
    proto = model(nodes, [info("x", [2, 3]), info("n", [], INT64)], [info("y")])
    check(proto, *({"x": A, "n": np.array(n)} for n in (2, 3)))


def test_branches_that_give_sequences() -> None:
    def branch(op: str) -> onnx.GraphProto:
        nodes = [
            node(op, ["x"], [f"{op}1"]),
            node("SequenceConstruct", ["x", f"{op}1"], [f"{op}s"]),
        ]
        return helper.make_graph(nodes, op, [], [sequence_info(f"{op}s")])

    proto = model(
        [
            node("If", ["p"], ["ys"], then_branch=branch("Exp"), else_branch=branch("Neg")),
            node("ConcatFromSequence", ["ys"], ["y"], axis=0),
        ],
        [info("x", [2, 3]), info("p", [], BOOL)],
        [info("y")],
    )
    check(proto, {"x": A, "p": np.array(True)}, {"x": A, "p": np.array(False)})


def test_optionals() -> None:
    nodes = [
        node("OptionalHasElement", ["o"], ["p"]),
        node(
            "If",
            ["p"],
            ["y"],
            then_branch=helper.make_graph(
                [node("OptionalGetElement", ["o"], ["a"])], "t", [], [info("a")]
            ),
            else_branch=helper.make_graph(
                [node("Constant", [], ["b"], value=stored("", B))], "e", [], [info("b")]
            ),
        ),
        node("Neg", ["y"], ["z"]),
    ]
    proto = model(nodes, [optional_info("o", [2, 3])], [info("z")], opset=18)
    np.testing.assert_array_equal(run(ost.load_onnx(proto), o=A)[0], -A)
    empty = ost.load_onnx(proto, dims={"o": None})
    assert not empty.inputs
    np.testing.assert_array_equal(run(empty)[0], -B)
    fixed = ost.load_onnx(proto, constants={"o": None})
    np.testing.assert_array_equal(run(fixed)[0], -B)


def test_a_tensor_is_no_sequence() -> None:
    proto = model(
        [node("SequenceLength", ["x"], ["n"], name="count")],
        [info("x", [2])],
        [info("n", [], INT64)],
    )
    with pytest.raises(ost.ModelFormatError, match="'count': operand 0 is no sequence"):
        ost.load_onnx(proto)
    proto = model(
        [node("SequenceConstruct", ["x"], ["xs"]), node("Neg", ["xs"], ["y"], name="minus")],
        [info("x", [2])],
        [info("y")],
    )
    with pytest.raises(ost.ModelFormatError, match="'minus': operand 0 is a sequence"):
        ost.load_onnx(proto)

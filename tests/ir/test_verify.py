"""The verifier: each way in which a graph can be wrong is found, and the node named."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.dtypes import FLOAT64
from ostinato.errors import GraphError
from ostinato.ir.types import TensorType
from ostinato.ir.verify import verify
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


@pytest.fixture
def graph() -> Graph:
    g = Graph("net")
    x, w = g.input("x", (2, 3)), g.param("w", (3,), value=np.ones(3, np.float32))
    s = g.state("s", (2, 3))
    with g.labelled("product"):
        y = x * w
    g.assign(s, y + s)
    g.set_outputs({"y": g.sum(y, axis=0)})
    verify(g)
    return g


def node(g: Graph, op: str):
    return next(n for n in g.nodes if n.op.name == op)


def test_order(graph):
    graph.nodes.append(graph.nodes.pop(graph.nodes.index(node(graph, "multiply"))))
    with pytest.raises(GraphError, match=r"^add 'add_\d+'.*which no earlier node"):
        verify(graph)


def test_operand_of_another_graph(graph):
    other = Graph().input("x", (2, 3))
    node(graph, "multiply").inputs = (other, node(graph, "multiply").inputs[1])
    with pytest.raises(GraphError, match=r"^multiply 'product'.*test_verify.py.*no earlier node"):
        verify(graph)


def test_result_owned_by_another_node(graph):
    node(graph, "sum").outputs = node(graph, "add").outputs
    with pytest.raises(GraphError, match=r"^sum.*another node or graph owns"):
        verify(graph)


def test_no_results(graph):
    node(graph, "sum").outputs = ()
    with pytest.raises(GraphError, match=r"^sum.*produces nothing"):
        verify(graph)


def test_declared_type(graph):
    value = node(graph, "multiply").outputs[0]
    value.type = TensorType(FLOAT64, value.shape)
    with pytest.raises(GraphError, match=r"declares f64\[2,3\], but its operands give f32\[2,3\]"):
        verify(graph)


def test_attribute_that_does_not_fit(graph):
    node(graph, "sum").attrs = {"axis": (5,), "keepdims": False}
    with pytest.raises(GraphError, match=r"^sum.*axis"):
        verify(graph)


@pytest.mark.parametrize("value", [[0], {0}, np.zeros(1), object(), ([0],)])
def test_mutable_attribute(graph, value):
    node(graph, "sum").attrs = {"axis": value, "keepdims": False}
    with pytest.raises(GraphError, match=r"^sum.*attributes are immutable"):
        verify(graph)


def test_writeable_constant(graph):
    value = graph.constant(np.float32([1, 2]))
    value.node.attrs["array"] = np.float32([1, 2])
    with pytest.raises(GraphError, match=r"^constant.*cannot be written"):
        verify(graph)


def test_constant_of_another_type(graph):
    value = graph.constant(np.float32([1, 2]))
    value.type = TensorType(FLOAT64, (2,))
    with pytest.raises(GraphError, match=r"^constant.*float32\(2,\), the type is f64\[2\]"):
        verify(graph)


def test_leaf_that_is_not_listed(graph):
    del graph.params["w"]
    with pytest.raises(GraphError, match=r"^param.*does not list it as param 'w'"):
        verify(graph)


def test_leaf_that_is_listed_but_gone(graph):
    graph.inputs["z"] = graph.inputs["x"]
    with pytest.raises(GraphError, match=r"lists a leaf that is none of its nodes"):
        verify(graph)


def test_leaves_of_one_name(graph):
    node(graph, "state").attrs = {**node(graph, "state").attrs, "name": "x"}
    with pytest.raises(GraphError, match=r"^state.*another leaf is named 'x'"):
        verify(graph)


def test_value_for_no_param(graph):
    graph.param_values["v"] = np.zeros(1)
    with pytest.raises(GraphError, match="'v', which is no param"):
        verify(graph)


def test_output_of_another_graph(graph):
    graph.outputs["z"] = Graph().input("z", (2,))
    with pytest.raises(GraphError, match="output 'z'"):
        verify(graph)


def test_assignment_of_another_type(graph):
    graph.assignments["s"] = graph.params["w"]
    with pytest.raises(GraphError, match=r"state 's' is f32\[2,3\]"):
        verify(graph)


def test_assignment_to_no_state(graph):
    graph.assignments["t"] = graph.params["w"]
    with pytest.raises(GraphError, match="'t' is assigned but is no state"):
        verify(graph)


def test_variables_of_one_name():
    g = Graph()
    x = g.input("x", (Variable("n", 1, 4),))
    g.set_outputs([x])
    x.type = TensorType(x.dtype, (Variable("n", 1, 5),))
    with pytest.raises(GraphError, match=r"^input.*Variable 'n'"):
        verify(g)


def test_a_refused_param_leaves_nothing_behind():
    g = Graph()
    with pytest.raises(GraphError, match="its value is float64"):
        g.param("w", (2,), value=np.zeros(2))
    assert g.nodes == []
    w = g.param("w", (2,), value=np.zeros(2, np.float32))
    g.set_outputs([w])
    verify(g)

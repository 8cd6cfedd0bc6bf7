"""The oracle: its arguments, its results and its errors."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.errors import GraphError, InputError, VariableError


@pytest.fixture
def graph():
    g = ost.Graph("bias")
    x, w = g.input("x", (2, 3)), g.param("w", (3,), value=np.float32([1, 2, 3]))
    g.set_outputs({"sum": x + w, "double": x * 2})
    return g


X = np.ones((2, 3), np.float32)


def test_outputs_come_in_order(graph):
    total, double = reference.evaluate(graph, {"x": X})
    np.testing.assert_array_equal(total, [[2, 3, 4]] * 2)
    np.testing.assert_array_equal(double, X * 2)
    assert total.dtype == np.float32


def test_params_override_what_the_graph_holds(graph):
    total, _ = reference.evaluate(graph, {"x": X}, {"w": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(total, X)


def test_every_value_can_be_seen(graph):
    result = reference.run(graph, {"x": X})
    assert list(result.outputs) == ["sum", "double"]
    for value in graph.values():
        assert result.values[value].shape == value.shape
        assert result.values[value].dtype == value.dtype.numpy


def test_states_are_read_and_assigned():
    g = ost.Graph()
    count, step = g.state("count", (2,), "int32", init=5), g.input("step", (2,), "int32")
    g.assign(count, count + step)
    g.set_outputs([count * 10])
    steps = {"step": np.array([1, 2], np.int32)}
    first = reference.run(g, steps)
    np.testing.assert_array_equal(first.outputs["output_0"], [50, 50])
    np.testing.assert_array_equal(first.states["count"], [6, 7])
    second = reference.run(g, steps, states=first.states)
    np.testing.assert_array_equal(second.outputs["output_0"], [60, 70])
    np.testing.assert_array_equal(second.states["count"], [7, 9])


def test_inputs_are_not_changed(graph):
    before = X.copy()
    reference.evaluate(graph, {"x": X})
    np.testing.assert_array_equal(X, before)


def test_each_op_rounds_once():
    """Inside an op float64, between ops the declared dtype: fused and unfused agree on this."""
    g = ost.Graph()
    x = g.input("x", (1,), "float16")
    g.set_outputs([(x + 1) - 1, g.sum(g.concat([x] * 4096))])
    tiny = np.array([2.0**-12], np.float16)
    rounded, total = reference.evaluate(g, {"x": tiny})
    assert rounded[0] == 0
    assert total == 1


def test_variables_follow_from_shapes():
    n, m = ost.Variable("n", 1, 9), ost.Variable("m", 0, 9)
    g = ost.Graph()
    x, y = g.input("x", (n, 2)), g.input("y", (2 * n + m, n))
    g.set_outputs([g.sum(x), g.sum(y, 1), g.dim_value(m)])
    inputs = {"x": np.ones((3, 2), np.float32), "y": np.ones((8, 3), np.float32)}
    result = reference.run(g, inputs)
    assert result.variables == {"n": 3, "m": 2}
    assert result.outputs["output_2"] == 2
    with pytest.raises(VariableError, match=r"axis 1 is n = 3 with n = 3 \(from axis 0 of 'x'\)"):
        reference.run(g, {**inputs, "y": np.ones((8, 4), np.float32)})
    with pytest.raises(VariableError, match=r"'n' is bounded by 1..9, got 10"):
        reference.run(g, {"x": np.ones((10, 2), "f"), "y": np.ones((20, 10), "f")})
    with pytest.raises(VariableError, match=r"axis 0 .* \(from the caller\)"):
        reference.run(g, inputs, variables={"n": 4})


def test_sizes_that_no_variable_gives():
    n = ost.Variable("n", 1, 9)
    g = ost.Graph()
    g.set_outputs([g.sum(g.input("x", (2 * n,)))])
    with pytest.raises(VariableError, match=r"axis 0 is 2\*n = 4 with n = 2"):
        reference.evaluate(g, {"x": np.ones(5, np.float32)})
    with pytest.raises(VariableError, match=r"bounded by 1..9"):
        reference.evaluate(g, {"x": np.ones(40, np.float32)})


def test_variables_that_no_shape_gives():
    k = ost.Variable("k", 0, 4)
    g = ost.Graph()
    x = g.input("x", (5,))
    g.set_outputs([x[:k]])
    line = {"x": np.arange(5, dtype=np.float32)}
    (part,) = reference.evaluate(g, line, variables={"k": 2})
    np.testing.assert_array_equal(part, [0, 1])
    with pytest.raises(VariableError, match="no input's shape gives a value to k"):
        reference.evaluate(g, line)
    with pytest.raises(VariableError, match="there is no Variable 'q'; the graph has k"):
        reference.evaluate(g, line, variables={"k": 2, "q": 1})
    for wrong in (5, -1, 2.0, True):
        with pytest.raises(VariableError):
            reference.evaluate(g, line, variables={"k": wrong})


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        ({}, {}, "no array was given for input 'x'"),
        ({"x": X, "y": X}, {}, "there is no input 'y'; the graph has 'x'"),
        ({"x": X}, {"v": X}, "there is no param 'v'; the graph has 'w'"),
        ({"x": X.astype(np.float64)}, {}, r"input 'x' is f32\[2,3\], got float64; cast it first"),
        ({"x": X[:1]}, {}, r"input 'x' is f32\[2,3\], got shape \[1, 3\]"),
        ({"x": X[0]}, {}, r"input 'x' is f32\[2,3\], got shape \[3\]"),
        ({"x": X}, {"w": X}, r"param 'w' is f32\[3\], got shape \[2, 3\]"),
        ({"x": object()}, {}, "expected an array"),
        ({"x": X.astype(complex)}, {}, "unknown dtype"),
    ],
)
def test_wrong_arrays_are_refused(graph, inputs, params, message):
    with pytest.raises(InputError, match=message):
        reference.evaluate(graph, inputs, params)


def test_missing_params_are_named():
    g = ost.Graph()
    g.set_outputs([g.param("w", (2,))])
    with pytest.raises(InputError, match="no array was given for param 'w'"):
        reference.evaluate(g)


def test_a_graph_without_outputs():
    g = ost.Graph("empty")
    g.input("x", (2,))
    with pytest.raises(GraphError, match="'empty' has no outputs"):
        reference.evaluate(g, {"x": np.zeros(2, np.float32)})


def test_constants_and_leaves_may_be_outputs():
    g = ost.Graph()
    x = g.input("x", (2,))
    g.set_outputs([x, g.constant([1, 2]), g.constant(2.5)])
    got = reference.evaluate(g, {"x": np.float32([3, 4])})
    assert [a.tolist() for a in got] == [[3, 4], [1, 2], 2.5]
    assert [a.dtype.name for a in got] == ["float32", "int64", "float32"]

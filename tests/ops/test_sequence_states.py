"""Linear attention and causal convolution against one sequence and one row at a time."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.ops.sequence_states import UPDATE_RULES
from ostinato.variables import Variable

SLOTS, HEADS, GROUP, DEPTH, FEATURES = 3, 2, 2, 4, 5
SEQUENCE, POSITION = np.int32([1, 1, 0, 2, 2, 2]), np.int64([0, 1, 7, 0, 1, 2])


def operands(rng, rule, per_key=False):
    rows = len(SEQUENCE)
    shapes = {
        "q": (rows, HEADS * GROUP, DEPTH),
        "k": (rows, HEADS, DEPTH),
        "v": (rows, HEADS, FEATURES),
        "state": (SLOTS, HEADS, DEPTH, FEATURES),
    }
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if "gated" in rule:
        arrays["decay"] = -rng.random((rows, HEADS, DEPTH) if per_key else (rows, HEADS))
    if "delta" in rule:
        arrays["beta"] = rng.random((rows, HEADS))
    return arrays


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("rule", UPDATE_RULES)
def test_linear_attention_is_a_matrix_updated_row_by_row(run, rng, rule, per_key):
    arrays = operands(rng, rule, per_key)
    names = list(arrays)

    def build(g, sequence, position, *rest):
        named = dict(zip(names, rest, strict=True))
        places = {"sequence": sequence, "position": position}
        return g.linear_attention(**named, **places, update_rule=rule, scale=0.5)

    y, last = run(build, SEQUENCE, POSITION, *arrays.values())
    state, wanted = arrays["state"].copy(), np.zeros_like(y)
    for n, (slot, position) in enumerate(zip(SEQUENCE, POSITION, strict=True)):
        for head in range(HEADS):
            matrix = np.zeros((DEPTH, FEATURES)) if position == 0 else state[slot, head]
            decay = arrays["decay"][n, head] if "gated" in rule else 0.0
            matrix = matrix * np.exp(decay).reshape(-1, 1)
            key, value = arrays["k"][n, head], arrays["v"][n, head]
            if "delta" in rule:
                value = arrays["beta"][n, head] * (value - matrix.T @ key)
            state[slot, head] = matrix + np.outer(key, value)
            for query in range(head * GROUP, (head + 1) * GROUP):
                wanted[n, query] = 0.5 * state[slot, head].T @ arrays["q"][n, query]
    np.testing.assert_allclose(y, wanted, rtol=1e-10)
    np.testing.assert_allclose(last, state, rtol=1e-10)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("taps", [1, 2, 4])
def test_causal_convolution_is_a_window_that_moves_row_by_row(run, rng, taps, biased):
    channels = 3
    x = rng.standard_normal((len(SEQUENCE), channels))
    weight, bias = rng.standard_normal((channels, taps)), rng.standard_normal(channels) * biased
    state = rng.standard_normal((SLOTS, channels, taps - 1))

    def build(g, *operands):
        return g.causal_conv_with_state(*operands, activation="silu")

    given = (x, weight, state, SEQUENCE, POSITION, *([bias] if biased else []))
    y, last = run(build, *given)
    state, wanted = state.copy(), np.zeros_like(y)
    for n, (slot, position) in enumerate(zip(SEQUENCE, POSITION, strict=True)):
        window = np.zeros((channels, taps))
        window[:, :-1] = 0 if position == 0 else state[slot]
        window[:, -1] = x[n]
        total = (window * weight).sum(axis=1) + bias
        wanted[n] = total / (1 + np.exp(-total))
        state[slot] = window[:, 1:]
    np.testing.assert_allclose(y, wanted, rtol=1e-10)
    np.testing.assert_allclose(last, state, rtol=1e-10)


def test_the_scale_is_that_of_attention(type_of):
    g = Graph()
    q, k, v = (g.input(name, (2, 1, 16)) for name in "qkv")
    places = [g.input(name, (2,), "int32") for name in ("sequence", "position")]
    y, _ = g.linear_attention(q, k, v, g.state("s", (1, 1, 16, 16)), *places, update_rule="linear")
    assert y.node.attrs["scale"] == 0.25


def graph_of(rule="gated_delta", **changed):
    n = Variable("n", 0, 8)
    g = Graph()
    types = {
        "q": ((n, 4, 8), "float32"),
        "k": ((n, 2, 8), "float32"),
        "v": ((n, 2, 6), "float32"),
        "state": ((3, 2, 8, 6), "float32"),
        "sequence": ((n,), "int32"),
        "position": ((n,), "int32"),
        "decay": ((n, 2), "float32"),
        "beta": ((n, 2), "float32"),
    }
    types = {name: type_ for name, type_ in (types | changed).items() if type_ is not None}
    values = {name: g.input(name, *type_) for name, type_ in types.items()}
    return g.linear_attention(**values, update_rule=rule)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rule": "retnet"}, "update_rule is one of linear, gated, delta, gated_delta"),
        ({"rule": "linear"}, "takes no decay"),
        ({"beta": None}, "takes beta"),
        ({"q": ((4, 3, 8), "float32")}, "3 query heads are no multiple of 2 heads"),
        ({"k": ((4, 2, 7), "float32")}, "k is "),
        ({"state": ((3, 2, 8, 6), "float64")}, "the state beside float32 is float32"),
        ({"state": ((0, 2, 8, 6), "float32")}, "has no slot"),
        ({"state": ((3, 2, 8), "float32")}, "state is [slots, heads, Dk, Dv]"),
        ({"sequence": ((5,), "int32")}, "differ in rows"),
        ({"position": ((4, 1), "int32")}, "position is integers [rows]"),
        ({"decay": ((4, 2, 7), "float32")}, "decay is "),
        ({"q": ((4, 4, 8), "int32")}, "not a float"),
    ],
)
def test_wrong_operands_are_refused(changed, problem):
    with pytest.raises(GraphError) as error:
        graph_of(**changed)
    assert problem in str(error.value)


def test_a_wrong_convolution_is_refused():
    g = Graph()
    x, weight = g.input("x", (2, 3)), g.input("w", (3, 4))
    places = [g.input(name, (2,), "int32") for name in ("sequence", "position")]
    with pytest.raises(GraphError, match="state is f32"):
        g.causal_conv_with_state(x, weight, g.input("s", (2, 3, 4)), *places)
    with pytest.raises(GraphError, match="activation is one of none, silu"):
        state = g.input("t", (2, 3, 3))
        g.causal_conv_with_state(x, weight, state, *places, activation="gelu")

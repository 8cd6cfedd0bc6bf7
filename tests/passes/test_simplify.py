"""Algebraic and shape simplification: rewrites, and nodes that must stay."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.passes.algebraic import Algebraic
from ostinato.passes.shapes import Shapes
from ostinato.passes.static_slices import StaticSlices
from ostinato.variables import Variable

X = (3, 4)

ALGEBRA = {
    "x + -0.0": (lambda g, x: x + (-0.0), "x"),
    "x + 0 of ints": (lambda g, x: g.cast(x, "int32") + 0, "cast(x, dtype=i32)"),
    "exp(x) + 0.0, never -0.0": (lambda g, x: g.exp(x) + 0.0, "exp(x)"),
    "x - 0.0": (lambda g, x: x - 0.0, "x"),
    "x + -y": (lambda g, x: x + (-g.exp(x)), "subtract(x, exp(x))"),
    "x - -y": (lambda g, x: x - (-g.exp(x)), "add(x, exp(x))"),
    "x * 1": (lambda g, x: x * 1.0, "x"),
    "1 * x": (lambda g, x: 1.0 * x, "x"),
    "x * ones": (lambda g, x: x * g.constant(np.ones((3, 4), np.float32)), "x"),
    "x * ones that broadcast": (
        lambda g, x: x * g.constant(np.ones((2, 3, 4), np.float32)),
        "broadcast_to(x, shape=(2, 3, 4))",
    ),
    "x * -1": (lambda g, x: x * -1.0, "neg(x)"),
    "x / 1": (lambda g, x: x / 1.0, "x"),
    "x / -1": (lambda g, x: x / -1.0, "neg(x)"),
    "x / 8": (lambda g, x: x / 8.0, "multiply(x, 0.125)"),
    "neg(neg(x))": (lambda g, x: g.neg(g.neg(x)), "x"),
    "abs(-x)": (lambda g, x: abs(-x), "abs(x)"),
    "abs(exp(x))": (lambda g, x: abs(g.exp(x)), "exp(x)"),
    "(-x) squared": (lambda g, x: g.square(-x), "square(x)"),
    "x ** 1": (lambda g, x: x**1.0, "x"),
    "x ** 2": (lambda g, x: x**2.0, "square(x)"),
    "x ** 3": (lambda g, x: x**3.0, "multiply(square(x), x)"),
    "x ** -1": (lambda g, x: x**-1.0, "reciprocal(x)"),
    "(x * x) ** 0.5": (lambda g, x: (x * x) ** 0.5, "sqrt(multiply(x, x))"),
    "exp(x) ** -0.5": (lambda g, x: g.exp(x) ** -0.5, "rsqrt(exp(x))"),
    "a sum of squares": (
        lambda g, x: (g.mean(g.square(x), axis=1) + 1e-5) ** 0.5,
        "sqrt(add(mean(square(x), axis=(1,), keepdims=False), 9.999999747378752e-06))",
    ),
    "max(x, x)": (lambda g, x: g.maximum(x, x), "x"),
    "min(max(x, 0), 6)": (
        lambda g, x: g.minimum(g.maximum(x, 0.0), 6.0),
        "clip(x, min=0.0, max=6.0)",
    ),
    "max(min(x, 6), 0)": (
        lambda g, x: g.maximum(0.0, g.minimum(x, 6.0)),
        "clip(x, min=0.0, max=6.0)",
    ),
    "clip of clip": (
        lambda g, x: g.clip(g.clip(x, -1.0, 2.0), 0.0, 6.0),
        "clip(x, min=0.0, max=2.0)",
    ),
    "clip outside clip": (
        lambda g, x: g.clip(g.clip(x, -1.0, 2.0), 3.0, 6.0),
        "clip(x, min=3.0, max=3.0)",
    ),
    "clip below of clip above": (
        lambda g, x: g.clip(g.clip(x, None, 1.0), 0.0, None),
        "clip(x, min=0.0, max=1.0)",
    ),
    "where(True, x, y)": (
        lambda g, x: g.where(g.constant(np.ones((3, 1), bool)), x, g.exp(x)),
        "x",
    ),
    "where(False, x, y)": (lambda g, x: g.where(g.constant(False), x, g.exp(x)), "exp(x)"),
    "where(c, x, x)": (lambda g, x: g.where(x > 0.0, x, x), "x"),
    "where(not c, x, y)": (
        lambda g, x: g.where(~(x > 0.0), x, g.exp(x)),
        "where(greater(x, 0.0), exp(x), x)",
    ),
    "where(logical_not c, x, y)": (
        lambda g, x: g.where(g.logical_not(x > 0.0), x, g.exp(x)),
        "where(greater(x, 0.0), exp(x), x)",
    ),
    "c and True": (
        lambda g, x: g.logical_and(x > 0.0, g.constant(True)),
        "greater(x, 0.0)",
    ),
    "widened and narrowed": (lambda g, x: g.cast(g.cast(x, "float64"), "float32"), "x"),
    "widened and on": (
        lambda g, x: g.cast(g.cast(x, "float64"), "int32"),
        "cast(x, dtype=i32)",
    ),
}

UNTOUCHED = {
    "x + 0.0 may be -0.0 + 0.0": lambda g, x: x + 0.0,
    "x * 0 may be NaN": lambda g, x: x * 0.0,
    "0 - x is not -x for 0": lambda g, x: 0.0 - x,
    "x / 3": lambda g, x: x / 3.0,
    "x / 2**127: a subnormal reciprocal": lambda g, x: x / 2.0**127,
    "x / 0": lambda g, x: x / 0.0,
    "x ** 0.5 of what may be -inf": lambda g, x: x**0.5,
    "x ** 4": lambda g, x: x**4.0,
    "a reciprocal's reciprocal": lambda g, x: g.reciprocal(g.reciprocal(x)),
    "crossed limits": lambda g, x: g.minimum(g.maximum(x, 2.0), 1.0),
    "narrowed and widened": lambda g, x: g.cast(g.cast(x, "float16"), "float32"),
    "to int and back": lambda g, x: g.cast(g.cast(x, "int32"), "float32"),
    "a condition that varies": lambda g, x: g.where(
        g.constant(np.array([True, False, True])[:, None]), x, g.exp(x)
    ),
    "half ones, half twos": lambda g, x: x * g.constant(np.float32([1, 1, 1, 2])),
    "a product that promotes": lambda g, x: g.cast(x, "float16") * g.constant(np.float32(1)),
}


@pytest.mark.parametrize("case", ALGEBRA)
def test_algebra(rewrite, case):
    build, expected = ALGEBRA[case]
    assert rewrite(Algebraic(), build, X).expression == expected


@pytest.mark.parametrize("case", UNTOUCHED)
def test_algebra_that_would_change_a_result_stays(rewrite, case):
    done = rewrite(Algebraic(), UNTOUCHED[case], X)
    assert done.after is done.before
    assert done.events == []


def test_signed_zeros_and_infinities_survive():
    """The very inputs for which the tempting rewrites are wrong."""
    from ostinato import reference
    from ostinato.ops.builder import Graph
    from ostinato.passes import PassReport

    g = Graph()
    x = g.input("x", (6,))
    g.set_outputs([1.0 / (x + 0.0), x * 0.0, x**0.5, x - 0.0, x + (-0.0), abs(-x), x / 4.0])
    after = Algebraic().run(g, PassReport())
    assert after is not g
    array = np.float32([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45])
    for got, want in zip(
        reference.evaluate(after, {"x": array}), reference.evaluate(g, {"x": array}), strict=True
    ):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


N = Variable("n", 1, 8)

SHAPES = {
    "identity reshape": (lambda g, x: _apply(g, "reshape", x, shape=(3, 4)), "x"),
    "three reshapes": (
        lambda g, x: g.reshape(g.reshape(g.reshape(x, (12,)), (4, 3)), (2, 6)),
        "reshape(x, shape=(2, 6))",
    ),
    "there and back": (lambda g, x: g.reshape(g.reshape(x, (12,)), (3, 4)), "x"),
    "two transpositions": (lambda g, x: g.transpose(g.transpose(x)), "x"),
    "permutations compose": (
        lambda g, x: g.permute_dims(g.permute_dims(g.reshape(x, (3, 2, 2)), (2, 0, 1)), (2, 0, 1)),
        "permute_dims(reshape(x, shape=(3, 2, 2)), axes=(1, 2, 0))",
    ),
    "a permutation of ones": (
        lambda g, x: g.permute_dims(g.reshape(x, (1, 12)), (1, 0)),
        "reshape(x, shape=(12, 1))",
    ),
    "identity broadcast": (lambda g, x: _apply(g, "broadcast_to", x, shape=(3, 4)), "x"),
    "broadcasts compose": (
        lambda g, x: g.broadcast_to(g.broadcast_to(x, (2, 3, 4)), (5, 2, 3, 4)),
        "broadcast_to(x, shape=(5, 2, 3, 4))",
    ),
    "whole slice": (
        lambda g, x: _apply(g, "slice", x, starts=(0, 0), stops=(3, 4), steps=(1, 1)),
        "x",
    ),
    "slice of slice": (
        lambda g, x: x[1:3, 1:4][0:1, ::2],
        "slice(x, starts=(1, 1), stops=(2, 4), steps=(1, 2))",
    ),
    "steps multiply": (
        lambda g, x: x[:, ::2][::2, 1:],
        "slice(x, starts=(0, 2), stops=(3, 3), steps=(2, 2))",
    ),
    "slice of nothing": (
        lambda g, x: x[2:3][0:0],
        "slice(x, starts=(2, 0), stops=(2, 4), steps=(1, 1))",
    ),
    "slice of one piece": (
        lambda g, x: g.concat([g.exp(x), x], axis=0)[3:5],
        "slice(x, starts=(0, 0), stops=(2, 4), steps=(1, 1))",
    ),
    "slice that is a piece": (
        lambda g, x: g.concat([g.exp(x), x], axis=1)[:, 4:],
        "x",
    ),
    "flip of flip": (lambda g, x: g.flip(g.flip(x, 0), 0), "x"),
    "flips of two axes": (lambda g, x: g.flip(g.flip(x, 0), 1), "flip(x, axes=(0, 1))"),
    "flip of one element": (
        lambda g, x: g.flip(g.reshape(x, (1, 12)), 0),
        "reshape(x, shape=(1, 12))",
    ),
    "pad by nothing": (
        lambda g, x: _apply(g, "pad", x, before=(0, 0), after=(0, 0), value=0.0),
        "x",
    ),
    "pad of pad": (
        lambda g, x: g.pad(g.pad(x, ((1, 0), (0, 0))), ((1, 0), (0, 2))),
        "pad(x, before=(2, 0), after=(0, 2), value=0.0)",
    ),
    "concat of one": (lambda g, x: _apply(g, "concat", x, axis=0), "x"),
    "concat of concat": (
        lambda g, x: g.concat([g.concat([x, x], axis=0), x], axis=0),
        "concat(x, x, x, axis=0)",
    ),
    "concat with nothing": (lambda g, x: g.concat([x, x[0:0]], axis=0), "x"),
    "split, joined and continued": (
        lambda g, x: g.concat([*g.split(x, 2, axis=1), g.exp(x)], axis=1),
        "concat(x, exp(x), axis=1)",
    ),
    "slices that are neighbours": (
        lambda g, x: g.concat([g.exp(x), x[:, 1:2], x[:, 2:4]], axis=1),
        "concat(exp(x), slice(x, starts=(0, 1), stops=(3, 4), steps=(1, 1)), axis=1)",
    ),
    "split and joined": (lambda g, x: g.concat(g.split(x, 2, axis=1), axis=1), "x"),
    "kept then squeezed": (
        lambda g, x: g.squeeze(g.sum(x, axis=1, keepdims=True), axis=1),
        "sum(x, axis=(1,), keepdims=False)",
    ),
    "dropped then kept": (
        lambda g, x: g.expand_dims(g.max(x, axis=0), axis=0),
        "max(x, axis=(0,), keepdims=True)",
    ),
    "broadcast before adding": (
        lambda g, x: g.broadcast_to(x[0:1], (3, 4)) + x,
        "add(slice(x, starts=(0, 0), stops=(1, 4), steps=(1, 1)), x)",
    ),
    "both transposed": (
        lambda g, x: g.matmul(g.transpose(x), g.transpose(g.reshape(x, (4, 3)))),
        "permute_dims(matmul(reshape(x, shape=(4, 3)), x), axes=(1, 0))",
    ),
}

SHAPES_UNTOUCHED = {
    "a transposition": lambda g, x: g.transpose(x),
    "a reshape of a transposition": lambda g, x: g.reshape(g.transpose(x), (3, 4)),
    "a slice across pieces": lambda g, x: g.concat([x, x], axis=0)[2:4],
    "broadcasts that make the shape": lambda g, x: (
        g.broadcast_to(x[0:1], (3, 4)) + g.reshape(x, (3, 4))[1:2]
    ),
    "pads of different values": lambda g, x: g.pad(
        g.pad(x, ((1, 0), (0, 0)), value=1.0), ((1, 0), (0, 0))
    ),
    "slices with a gap": lambda g, x: g.concat([x[:, 0:1], x[:, 2:4]], axis=1),
    "slices of other rows": lambda g, x: g.concat([x[0:1, 0:2], x[1:2, 2:4]], axis=1),
    "slices with steps": lambda g, x: g.concat([x[:, 0:2:2], x[:, 2:4:2]], axis=1),
    "pieces in another order": lambda g, x: g.concat(g.split(x, 2, axis=1)[::-1], axis=1),
    "one transposed operand": lambda g, x: g.matmul(x, g.transpose(x)),
}


def _apply(g, name, x, **attrs):
    from ostinato.ops import OPS

    return g.apply(OPS[name], (x,), attrs)[0]


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(rewrite, case):
    build, expected = SHAPES[case]
    assert rewrite(Shapes(), build, X).expression == expected


@pytest.mark.parametrize("case", SHAPES_UNTOUCHED)
def test_shapes_that_must_stay(rewrite, case):
    done = rewrite(Shapes(), SHAPES_UNTOUCHED[case], X)
    if case != "broadcasts that make the shape":  # one of the two may go
        assert done.after is done.before


def test_one_of_two_broadcasts_stays(rewrite):
    done = rewrite(
        Shapes(), lambda g, x: g.broadcast_to(x, (3, 4)) + g.broadcast_to(g.exp(x), (3, 4)), (1, 4)
    )
    assert done.expression == "add(x, broadcast_to(exp(x), shape=(3, 4)))"


SLICES = {
    "one row": (
        lambda g, x: g.take(x, g.constant(1), axis=0),
        "reshape(slice(x, starts=(1, 0), stops=(2, 4), steps=(1, 1)), shape=(4,))",
    ),
    "the last column": (
        lambda g, x: g.take(x, g.constant(np.array([-1])), axis=1),
        "slice(x, starts=(0, 3), stops=(3, 4), steps=(1, 1))",
    ),
    "every other column": (
        lambda g, x: g.take(x, g.constant(np.array([0, 2])), axis=1),
        "slice(x, starts=(0, 0), stops=(3, 3), steps=(1, 2))",
    ),
    "beyond the end": (
        lambda g, x: g.take(x, g.constant(np.array(9)), axis=0),
        "reshape(slice(x, starts=(2, 0), stops=(3, 4), steps=(1, 1)), shape=(4,))",
    ),
    "a dynamic slice at constants": (
        lambda g, x: g.dynamic_slice(x, (g.constant(2), g.constant(1)), (2, 2)),
        "slice(x, starts=(1, 1), stops=(3, 3), steps=(1, 1))",
    ),
    "an uneven choice": (lambda g, x: g.take(x, g.constant(np.array([0, 1, 3])), axis=1), None),
    "backwards": (lambda g, x: g.take(x, g.constant(np.array([2, 1])), axis=1), None),
    "twice the same": (lambda g, x: g.take(x, g.constant(np.array([1, 1])), axis=1), None),
    "where x says": (lambda g, x: g.take(x, g.cast(x[0, 0], "int32"), axis=1), None),
}


@pytest.mark.parametrize("case", SLICES)
def test_static_slices(rewrite, case):
    build, expected = SLICES[case]
    done = rewrite(StaticSlices(), build, X)
    if expected is None:
        assert done.after is done.before
    else:
        assert done.expression == expected


def test_symbolic_shapes(rewrite):
    done = rewrite(
        Shapes(),
        lambda g, x: g.reshape(g.reshape(x, (N * 4,)), (N, 2, 2))[:, 0:1][:, :, 1:],
        (N, 4),
    )
    assert done.expression == (
        "slice(reshape(x, shape=(n, 2, 2)), starts=(0, 0, 1), stops=(n, 1, 2), steps=(1, 1, 1))"
    )


def test_events_count_what_was_done(rewrite):
    done = rewrite(Algebraic(), lambda g, x: g.exp(x * 1.0) + g.log(x * 1.0), X)
    assert done.events == ["algebraic: simplified multiply ×2"]


def test_labels_and_source_lines_carry_over(rewrite):
    def build(g, x):
        with g.labelled("scores/Div"):
            return x / 8.0

    done = rewrite(Algebraic(), build, X)
    node = done.after.nodes[-1]
    assert (node.op.name, node.label) == ("multiply", "scores/Div")
    assert node.source == done.before.nodes[-1].source
    assert __file__ in node.source

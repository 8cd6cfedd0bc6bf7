"""Constant folding, common subexpressions, dead code, and decomposition."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ostinato.errors import UnsupportedOpError
from ostinato.ir.leaves import CONSTANT
from ostinato.ops.builder import Graph
from ostinato.passes import PassReport
from ostinato.passes.common_subexpressions import CommonSubexpressions
from ostinato.passes.constant_folding import ConstantFolding
from ostinato.passes.dead_code import DeadCode
from ostinato.passes.decompose import Decompose
from ostinato.variables import Variable

X = (3, 4)


def test_a_chain_of_constants_folds_to_one(rewrite):
    def build(g, x):
        half = g.sqrt(g.constant(4.0)) / 8.0
        return x * g.reshape(half, (1, 1))

    assert rewrite(ConstantFolding(), build, X).expression == "multiply(x, 0.25)"


def test_folding_rounds_each_op_to_its_dtype(rewrite):
    def build(g, x):
        return x + g.cast(g.constant(np.float16(1.0)) / 3.0, "float32")

    assert rewrite(ConstantFolding(), build, X).expression == f"add(x, {float(np.float16(1 / 3))})"


def test_folding_integers_wraps(rewrite):
    def build(g, x):
        return g.cast(x, "int8") + (g.constant(np.int8(127)) + np.int8(1))

    assert rewrite(ConstantFolding(), build, X).expression == "add(cast(x, dtype=i8), -128)"


def test_folding_ops_with_two_results(rewrite):
    def build(g, x):
        values, indices = g.topk(g.constant(np.float32([1, 5, 3, 2])), 1)
        return x * values, g.cast(indices, "float32")

    done = rewrite(ConstantFolding(), build, X)
    assert done.expressions == ["multiply(x, 5.0)", "1.0"]
    assert done.events == [
        "constant_folding: folded topk",
        "constant_folding: folded cast",
    ]


def test_folding_makes_nan_quietly(rewrite):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = rewrite(ConstantFolding(), lambda g, x: x + g.log(g.constant(-1.0)), X)
    assert done.expression == "add(x, nan)"


@pytest.mark.parametrize(
    ("build", "folds"),
    [
        (lambda g, x: x + g.iota((4,), dtype="float32"), True),
        (lambda g, x: x + g.iota((1000, 3, 4), dtype="float32"), True),
        (lambda g, x: x + g.iota((100000, 3, 4), dtype="float32"), False),
        (lambda g, x: x + g.broadcast_to(g.constant(1.0), (100000, 3, 4)), False),
        (lambda g, x: x + g.sum(g.broadcast_to(g.constant(1.0), (3, 4)), axis=0), True),
        (lambda g, x: x + g.cast(g.dim_value(Variable("n", 1, 4)), "float32")[None], False),
    ],
)
def test_folding_is_bounded(build, folds):
    g = Graph()
    g.set_outputs([build(g, g.input("x", X))])
    after = ConstantFolding().run(g, PassReport())
    assert (after is not g) == folds


def test_params_and_states_are_not_folded(rewrite):
    g = Graph()
    w = g.param("w", (2,), value=np.ones(2, np.float32))
    s = g.state("s", (2,), init=1)
    g.set_outputs([w + 1.0, s + 1.0])
    assert ConstantFolding().run(g, PassReport()) is g


# -- common subexpressions -----------------------------------------------------------------------


def test_equal_nodes_are_merged(rewrite):
    done = rewrite(CommonSubexpressions(), lambda g, x: g.exp(x + 1.0) * g.exp(x + 1.0), X)
    assert done.ops == ["add", "exp", "multiply"]
    assert done.events == [
        "common_subexpressions: merged constant",
        "common_subexpressions: merged add",
        "common_subexpressions: merged exp",
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: (g.clip(x, 0.0, 1.0), g.clip(x, -0.0, 1.0)),
        lambda g, x: (g.sum(x, axis=0), g.sum(x, axis=1)),
        lambda g, x: (g.clip(x, 1.0), g.clip(x, None, 1.0)),
        lambda g, x: (x * g.constant(0.0), x * g.constant(-0.0)),
        lambda g, x: (x * g.constant(np.float32([1, 2, 3, 4])), x * g.constant(np.float32([1]))),
        lambda g, x: (x - 1.0, 1.0 - x),
    ],
)
def test_different_nodes_are_not_merged(rewrite, build):
    done = rewrite(CommonSubexpressions(), build, X)
    first, second = done.after.outputs.values()
    assert first is not second


def test_large_constants_are_merged_by_content(rewrite):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(64, 4)).astype(np.float32)
    other = table.copy()
    other[32, 1] += 1

    def build(g, x):
        return tuple(g.matmul(g.constant(t.copy()), g.transpose(x)) for t in (table, other, table))

    done = rewrite(CommonSubexpressions(), build, X)
    assert len([n for n in done.after.nodes if n.op is CONSTANT]) == 2
    a, b, c = done.after.outputs.values()
    assert a is c
    assert a is not b


def test_leaves_are_never_merged():
    g = Graph()
    a, b = g.state("a", (2,)), g.state("b", (2,))
    g.set_outputs([a + 1.0, b + 1.0])
    after = CommonSubexpressions().run(g, PassReport())
    first, second = after.outputs.values()
    assert first is not second
    assert list(after.states) == ["a", "b"]


# -- dead code -----------------------------------------------------------------------------------


def test_dead_nodes_go_and_leaves_stay():
    g = Graph("net")
    x, w = g.input("x", X), g.param("unused", (4,), value=np.zeros(4, np.float32))
    s = g.state("s", (4,))
    g.exp(x)
    g.constant(7.0)
    g.assign(s, s * 2.0)
    g.set_outputs({"y": x})
    report = PassReport()
    after = DeadCode().run(g, report)
    assert [n.op.name for n in after.nodes] == ["input", "param", "state", "constant", "multiply"]
    assert list(after.param_values) == ["unused"]
    assert after.name == "net"
    assert str(report) == "dead_code: removed a dead node ×2"
    assert DeadCode().run(after, report) is after
    assert w.graph is g


# -- decomposition -------------------------------------------------------------------------------


def native(*names):
    return Decompose(lambda node: node.op.name in names)


def test_decomposition_reaches_the_native_ops(rewrite):
    done = rewrite(
        native("add", "subtract", "multiply", "divide", "sum", "rsqrt"),
        lambda g, x: g.layer_norm(x, None, None),
        X,
    )
    assert set(done.ops) == {"subtract", "divide", "multiply", "sum", "add", "rsqrt"}
    assert done.events == ["decompose: rewrote layer_norm"]


def test_native_composites_stay(rewrite):
    done = rewrite(native("softmax"), lambda g, x: g.softmax(x), X)
    assert done.after is done.before


def test_labels_of_a_decomposition(rewrite):
    def build(g, x):
        with g.labelled("block/norm"):
            return g.rms_norm(x)

    done = rewrite(native("multiply", "divide", "sum", "add", "rsqrt"), build, X)
    assert {n.label for n in done.after.nodes[1:]} == {"block/norm"}


def test_every_unsupported_node_is_listed():
    g = Graph()
    x = g.input("x", X)
    with g.labelled("first"):
        a = g.erf(x)
    with g.labelled("second"):
        b = g.tanh(a)
    g.set_outputs([g.softmax(b)])
    with pytest.raises(UnsupportedOpError) as error:
        native("divide", "sum", "subtract", "max").run(g, PassReport())
    message = str(error.value)
    assert "3 nodes" in message
    for wanted in ("erf 'first' (f32[3,4])", "tanh 'second'", "exp ", "test_folding.py"):
        assert wanted in message

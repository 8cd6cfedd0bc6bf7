"""``cond``: one of two graphs is run."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import GraphError, PlanError, VariableError
from ostinato.plan.prepared import check_ops

from .conftest import Check

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def test_either_branch(check: Check) -> None:
    g = ost.Graph()
    x, w = g.input("x", (3, 4)), g.param("w", (4, 4))
    (y,) = g.cond(g.sum(x) > 0, lambda t: t.exp(t.matmul(x, w)), lambda t: t.neg(x))
    g.set_outputs([y + 1])
    w_ = np.eye(4, dtype=np.float32) * 2
    check(g, {"x": np.abs(X)}, {"x": -np.abs(X)}, params={"w": w_})


def test_branches_may_give_leaves_and_views_of_outer_values(check: Check) -> None:
    g = ost.Graph()
    x, y = g.input("x", (3, 4)), g.input("y", (4, 3))
    flag = g.input("flag", (), "bool")
    a, b = g.cond(flag, lambda t: (x, t.transpose(y)), lambda t: (t.transpose(y), t.exp(x)))
    g.set_outputs([a, b, x])
    for taken in (True, False):
        check(g, {"x": X, "y": X.T.copy(), "flag": np.array(taken)})


def test_nested(check: Check) -> None:
    g = ost.Graph()
    x = g.input("x", (5,))
    positive = g.sum(x) > 0

    def inner(t):
        (z,) = t.cond(t.greater(t.max(x), 1.0), lambda u: u.add(x, 1.0), lambda u: u.mul(x, 2.0))
        return z

    (y,) = g.cond(positive, inner, lambda t: t.abs(x))
    g.set_outputs([y])
    rows = np.array([[0.1] * 5, [2.0] * 5, [-1.0] * 5], np.float32)
    check(g, *({"x": row} for row in rows))


def test_symbolic_shapes_and_states(check: Check) -> None:
    n = ost.Variable("n", 0, 9)
    g = ost.Graph()
    x, s = g.input("x", (n, 2)), g.state("s", (2,), init=1.0)
    total = g.sum(x, axis=0) + s
    (y,) = g.cond(g.sum(total) > 3, lambda t: t.zeros_like(s), lambda t: total)
    g.assign(s, y)
    g.set_outputs([y, s])
    one = np.full((3, 2), 0.25, np.float32)
    check(g, {"x": one}, {"x": one[:0]}, {"x": one}, {"x": one[:1]})


def test_facts_of_a_branch_hold_where_sizes_pick_it() -> None:
    n = ost.Variable("n", 0, 9)
    g = ost.Graph()
    x = g.input("x", (n, 2))
    some = g.greater(g.dim_value(n), 0)
    (y,) = g.cond(some, lambda t: t.max(x, axis=0), lambda t: t.zeros((2,)))
    (z,) = g.cond(g.logical_not(some), lambda t: t.ones((2,)), lambda t: t.min(x, axis=0))
    g.set_outputs([y, z])
    compiled = ost.Session("cpu").compile(g)
    ones = np.ones((3, 2), np.float32)
    for rows, expected in ((3, (1, 1)), (0, (0, 1))):
        found = compiled.run({"x": ones[:rows]})
        assert tuple(array[0] for array in found) == expected
    g.set_outputs(g.cond(g.input("flag", (), "bool"), lambda t: t.max(x, axis=0), lambda t: y))
    compiled = ost.Session("cpu").compile(g)
    with pytest.raises(VariableError, match=r"max.*n = 0"):
        compiled.run({"x": ones[:0], "flag": np.array(False)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint64", "bool"])
def test_dtypes(check: Check, dtype: str) -> None:
    g = ost.Graph()
    x, flag = g.input("x", (7,), dtype), g.input("flag", (), "bool")
    (y,) = g.cond(flag, lambda t: t.equal(x, x), lambda t: t.not_equal(x, x))
    (z,) = g.cond(flag, lambda t: x, lambda t: t.flip(x, 0))
    g.set_outputs([y, z])
    array = np.arange(7).astype(g.inputs["x"].dtype.numpy)
    check(g, {"x": array, "flag": np.array(True)}, {"x": array, "flag": np.array(False)})


def test_only_the_taken_branch_runs() -> None:
    g = ost.Graph()
    x, flag = g.input("x", (512, 512)), g.input("flag", (), "bool")
    (y,) = g.cond(flag, lambda t: t.matmul(x, x), lambda t: t.neg(x))
    g.set_outputs([y])
    plan = ost.Session("cpu").compile(g).plan
    (kernel,) = (i for i, op in enumerate(plan.prepared_kernels) if "matmul" in op.name)
    for taken in (True, False):
        plan.inputs["x"].copyin(np.ones((512, 512), np.float32))
        plan.inputs["flag"].copyin(np.array(taken))
        profile = plan.execute_profiled()
        assert (profile[kernel].elapsed > 0) == taken
        assert plan.output_buffer().copyout()[0, 0] == (512 if taken else -1)


def test_known_condition_is_inlined() -> None:
    g = ost.Graph()
    x = g.input("x", (4,))
    (y,) = g.cond(True, lambda t: t.exp(x), lambda t: t.neg(x))
    g.set_outputs([y])
    names = [kernel.name for kernel in ost.Session("cpu").compile(g).plan.kernels]
    assert names == ["exp"]


def test_weights_are_packed_once_outside_of_the_branch() -> None:
    g = ost.Graph()
    x, flag = g.input("x", (8, 64)), g.input("flag", (), "bool")
    w = g.param("w", (64, 64))
    (y,) = g.cond(flag, lambda t: t.matmul(x, t.transpose(w)), lambda t: t.neg(x))
    g.set_outputs([y])
    plan = ost.Session("cpu").compile(g).plan
    assert plan.preparation
    assert "w" not in {b for op in plan.prepared_kernels for b in op.node_names}


def test_control_ops_run_only_within_their_plan() -> None:
    g = ost.Graph()
    x, flag = g.input("x", (4,)), g.input("flag", (), "bool")
    g.set_outputs(g.cond(flag, lambda t: t.exp(x), lambda t: t.neg(x)))
    plan = ost.Session("cpu").compile(g).plan
    with pytest.raises(PlanError, match="only that plan"):
        check_ops(plan.prepared_ops, ())


def test_experts_in_a_branch_leave_no_list_of_rows(check: Check) -> None:
    g = ost.Graph()
    x, ids = g.input("x", (4, 8)), g.input("ids", (4,), "int64")
    w, flag = g.param("w", (3, 8, 8)), g.input("flag", (), "bool")
    g.set_outputs(
        g.cond(
            flag,
            lambda b: b.grouped_matmul(x, w, ids),
            lambda b: b.neg(b.grouped_matmul(x, w, b.flip(ids, 0))),
        )
    )
    rng = np.random.default_rng(5)
    w_ = rng.normal(size=(3, 8, 8)).astype(np.float32)
    feeds = {"x": rng.normal(size=(4, 8)).astype(np.float32), "ids": np.array([0, 1, 2, 1])}
    for taken in (True, False):
        check(g, {**feeds, "flag": np.array(taken)}, params={"w": w_}, rtol=1e-5)
    assert not ost.Session("cpu").compile(g, params={"w": w_}).moe_layers


def test_errors() -> None:
    g = ost.Graph()
    x = g.input("x", (4,))
    with pytest.raises(GraphError, match=r"then_graph gives f32\[4\] and else_graph f32\[2\]"):
        g.cond(g.sum(x) > 0, lambda t: t.exp(x), lambda t: t.getitem(x, slice(2)))
    with pytest.raises(GraphError, match=r"the condition is f32\[4\], expected bool\[\]"):
        g.cond(x, lambda t: t.exp(x), lambda t: x)
    with pytest.raises(GraphError, match="a nested graph has none"):
        g.cond(g.sum(x) > 0, lambda t: t.param("w", (4,)), lambda t: x)
    other = ost.Graph("other")
    with pytest.raises(GraphError, match="belongs to graph"):
        g.cond(g.sum(x) > 0, lambda t: t.exp(other.input("z", (4,))), lambda t: x)

"""Facts: the conditions on sizes that a graph relies on, and checks of values against them."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.facts import Fact, check_facts, least_values
from ostinato.ir.graph_facts import graph_facts
from ostinato.variables import evaluate, maximum, minimum, provably_at_most

N, M = ost.Variable("n", 0, 8), ost.Variable("m", 0, 8)


def facts_of(build, *shape):
    g = ost.Graph("facts")
    result = build(g, g.input("x", shape))
    g.set_outputs(result if isinstance(result, list) else [result])
    return [(str(fact.size), fact.least) for fact in graph_facts(g)]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: g.max(x, axis=0), [("n", 1)]),
        (lambda g, x: g.min(x), [("n", 1)]),
        (lambda g, x: g.max(x, axis=1), []),
        (lambda g, x: g.argmax(x, axis=0, keepdims=True), [("n", 1)]),
        (lambda g, x: g.argmin(x, axis=-2), [("n", 1)]),
        (lambda g, x: g.norm(x, ord=float("inf"), axis=0), [("n", 1)]),
        (lambda g, x: g.norm(x, ord=2, axis=0), []),
        (lambda g, x: g.take(x, [0, 1], axis=0), [("n", 1)]),
        (lambda g, x: g.take(x, np.zeros(0, np.int64), axis=0), []),
        (lambda g, x: g.take_along_axis(x, np.zeros((2, 3), np.int64), axis=0), [("n", 1)]),
        (lambda g, x: g.gather_nd(x, np.zeros((2, 2), np.int64)), [("n", 1)]),
        (lambda g, x: g.topk(x, 3, axis=0)[0], [("n - 3", 0)]),
        (lambda g, x: x[0], [("n - 1", 0)]),
        (lambda g, x: x[2:5], []),
        (lambda g, x: x[1:], []),
        (lambda g, x: x[-3:-1], []),
        (lambda g, x: x[: N - 1], []),
        (lambda g, x: x[::-1], []),
        (lambda g, x: x[:, 1], []),
        (lambda g, x: g.softmax(x, axis=0), []),
        (lambda g, x: g.sum(x, axis=0), []),
        (lambda g, x: g.logsumexp(x, axis=0), []),
        (lambda g, x: [g.max(x, axis=0), g.max(x * 2, axis=0)], [("n", 1)]),
        (lambda g, x: [x, g.full((N - 3,), 1.0)], [("n - 3", 0)]),
    ],
)
def test_what_ops_rely_on(build, expected):
    assert facts_of(build, N, 3) == expected


def test_what_no_result_needs_is_no_fact():
    def build(g, x):
        g.argmax(x, axis=0)
        return g.exp(x)

    assert facts_of(build, N, 3) == []


def test_fixed_sizes_and_bounds_that_suffice_have_none():
    assert facts_of(lambda g, x: g.max(x), 2, 3) == []
    assert facts_of(lambda g, x: g.max(x), ost.Variable("n", 1, 8), 3) == []


def test_a_fact_of_no_elements_is_void():
    g = ost.Graph("void")
    g.set_outputs([g.max(g.input("x", (N, M)), axis=0)])
    (fact,) = facts = graph_facts(g)
    assert fact.node == "max 'max_1'"
    check_facts(facts, {"n": 0, "m": 0})
    check_facts(facts, {"n": 1, "m": 5})
    check_facts(facts, {"n": 0})  # not known yet
    with pytest.raises(ost.VariableError, match=r"max 'max_1': .* axis 0.*n >= 1, got n = 0"):
        check_facts(facts, {"n": 0, "m": 1})


def test_facts_hold_break_or_depend():
    assert Fact(N, 0, "").certain
    assert not Fact(N, 1, "").certain
    assert not Fact(N, 1, "").impossible
    assert Fact(N, 9, "").impossible
    assert Fact(0, 1, "", elements=0).certain
    assert not Fact(0, 1, "", elements=0).impossible


def test_least_values_of_single_variables():
    facts = [Fact(N - 2, 1, ""), Fact(N, 1, ""), Fact(M, 1, "", elements=N), Fact(N - M, 5, "")]
    assert least_values(facts) == {"n": 3}


@pytest.mark.parametrize("name", ["max", "argmin"])
def test_a_fixed_size_is_refused_when_the_graph_is_built(name):
    g = ost.Graph("empty")
    with pytest.raises(ost.GraphError, match=rf"no elements along axis 0, so there is no {name}"):
        getattr(g, name)(g.input("x", (0, 3)), axis=0)


def test_reductions_of_nothing_that_have_a_value():
    """Fixed and symbolic sizes agree."""
    session = ost.Session("cpu", threads=1)
    for rows in (0, N):
        g = ost.Graph("nothing")
        x = g.input("x", (rows, 3))
        g.set_outputs([g.logsumexp(x, axis=0), g.logsumexp(x, axis=0, keepdims=True)])
        for result in session.compile(g).run({"x": np.zeros((0, 3), np.float32)}):
            assert (result == -np.inf).all()


@pytest.mark.parametrize(
    ("low", "high", "proven"),
    [
        (minimum(N, 5), N, True),
        (N, maximum(N, 5), True),
        (minimum(N, M), maximum(M, 3), True),
        (maximum(minimum(N, 2), minimum(N, 5)), N, True),
        (N, minimum(N + 1, N + M), True),
        (N, M, False),
        (maximum(N, M), N, False),
        (N, minimum(N, M), False),
        (2, N, False),
        (N, 8, True),
    ],
)
def test_orders_that_follow_from_minima_and_maxima(low, high, proven):
    assert provably_at_most(low, high) == proven
    holds = all(
        evaluate(low, {"n": n, "m": m}) <= evaluate(high, {"n": n, "m": m})
        for n in range(9)
        for m in range(9)
    )
    assert holds == proven

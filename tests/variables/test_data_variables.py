"""Sizes that depend on data, as expressions: what their bounds prove, and how large they can be."""

from __future__ import annotations

import itertools

import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.ops.parser import parse_graph
from ostinato.variables import (
    DataVariable,
    Variable,
    bounds,
    capacity,
    data_symbols,
    evaluate,
    floor_div,
    maximum,
    minimum,
    provably_at_most,
    remainder,
    symbols,
)

N = Variable("n", 0, 6)
K = DataVariable("k", N)
M = DataVariable("m", K + 2)

DIMS = [
    K,
    2 * K + M,
    N - K,
    K * M,
    minimum(K, 3),
    maximum(K - 2, 0),
    floor_div(K + 5, 2),
    floor_div(N * 6, maximum(K, 1)),
    K * floor_div(N * 6, maximum(K, 1)),
    remainder(K + 1, 3),
    minimum(N - K, 4) * 3,
]


@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_capacity_is_an_upper_bound(dim):
    most = capacity(dim)
    assert {s.name for s in symbols(most)} <= {"n"}
    for n in range(7):
        for k, m in itertools.product(range(n + 1), range(n + 3)):
            if m <= k + 2:
                value = evaluate(dim, {"n": n, "k": k, "m": m})
                assert value <= evaluate(most, {"n": n})
                assert bounds(dim)[0] <= value <= bounds(dim)[1]


def test_bounds_prove():
    assert provably_at_most(K, N)
    assert not provably_at_most(N, K)
    assert minimum(K, N + 1) == K
    assert capacity(N * 2) == N * 2
    assert data_symbols(K + N) == symbols(K)
    # (a // b) * b is at most a, also where b may be 0
    assert bounds(K * M * floor_div(N * 4, maximum(K * M, 1)))[1] == 24


def test_text_form_and_names():
    g = Graph("text")
    x = g.input("x", (N, 3))
    g.set_outputs([g.masked_select(x, x > 0), *g.nonzero(x)])
    text = str(g)
    assert "variable size <= 3*n" in text
    constants = [node.attrs["array"] for node in g.nodes if "array" in node.attrs]
    assert str(parse_graph(text, constants)) == text
    twice = text.replace("size=size_2", "size=size")
    with pytest.raises(GraphError, match="'size' has a value already"):
        parse_graph(twice, constants)

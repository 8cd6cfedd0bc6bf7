"""Bytes that kernels move: what profiles turn into GB/s."""

from __future__ import annotations

import pytest

import ostinato as ost
from ostinato.plan.prepared import KernelCall


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=1)


def calls(session: ost.Session, graph: ost.Graph) -> tuple[KernelCall, ...]:
    return session.compile(graph).plan.prepared_kernels


def test_elementwise(session: ost.Session) -> None:
    graph = ost.Graph("bias")
    x, b = graph.input("x", (100, 32)), graph.input("b", (32,))
    graph.set_outputs([graph.exp(x + b)])
    (call,) = calls(session, graph)
    assert call.bytes == 4 * (3200 + 32 + 3200)


def test_an_operand_read_twice_counts_once(session: ost.Session) -> None:
    graph = ost.Graph("softmax")
    x = graph.input("x", (100, 32))
    graph.set_outputs([graph.softmax(x)])
    (call,) = calls(session, graph)
    assert call.bytes == 4 * 2 * 3200


def test_a_gather_moves_what_it_takes(session: ost.Session) -> None:
    graph = ost.Graph("embedding")
    table, ids = graph.input("table", (50_000, 64)), graph.input("ids", (8,), "int64")
    graph.set_outputs([graph.take(table, ids, axis=0)])
    (call,) = calls(session, graph)
    assert call.bytes == 4 * 2 * 8 * 64 + 8 * 8


def test_a_slice_moves_what_it_takes(session: ost.Session) -> None:
    graph = ost.Graph("slice")
    x = graph.input("x", (1000, 64))
    graph.set_outputs([graph.exp(x[10:20])])
    (call,) = calls(session, graph)
    assert call.bytes == 4 * 2 * 10 * 64


def test_a_row_written_in_place(session: ost.Session) -> None:
    graph = ost.Graph("cache")
    cache = graph.state("cache", (1024, 64))
    row, at = graph.input("row", (1, 64)), graph.input("at", (), "int64")
    after = graph.dynamic_update_slice(cache, row, (at, 0))
    graph.assign(cache, after)
    graph.set_outputs([row * 2.0])
    moved = [call for call in calls(session, graph) if "update" in call.name]
    assert len(moved) == 1
    assert moved[0].bytes <= 4 * 2 * 64 + 16


def test_symbolic_sizes(session: ost.Session) -> None:
    n = ost.Variable("n", 1, 512)
    graph = ost.Graph("sized")
    x = graph.input("x", (n, 64))
    graph.set_outputs([graph.exp(x)])
    (call,) = calls(session, graph)
    assert call.work({"n": 3})[1] == 4 * 2 * 3 * 64
    assert call.work({"n": 512})[1] == 4 * 2 * 512 * 64


def test_products_go_over_their_operands(session: ost.Session) -> None:
    graph = ost.Graph("product")
    a, b = graph.input("a", (32, 48)), graph.input("b", (48, 64))
    graph.set_outputs([graph.matmul(a, b)])
    product = calls(session, graph)[-1]
    least = 4 * (32 * 48 + 48 * 64 + 32 * 64)
    assert least <= product.work({})[1] <= 1.2 * least

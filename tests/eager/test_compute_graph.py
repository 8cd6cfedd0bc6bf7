"""Recorded graphs: barriers, what is fused and what is not, other orders, replays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.eager.materialize import PlacementCache, materialize
from ostinato.plan.buffer import Buffer, Storage
from ostinato.plan.hazards import conflicts
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("single_ops")

Array = np.ndarray[Any, Any]
Ops = Callable[[ost.GraphSession], object]


@pytest.fixture(scope="module")
def ex(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=2).context)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def part(whole: Buffer, start: int, count: int) -> Buffer:
    """``count`` float32 elements of a buffer."""
    return whole.view(4 * start, 4 * count)


def recorded(ex: ost.GraphExecutor, ops: Ops) -> ost.ComputeGraph:
    """The graph of a session that encodes ``ops`` and has run once; no result is held."""
    with ex.begin_recorded() as s:
        ops(s)
    return s.graph


# -- barriers --------------------------------------------------------------------------------------


@pytest.fixture
def memory(ex: ost.GraphExecutor) -> Buffer:
    return ex.buffer(numbers(64))


@pytest.mark.parametrize(
    ("first", "second", "barriers"),
    [
        (((0, 8), (8, 8)), ((8, 8), (16, 8)), 1),  # reads what was written
        (((0, 8), (8, 8)), ((16, 8), (0, 8)), 1),  # writes what was read
        (((0, 8), (8, 8)), ((16, 8), (8, 8)), 1),  # writes what was written
        (((0, 8), (8, 8)), ((0, 8), (16, 8)), 0),  # reads what was read
        (((0, 8), (8, 8)), ((32, 8), (48, 8)), 0),  # disjoint
        (((0, 8), (8, 8)), ((16, 8), (24, 8)), 0),  # adjacent
        (((0, 8), (8, 8)), ((15, 8), (24, 8)), 1),  # one element
    ],
)
def test_one_barrier_where_bytes_conflict(
    ex: ost.GraphExecutor, memory: Buffer, first: Any, second: Any, barriers: int
) -> None:
    for begin in (ex.begin, ex.begin_recorded):
        with begin() as s:
            for source, target in (first, second):
                s.exp(part(memory, *source), out=part(memory, *target))
            assert s.stats.barriers == barriers
        assert s.stats.barriers == barriers
        assert s.stats.dispatches == 2


def test_a_barrier_ends_all_conflicts_before_it(ex: ost.GraphExecutor, memory: Buffer) -> None:
    parts = [part(memory, 8 * i, 8) for i in range(8)]

    def ops(s: ost.GraphSession) -> None:
        s.exp(parts[0], out=parts[1])
        s.exp(parts[0], out=parts[2])
        s.neg(parts[1], out=parts[3])  # waits, for both
        s.neg(parts[2], out=parts[4])  # so this need not
        s.neg(parts[3], out=parts[5])

    graph = recorded(ex, ops)
    assert graph.groups == (0, 0, 1, 1, 2)
    assert graph.barriers == 2
    assert str(graph).count("barrier") == 3  # the first line counts them


def test_views_are_no_dispatches_but_their_bytes_count(
    ex: ost.GraphExecutor, memory: Buffer
) -> None:
    with ex.begin() as s:
        square = s.reshape(memory, (8, 8))
        row = s.exp(square, out=s.reshape(memory, (8, 8)))
        flat = s.flatten(row)
        s.neg(flat, out=ex.empty((64,)))
    assert square.storage is memory.storage
    assert (s.stats.dispatches, s.stats.barriers) == (2, 1)


def test_results_share_memory_but_not_within_a_group(ex: ost.GraphExecutor) -> None:
    """Nodes of one group have no bytes in common in the arena, their kernels' temps included."""
    x, w = ex.buffer(numbers(16, 16)), ex.buffer(numbers(16, 16, seed=1))

    def ops(s: ost.GraphSession) -> None:
        rows = [s.exp(x) for _ in range(3)]
        for _ in range(4):
            rows = [s.matmul(row, w) for row in rows]
        s.concat(rows, out=ex.empty((48, 16)))

    graph = recorded(ex, ops)
    sizes: list[int] = []

    def storage(nbytes: int) -> Storage:
        sizes.append(nbytes)
        return ex.context.storage(nbytes)

    compiled_ops = [
        ex.context.compiled_op(node.signature) for node in graph.nodes if node.signature
    ]
    assert len(compiled_ops) == len(graph)
    prepared, held = materialize(graph, compiled_ops, storage, PlacementCache(), {})
    assert not held
    starts = [0]
    for compiled_op in compiled_ops:
        starts.append(starts[-1] + len(compiled_op.calls))
    parts = [prepared[a:b] for a, b in itertools.pairwise(starts)]
    for i, j in itertools.combinations(range(len(graph)), 2):
        if graph.groups[i] == graph.groups[j]:
            assert not any(conflicts(a, b) for a in parts[i] for b in parts[j])
    results = sum(node.writes[0].nbytes for node in graph.nodes[:-1])
    assert sizes[0] < results


# -- fusion ----------------------------------------------------------------------------------------


def check_same(ex: ost.GraphExecutor, graph: ost.ComputeGraph, *buffers: Buffer) -> None:
    """Fused, reordered, both: every byte of the buffers as after running in sequence."""
    before = [b.copyout() for b in buffers]

    def after(one: ost.ComputeGraph) -> list[bytes]:
        for buffer, array in zip(buffers, before, strict=True):
            buffer.copyin(array)
        one.replay()
        return [b.copyout().tobytes() for b in buffers]

    expected = after(graph)
    for other in (graph.fuse(), graph.reorder(), graph.fuse().reorder(), graph.reorder().fuse()):
        assert after(other) == expected


def names(graph: ost.ComputeGraph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_a_chain_becomes_one_node(ex: ost.GraphExecutor) -> None:
    x, y, out = ex.buffer(numbers(9)), ex.buffer(numbers(9, seed=1)), ex.empty((9,))

    def ops(s: ost.GraphSession) -> None:
        s.multiply(s.tanh(s.add(s.exp(x), y)), 0.5, out=out)

    graph = recorded(ex, ops)
    fused = graph.fuse()
    assert names(graph) == ["exp", "add", "tanh", "multiply"]
    assert names(fused) == ["exp+add+tanh+multiply"]
    assert (fused.fused, fused.barriers, graph.fused) == (3, 0, 0)
    check_same(ex, graph, x, y, out)
    with ex.begin() as s:
        ops(s)
        stats = s.finish(fuse=True, reorder=True)
    assert (stats.dispatches, stats.fused) == (1, 3)


def test_both_operands_of_a_node_are_taken_in(ex: ost.GraphExecutor) -> None:
    x, y, out = ex.buffer(numbers(3, 5)), ex.buffer(numbers(3, 5, seed=1)), ex.empty((3, 5))
    graph = recorded(ex, lambda s: s.where(s.less(x, y), s.exp(x), s.neg(y), out=out))
    assert len(graph.fuse()) == 1
    check_same(ex, graph, x, y, out)


def test_dtypes_are_rounded_between_fused_ops(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(1000).astype(np.float16))
    out = ex.empty((1000,), "float16")
    graph = recorded(ex, lambda s: s.subtract(s.exp(s.multiply(x, 3.0)), 0.1, out=out))
    assert len(graph.fuse()) == 1
    check_same(ex, graph, x, out)


def read_later(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    h = s.exp(x)
    s.neg(h, out=out)
    s.sin(h, out=other)


def is_an_output(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    s.neg(s.exp(x, out=other), out=out)


def squared(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    h = s.exp(x)
    s.multiply(h, h, out=out)


def another_shape(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    s.neg(s.reshape(s.exp(x), (2, 4)), out=s.reshape(out, (2, 4)))


def part_of_it(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    s.neg(s.exp(x).view(0, 16), out=out.view(0, 16))


def broadcast(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    row = s.exp(s.sum(x, axis=0, keepdims=True))
    s.add(x, row, out=out)


def operand_changes(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    h = s.exp(x)
    s.sin(other, out=x)
    s.neg(h, out=out)


def reader_overwrites(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    """The joint node would write elements of ``x`` before it has read them."""
    s.neg(s.exp(x.view(0, 28)), out=x.view(4, 28))


def written_again(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    h = s.exp(x)
    s.neg(other, out=h)
    s.sin(h, out=out)


def no_map(s: ost.GraphSession, x: Buffer, out: Buffer, other: Buffer) -> None:
    s.neg(s.cumsum(s.exp(x)), out=out)


@pytest.mark.parametrize(
    "ops",
    [
        read_later,
        is_an_output,
        squared,
        another_shape,
        part_of_it,
        broadcast,
        operand_changes,
        reader_overwrites,
        written_again,
        no_map,
    ],
)
def test_what_is_not_fused(ex: ost.GraphExecutor, ops: Callable[..., None]) -> None:
    x, out, other = (ex.buffer(numbers(8, seed=i)) for i in range(3))
    graph = recorded(ex, lambda s: ops(s, x, out, other))
    assert names(graph.fuse()) == names(graph)
    check_same(ex, graph, x, out, other)


def test_only_the_pair_that_may_is_fused(ex: ost.GraphExecutor) -> None:
    x, out, other = (ex.buffer(numbers(8, seed=i)) for i in range(3))

    def ops(s: ost.GraphSession) -> None:
        h = s.exp(s.neg(x))
        s.sin(h, out=out)
        s.cos(h, out=other)

    graph = recorded(ex, ops)
    assert names(graph.fuse()) == ["neg+exp", "sin", "cos"]
    check_same(ex, graph, x, out, other)


def test_in_place_is_fused_where_elements_stay_where_they_are(ex: ost.GraphExecutor) -> None:
    x, y = ex.buffer(numbers(8)), ex.buffer(numbers(8, seed=1))
    graph = recorded(ex, lambda s: s.add(s.exp(x), y, out=x))
    assert names(graph.fuse()) == ["exp+add"]
    check_same(ex, graph, x, y)


def test_an_intermediate_that_is_held_is_computed_as_well(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(8))
    s = ex.begin_recorded()
    h = s.exp(x)
    y = s.neg(h)
    stats = s.finish(fuse=True)
    assert (stats.dispatches, stats.fused) == (1, 1)
    np.testing.assert_array_equal(y.copyout(), -h.copyout())
    np.testing.assert_allclose(h.copyout(), np.exp(numbers(8)), rtol=1e-6)


def test_a_view_holds_an_intermediate(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(8))
    s = ex.begin_recorded()
    h = s.exp(x)
    y, tail = s.neg(h), h.view(16, 16)
    del h
    s.finish(fuse=True)
    np.testing.assert_array_equal(tail.copyout(), -y.copyout()[4:])


def test_long_chains_are_fused_in_pieces(ex: ost.GraphExecutor) -> None:
    x, out = ex.buffer(numbers(8)), ex.empty((8,))

    def ops(s: ost.GraphSession) -> None:
        h = x
        for _ in range(150):
            h = s.sin(h)
        s.neg(h, out=out)

    graph = recorded(ex, ops)
    assert 1 < len(graph.fuse()) < 6
    check_same(ex, graph, x, out)


# -- order -----------------------------------------------------------------------------------------


def test_independent_chains_are_woven_into_one(ex: ost.GraphExecutor) -> None:
    chains = [ex.buffer(numbers(8, seed=i)) for i in range(4)]

    def ops(s: ost.GraphSession) -> None:
        for x in chains:
            for op in (s.exp, s.neg, s.sin):
                op(x, out=x)

    graph = recorded(ex, ops)
    woven = graph.reorder()
    assert (graph.barriers, woven.barriers) == (8, 2)  # the end of one meets no start of another
    assert woven.reordered > 0
    assert names(woven) == ["exp"] * 4 + ["neg"] * 4 + ["sin"] * 4
    assert woven.reorder().reordered == woven.reordered
    check_same(ex, graph, *chains)


def test_conflicting_nodes_keep_their_order(ex: ost.GraphExecutor) -> None:
    x, y = ex.buffer(numbers(8)), ex.buffer(numbers(8, seed=1))

    def ops(s: ost.GraphSession) -> None:
        s.add(x, 1.0, out=y)
        s.multiply(x, 3.0, out=x)
        s.add(x, y, out=y)

    graph = recorded(ex, ops)
    assert names(graph.reorder()) == ["add", "multiply", "add"]
    assert graph.reorder().reordered == 0


# -- replays ---------------------------------------------------------------------------------------


def test_replays_read_what_buffers_hold_then(ex: ost.GraphExecutor) -> None:
    x, out = ex.buffer(numbers(8)), ex.empty((8,))
    graph = recorded(ex, lambda s: s.multiply(s.neg(x), 2.0, out=out))
    for seed in range(3):
        x.copyin(numbers(8, seed=seed))
        graph.replay()
        np.testing.assert_array_equal(out.copyout(), -2 * numbers(8, seed=seed))


def test_numbers_and_arrays_were_copied_at_the_call(ex: ost.GraphExecutor) -> None:
    x, out, array = ex.buffer(numbers(8)), ex.empty((8,)), numbers(8, seed=1)
    graph = recorded(ex, lambda s: s.add(x, array, out=out))
    expected = numbers(8) + array
    array[:] = 7
    graph.replay()
    np.testing.assert_array_equal(out.copyout(), expected)


def test_nodes_name_the_buffers_that_they_were_given(ex: ost.GraphExecutor) -> None:
    x, y, out = ex.buffer(numbers(8)), ex.buffer(numbers(8)), ex.empty((8,))
    (node,) = recorded(ex, lambda s: s.add(x, y, out=out)).nodes
    assert node.reads == (x, y)
    assert node.writes == (out,)
    assert repr(node) == "add(f32[8], f32[8]) -> f32[8]"


def test_replays_of_a_graph_whose_memory_is_gone(ex: ost.GraphExecutor) -> None:
    x, out = ex.buffer(numbers(8)), ex.empty((8,))
    graph = recorded(ex, lambda s: s.neg(x, out=out))
    x.release()
    for one in (graph, graph.fuse()):
        with pytest.raises(ost.PlanError, match="released"):
            one.replay()


def test_an_empty_graph(ex: ost.GraphExecutor) -> None:
    graph = recorded(ex, lambda s: None)
    graph.replay()
    assert len(graph.fuse().reorder()) == graph.barriers == 0

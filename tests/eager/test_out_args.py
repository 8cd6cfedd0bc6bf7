"""``out=``: every way in which the buffer to be written may meet the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.plan.buffer import Buffer
from tests.devices.registered import open_session

pytestmark = pytest.mark.needs("single_ops")

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def ex(device: str) -> ost.GraphExecutor:
    return ost.GraphExecutor(open_session(device, threads=2).context)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def run(ex: ost.GraphExecutor, call: Callable[[ost.GraphSession], object]) -> ost.SessionStats:
    with ex.begin() as s:
        call(s)
    return s.stats


def test_a_result_is_written_where_it_is_wanted(ex: ost.GraphExecutor) -> None:
    x, out = ex.buffer(numbers(3, 4)), ex.empty((3, 4))
    with ex.begin_recorded() as s:
        assert s.softmax(x, out=out) is out
    (node,) = s.graph.nodes
    assert node.writes == (out,)
    np.testing.assert_allclose(out.copyout().sum(-1), 1, rtol=1e-6)


def test_several_results(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(2, 9))
    values, found = ex.empty((2, 3)), ex.empty((2, 3), "int64")
    with ex.begin_recorded() as s:
        assert s.topk(x, 3, out=(values, found)) == (values, found)
    (node,) = s.graph.nodes
    assert node.writes == (values, found)
    np.testing.assert_array_equal(values.copyout(), -np.sort(-numbers(2, 9))[:, :3])
    np.testing.assert_array_equal(found.copyout(), np.argsort(-numbers(2, 9))[:, :3])


def test_several_results_over_their_operand(ex: ost.GraphExecutor) -> None:
    memory, found = ex.buffer(numbers(18)), ex.empty((2, 3), "int64")
    run(
        ex,
        lambda s: s.topk(
            s.reshape(memory, (2, 9)), 3, out=(s.reshape(memory.view(16, 24), (2, 3)), found)
        ),
    )
    expected = numbers(18)
    expected[4:10] = -np.sort(-expected.reshape(2, 9))[:, :3].ravel()
    np.testing.assert_array_equal(memory.copyout(), expected)


def test_maps_in_place(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(1000))
    with ex.begin_recorded() as s:
        s.add(s.exp(x, out=x), x, out=x)
    assert all(node.writes == (x,) and not node.copies for node in s.graph.nodes)
    np.testing.assert_allclose(x.copyout(), 2 * np.exp(numbers(1000)), rtol=1e-6)


@pytest.mark.parametrize(("start", "target"), [(0, 1), (1, 0), (0, 7), (5, 2), (0, 16)])
def test_maps_onto_neighbours(ex: ost.GraphExecutor, start: int, target: int) -> None:
    """Each element is computed from what was there before, as if there were two buffers."""
    memory = ex.buffer(numbers(1000))
    source, out = memory.view(4 * start, 4 * 900), memory.view(4 * target, 4 * 900)
    run(ex, lambda s: s.neg(source, out=out))
    expected = numbers(1000)
    expected[target : target + 900] = -numbers(1000)[start : start + 900]
    np.testing.assert_array_equal(memory.copyout(), expected)


def test_maps_of_other_sizes_in_place(ex: ost.GraphExecutor) -> None:
    """Half as many bytes an element, and elements that are read for several results."""
    memory = ex.buffer(numbers(64))
    narrow = s_view(ex, memory, "float16")
    run(ex, lambda s: s.cast(memory, "float16", out=narrow))
    np.testing.assert_array_equal(narrow.copyout(), numbers(64).astype(np.float16))
    square = ex.buffer(numbers(8, 8))
    row = square.view(0, 32)
    run(ex, lambda s: s.add(square, row, out=square))
    np.testing.assert_array_equal(square.copyout(), numbers(8, 8) + numbers(8, 8)[0])


def s_view(ex: ost.GraphExecutor, memory: Buffer, dtype: str) -> Buffer:
    """The first half of a buffer's bytes as elements of another dtype."""
    from ostinato.dtypes import DType
    from ostinato.ir.types import TensorType

    half = memory.view(0, memory.nbytes // 2)
    parsed = DType.parse(dtype)
    return half.reshaped(TensorType(parsed, (half.nbytes // parsed.itemsize,)))


@pytest.mark.parametrize(
    "call",
    [
        lambda s, x, out: s.softmax(x, out=out),
        lambda s, x, out: s.cumsum(x, 0, out=out),
        lambda s, x, out: s.flip(x, out=out),
        lambda s, x, out: s.permute_dims(x, (1, 0), out=out),
        lambda s, x, out: s.matmul(x, x, out=out),
        lambda s, x, out: s.layer_norm(x, numbers(24), out=out),
        lambda s, x, out: s.roll(x, 3, 0, out=out),
        lambda s, x, out: s.einsum("ij,kj->ik", x, x, out=out),
    ],
)
def test_what_is_no_map_over_its_own_operand(
    ex: ost.GraphExecutor, call: Callable[..., Any]
) -> None:
    x = numbers(24, 24)
    apart = ex.empty((24, 24))
    whole = ex.buffer(x)
    memory = ex.buffer(np.concatenate([x, x]).ravel())
    first, shifted = memory.view(0, 24 * 24 * 4), memory.view(24 * 4 * 7, 24 * 24 * 4)
    with ex.begin() as s:
        call(s, ex.buffer(x), apart)
        call(s, whole, whole)
        call(s, s.reshape(first, (24, 24)), s.reshape(shifted, (24, 24)))
    assert whole.copyout().tobytes() == apart.copyout().tobytes()
    assert shifted.copyout().tobytes() == apart.copyout().tobytes()
    np.testing.assert_array_equal(first.copyout()[: 24 * 7], x.ravel()[: 24 * 7])


# -- updates of part of the target -----------------------------------------------------------------


def test_an_update_in_place_copies_nothing(ex: ost.GraphExecutor) -> None:
    cache, row = ex.buffer(numbers(4, 8)), ex.buffer(numbers(1, 8, seed=1))
    with ex.begin_recorded() as s:
        assert s.dynamic_update_slice(cache, row, (2, 0), out=cache) is cache
    (node,) = s.graph.nodes
    assert node.signature is not None
    assert node.signature.in_place
    assert not node.copies
    expected = numbers(4, 8)
    expected[2] = numbers(1, 8, seed=1)
    np.testing.assert_array_equal(cache.copyout(), expected)
    cache.copyin(numbers(4, 8))
    s.graph.replay()
    np.testing.assert_array_equal(cache.copyout(), expected)


@pytest.mark.parametrize("mode", ["set", "add", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_scatters_in_place(ex: ost.GraphExecutor, mode: str, dtype: str) -> None:
    table = (10 * numbers(6, 5)).astype(dtype)
    ids = np.random.default_rng(0).integers(0, 6, (9, 5))
    updates = (10 * numbers(9, 5, seed=1)).astype(dtype)
    target = ex.buffer(table)
    with ex.begin() as s:
        apart = s.scatter(table, ids, updates, 0, mode)
        s.scatter(target, ids, updates, 0, mode, out=target)
        points = s.scatter_nd(table, ids[:4, :2] % 5, updates[:4, 0], mode)
    assert target.copyout().tobytes() == apart.copyout().tobytes()
    assert points.copyout().shape == (6, 5)


def test_an_update_that_reads_its_target(ex: ost.GraphExecutor) -> None:
    """The update is part of what it is written over: it is read as it was."""
    cache = ex.buffer(numbers(16))
    part = cache.view(0, 32)
    run(ex, lambda s: s.dynamic_update_slice(cache, part, (4,), out=cache))
    expected = numbers(16)
    expected[4:12] = numbers(16)[:8]
    np.testing.assert_array_equal(cache.copyout(), expected)


def test_an_update_written_elsewhere(ex: ost.GraphExecutor) -> None:
    cache, out = ex.buffer(numbers(4, 2)), ex.empty((4, 2))
    run(ex, lambda s: s.dynamic_update_slice(cache, numbers(1, 2, seed=1), (0, 0), out=out))
    np.testing.assert_array_equal(cache.copyout(), numbers(4, 2))
    np.testing.assert_array_equal(out.copyout()[1:], numbers(4, 2)[1:])
    np.testing.assert_array_equal(out.copyout()[:1], numbers(1, 2, seed=1))


# -- results that nothing computes -----------------------------------------------------------------


def test_a_view_is_copied_into_out(ex: ost.GraphExecutor) -> None:
    x, out = ex.buffer(numbers(12)), ex.empty((3, 4))
    with ex.begin_recorded() as s:
        assert s.reshape(x, (3, 4), out=out) is out
        s.cast(x, "float32", out=x)  # is there already
    assert [node.name for node in s.graph.nodes] == ["copy"]
    np.testing.assert_array_equal(out.copyout(), numbers(3, 4))


def test_a_view_is_copied_onto_its_neighbour(ex: ost.GraphExecutor) -> None:
    memory = ex.buffer(numbers(16))
    run(ex, lambda s: s.cast(memory.view(0, 48), "float32", out=memory.view(16, 48)))
    np.testing.assert_array_equal(memory.copyout()[4:], numbers(16)[:12])


def test_a_result_of_the_session_is_written_again(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(numbers(8))
    with ex.begin() as s:
        h = s.exp(x)
        before = s.neg(h)
        assert s.add(h, 1.0, out=h) is h
        after = s.neg(h)
        s.reshape(h, (2, 4), out=s.reshape(after, (2, 4)))
    np.testing.assert_allclose(before.copyout(), -np.exp(numbers(8)), rtol=1e-6)
    np.testing.assert_array_equal(h.copyout(), 1 - before.copyout())
    np.testing.assert_array_equal(after.copyout(), h.copyout())


def test_methods_of_several_ops_write_the_last_one(ex: ost.GraphExecutor) -> None:
    x = ex.buffer(np.arange(6, dtype=np.int32))
    out = ex.empty((), "float32")
    stats = run(ex, lambda s: s.mean(x, out=out))
    assert stats.dispatches == 2
    assert out.copyout() == 2.5


# -- what does not fit -----------------------------------------------------------------------------


def test_buffers_that_do_not_fit(ex: ost.GraphExecutor, device: str) -> None:
    x = ex.buffer(numbers(4))
    session = open_session(device)
    graph = ost.Graph()
    graph.set_outputs({"y": graph.input("x", (4,)) * graph.param("w", (4,), value=numbers(4))})
    plan = session.prepare(graph)
    weight = plan.buffer(graph.params["w"])
    assert weight is not None
    pair = ex.empty((8,)).view(0, 8)
    with ex.begin() as s:
        for out, message in (
            (ex.empty((5,)), r"f32\[4\].*f32\[5\]"),
            (ex.empty((4,), "float64"), r"f64"),
            (numbers(4), "Buffer"),
            ((ex.empty((4,)),), "Buffer"),
        ):
            with pytest.raises(ost.GraphError, match=message):
                s.exp(x, out=out)
        with pytest.raises(ost.GraphError, match="i64"):
            s.topk(x, 2, out=ex.empty((2,)))
        with pytest.raises(ost.GraphError, match="overlap"):
            s.lstm(
                numbers(1, 1, 2), numbers(1, 8, 2), numbers(1, 8, 2),
                out=tuple(s.reshape(pair, n) for n in ((1, 1, 1, 2), (1, 1, 2), (1, 1, 2))),
            )  # fmt: skip
        with pytest.raises(ost.InputError, match="cannot be written"):
            s.exp(x, out=weight)
        assert s.stats.dispatches == 0


@pytest.mark.parametrize(
    ("start", "to", "nbytes"), [(0, 0, 23), (5, 7, 13), (8, 40, 3), (3, 0, 64)]
)
def test_bytes_are_copied_from_anywhere_to_anywhere(
    ex: ost.GraphExecutor, start: int, to: int, nbytes: int
) -> None:
    """A copy writes no byte beside its own."""
    given = np.arange(1, 70, dtype=np.uint8)
    source, target = ex.buffer(given), ex.buffer(np.zeros(71, np.uint8))
    run(ex, lambda s: s.reshape(source.view(start, nbytes), (nbytes,), out=target.view(to, nbytes)))
    expected = np.zeros(71, np.uint8)
    expected[to : to + nbytes] = given[start : start + nbytes]
    np.testing.assert_array_equal(target.copyout(), expected)

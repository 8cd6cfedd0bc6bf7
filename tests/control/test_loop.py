"""``while_loop`` and ``scan``: a graph is run again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.errors import GraphError

from .conftest import Check

X = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_fixed_trip_count(check: Check, trips: int) -> None:
    g = ost.Graph()
    x = g.input("x", (6, 3))
    y, z = g.while_loop(
        lambda b, i, y, z: (b.multiply(b.add(y, b.cast(i, "float32")), 0.5), y),
        [x, g.constant(np.ones((6, 3), np.float32))],
        trips=trips,
    )
    g.set_outputs([y, z])
    check(g, {"x": X})


def test_long_loop_swaps_its_values(check: Check) -> None:
    g = ost.Graph()
    x = g.input("x", (6, 3))
    y, z, i = g.while_loop(
        lambda b, i, y, z, n: (z, b.add(y, 1.0), b.add(n, i)), [x, x, 0], trips=101
    )
    g.set_outputs([y, z, i])
    check(g, {"x": X})


def test_trip_count_of_the_data(check: Check) -> None:
    g = ost.Graph()
    x, count = g.input("x", (3,)), g.input("count", (), "int64")
    (y,) = g.while_loop(lambda b, i, y: b.add(y, x), [x], trips=count)
    g.set_outputs([y])
    check(g, *({"x": X[0], "count": np.int64(n).reshape(())} for n in (0, 1, 50, -3)))


def test_condition_of_the_data(check: Check) -> None:
    g = ost.Graph()
    x, begin = g.input("x", (3,)), g.input("begin", (), "bool")
    (y, n) = g.while_loop(
        lambda b, i, y, n: (b.less(b.sum(y), 100.0), b.multiply(y, 2.0), b.add(n, 1)),
        [x, 0],
        condition=begin,
    )
    g.set_outputs([y, n])
    small = np.full(3, 0.1, np.float32)
    check(
        g,
        {"x": small, "begin": np.array(True)},
        {"x": small, "begin": np.array(False)},
        {"x": small * 1000, "begin": np.array(True)},
    )


def test_condition_and_trip_count(check: Check) -> None:
    g = ost.Graph()
    x, count = g.input("x", (3,)), g.input("count", (), "int64")
    (y,) = g.while_loop(
        lambda b, i, y: (b.less(b.sum(y), 100.0), b.multiply(y, 2.0)),
        [x],
        condition=True,
        trips=count,
    )
    g.set_outputs([y])
    check(g, *({"x": np.full(3, 0.1, np.float32), "count": np.array(n)} for n in (0, 3, 40)))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("result_reverse", [False, True])
def test_scan(check: Check, reverse: bool, result_reverse: bool) -> None:
    g = ost.Graph()
    x, h = g.input("x", (6, 3)), g.input("h", (3,))
    last, before, after = g.scan(
        lambda b, h, x: (b.tanh(b.add(h, x)), h, b.multiply(h, x)),
        [h],
        [x],
        reverse=[reverse],
        result_reverse=[result_reverse, not result_reverse],
    )
    g.set_outputs([last, before, after])
    check(g, {"x": X, "h": X[0]})


def test_scan_along_other_axes(check: Check) -> None:
    g = ost.Graph()
    x, y = g.input("x", (3, 6)), g.input("y", (2, 3, 6, 1))
    (z, w) = g.scan(
        lambda b, x, y: (b.add(x, b.reshape(y, (2, 3))), b.transpose(y, (2, 0, 1))),
        [],
        [x, y],
        axes=[1, 2],
        result_axes=[-1, 1],
    )
    assert z.shape == (2, 3, 6)
    assert w.shape == (1, 6, 2, 3)
    g.set_outputs([z, w])
    check(g, {"x": X.T.copy(), "y": np.arange(36, dtype=np.float32).reshape(2, 3, 6, 1)})


def test_scan_of_a_symbolic_length(check: Check) -> None:
    n = ost.Variable("n", 0, 40)
    g = ost.Graph()
    x, s, w = g.input("x", (n, 2, 5)), g.state("s", (2, 5)), g.param("w", (5, 5))
    last, y = g.scan(
        lambda b, h, x: 2 * (b.tanh(b.add(b.matmul(h, w), x)),), [s], [x], reverse=[True]
    )
    g.assign(s, last)
    g.set_outputs([y, last])
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(k, 2, 5)).astype(np.float32) for k in (7, 0, 1, 40, 3)]
    w_ = rng.normal(size=(5, 5)).astype(np.float32)
    check(g, *({"x": a} for a in arrays), params={"w": w_}, rtol=2e-5)


def test_scan_with_ops_that_need_their_operands_in_order(check: Check) -> None:
    g = ost.Graph()
    x = g.input("x", (5, 2, 8))
    k = g.input("k", (4, 2, 3, 3))
    images = g.input("images", (5, 1, 2, 9, 9))

    def body(b, x, image):
        values, indices = b.topk(x, 3)
        return values, indices, b.cumsum(x, axis=1), b.softmax(x), b.conv(image, k)

    g.set_outputs(g.scan(body, [], [x, images]))
    rng = np.random.default_rng(3)
    shapes = {"x": (5, 2, 8), "k": (4, 2, 3, 3), "images": (5, 1, 2, 9, 9)}
    check(g, {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}, rtol=2e-5)


def test_nested_loops_and_branches(check: Check) -> None:
    g = ost.Graph()
    x, rows = g.input("x", (6, 3)), g.input("rows", (), "int64")

    def outer(b, i, total):
        def inner(c, j, part):
            (new,) = c.cond(
                c.equal(c.remainder(c.add(i, j), 2), 0),
                lambda t: t.add(part, t.multiply(total, 0.5)),
                lambda t: t.subtract(part, 1.0),
            )
            return new

        row = b.take(x, i, axis=0)
        (result,) = b.while_loop(inner, [row], trips=b.add(i, 1))
        return b.add(total, result)

    (total,) = g.while_loop(outer, [g.zeros((3,))], trips=rows)
    g.set_outputs([total])
    check(g, *({"x": X, "rows": np.array(n)} for n in (0, 1, 6)))


def test_a_state_updated_in_place_within_a_loop(check: Check) -> None:
    g = ost.Graph()
    x, cache = g.input("x", (4, 3)), g.state("cache", (8, 3))
    first = g.input("first", (), "int64")
    (new,) = g.while_loop(
        lambda b, i, c: b.dynamic_update_slice(
            c, b.reshape(b.take(x, i, axis=0), (1, 3)), [b.add(i, first), 0]
        ),
        [cache],
        trips=4,
    )
    g.assign(cache, new)
    g.set_outputs([g.sum(new, axis=0)])
    check(g, {"x": X[:4], "first": np.array(0)}, {"x": X[:4], "first": np.array(4)})


def test_carried_values_are_overwritten_only_where_that_cannot_be_seen(check: Check) -> None:
    g = ost.Graph()
    x, table = g.input("x", (8, 8)), g.input("table", (8, 8))

    def body(b, i, a, c, d, e, f, h):
        both = b.add(a, c)
        return (
            b.add(b.multiply(a, 0.5), table),  # in place
            b.subtract(both, b.sum(c, axis=0)),  # a statistic of the old value comes first
            b.add(d, b.transpose(d)),  # read at other elements
            b.add(b.matmul(e, table), e),  # read by a matmul before
            b.multiply(f, h),  # both new values need both old ones
            b.add(f, b.exp(b.negative(b.abs(h)))),
            b.max(a, axis=0),  # stacked
            b.add(a, 1.0),
        )

    results = g.while_loop(body, [x] * 6, trips=9)
    g.set_outputs(results)
    rng = np.random.default_rng(6)
    table_ = rng.uniform(-0.1, 0.1, (8, 8)).astype(np.float32)
    check(g, {"x": rng.uniform(-1, 1, (8, 8)).astype(np.float32), "table": table_}, rtol=3e-5)


def test_an_elementwise_update_takes_no_copy() -> None:
    g = ost.Graph()
    x = g.input("x", (64, 64))
    (y,) = g.while_loop(lambda b, i, y: b.add(b.multiply(y, 0.5), x), [x], trips=40)
    g.set_outputs([y])
    names = [kernel.name for kernel in ost.Session("cpu").compile(g).plan.kernels]
    assert names == ["copy", "loop", "multiply+add", "end loop"]


def test_constant_carried_values_are_set_in_each_run(check: Check) -> None:
    g = ost.Graph()
    count = g.input("count", (), "int64")
    ones, twos = np.ones(5, np.float32), np.full(5, 2, np.float32)
    (y,) = g.while_loop(lambda b, i, y: b.constant(twos), [g.constant(ones)], trips=count)
    g.set_outputs([y])
    check(g, *({"count": np.array(n)} for n in (0, 3, 0)))


def test_invariants_leave_the_loop() -> None:
    g = ost.Graph()
    x, w = g.input("x", (16, 16)), g.input("w", (16, 16))
    (y,) = g.while_loop(lambda b, i, y: b.add(y, b.matmul(w, w)), [x], trips=100)
    g.set_outputs([y])
    kernels = [kernel.name for kernel in ost.Session("cpu").compile(g).plan.kernels]
    assert kernels.index("matmul") < kernels.index("loop")


def test_a_profile_adds_up_the_iterations() -> None:
    g = ost.Graph()
    x = g.input("x", (64, 64))
    (y,) = g.while_loop(lambda b, i, y: b.matmul(y, x), [x], trips=50)
    g.set_outputs([y])
    plan = ost.Session("cpu").compile(g).plan
    plan.inputs["x"].copyin(np.eye(64, dtype=np.float32))
    elapsed = {record.name: record.elapsed for record in plan.execute_profiled()}
    assert elapsed["matmul"] > 20 * elapsed["end loop"] / 50
    np.testing.assert_array_equal(plan.output_buffer().copyout(), np.eye(64))


def test_capture_and_replay() -> None:
    g = ost.Graph()
    x, count = g.input("x", (4,)), g.input("count", (), "int64")
    (y,) = g.while_loop(lambda b, i, y: b.add(y, x), [x], trips=count)
    g.set_outputs([y])
    session = ost.Session("cpu")
    compiled = session.compile(g)
    arrays = {"x": np.ones(4, np.float32), "count": np.array(3)}
    out = np.empty(4, np.float32)
    bound = compiled.bind(arrays, [out])
    context = session.context
    context.begin_graph_capture()
    bound()
    context.end_graph_capture(1)
    for n in (3, 0, 10):
        arrays["count"][()] = n
        context.replay_graph(1)
        np.testing.assert_array_equal(out, n + 1)


@pytest.mark.parametrize("trips", [12, "size", "count", "count alone", None])
def test_stacked_results_of_a_loop_that_ends_on_data(check: Check, trips: Any) -> None:
    g = ost.Graph()
    x, limit = g.input("x", (3,)), g.input("limit", ())
    most = ost.Variable("most", 1, 20)
    g.input("room", (most,))
    count = g.input("count", (), "int64")
    alone = trips == "count alone"

    def step(b: Any, i: Any, y: Any) -> Any:
        new = b.multiply(y, 2.0)
        going = () if alone else (b.less(b.sum(new), limit),)
        return (*going, new, b.add(new, b.cast(i, "float32")), b.less(y, 1.0))

    last, rows, flags = g.while_loop(
        step,
        [x],
        trips={12: 12, "size": most, None: None}.get(trips, count),
        condition=None if alone else g.greater(limit, 0.0),
        bound=None if trips in (12, "size") else 12,
    )
    g.set_outputs([last, rows, flags, g.sum(rows, axis=0)])
    feeds = [
        {
            "x": np.full(3, 0.1, np.float32),
            "limit": np.float32(limit),
            "room": np.zeros(12, np.float32),
            "count": np.int64(n),
        }
        for limit, n in ((-1, 0), (100, 9), (0.1, 1), (100, 12), (1e9, 12), (3, 12))
    ]
    check(g, *(feeds if trips is not None else [*feeds[:4], feeds[5]]))


@pytest.mark.parametrize("trips", ["count", None])
def test_more_iterations_than_the_bound(trips: str | None) -> None:
    g = ost.Graph()
    count = g.input("count", (), "int64")
    _, rows = g.while_loop(
        lambda b, i, y: (b.less(i + 1, count), b.add(y, 1.0), y),
        [g.constant(np.float32(0))],
        trips=count if trips else None,
        condition=g.greater(count, 0),
        bound=5,
    )
    g.set_outputs([rows])
    compiled = ost.Session("cpu").compile(g)
    for n in (5, 0, 3):
        (found,) = compiled.run({"count": np.int64(n)})
        assert found.tolist() == list(range(n))
    for n in (6, 1 << 40):
        with pytest.raises(ost.VariableError, match=r"size.*5"):
            compiled.run({"count": np.int64(n)})
    assert len(compiled.run({"count": np.int64(2)})[0]) == 2


def test_errors() -> None:
    g = ost.Graph()
    x = g.input("x", (4,))
    with pytest.raises(GraphError, match=r"carries f32\[4\], and its body gives f32\[2\]"):
        g.while_loop(lambda b, i, y: b.getitem(y, slice(2)), [x], trips=3)
    with pytest.raises(GraphError, match="would never end"):
        g.while_loop(lambda b, i, y: y, [x])
    with pytest.raises(GraphError, match="no size need bound=, the most iterations"):
        g.while_loop(lambda b, i, y: (y, y), [x], trips=g.input("n", (), "int64"))
    with pytest.raises(GraphError, match="expected 4 parts along its first axis"):
        g.scan(lambda b, x, y: b.add(x, y), [], [x, g.input("z", (5,))])
    with pytest.raises(GraphError, match="at least one tensor"):
        g.scan(lambda b: [], [], [])

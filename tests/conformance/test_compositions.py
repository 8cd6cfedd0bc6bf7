"""Methods made of several ops, on each device: optimised and not, against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Value
from tests.devices.registered import open_session

from .compare import assert_close
from .draw import ANY, Draw
from .test_symbolic import OPTIMISED, UNOPTIMISED

Family = Callable[[ost.Graph, Value, Value], Sequence[Value]]


def _order(g: ost.Graph, x: Value, ids: Value) -> list[Value]:
    return [
        *g.median(x, 1),
        *g.nanmedian(x),
        *g.mode(x, 0),
        *g.kthvalue(x, 3),
        g.quantile(x, [0.2, 0.7], 1),
        g.nanquantile(x, 0.5, 0, interpolation="midpoint"),
        g.bucketize(x, [-1.0, 0.5, 1.0]),
        *g.cummin(x, 0),
        g.logcumsumexp(x),
    ]


def _updates(g: ost.Graph, x: Value, ids: Value) -> list[Value]:
    spread = g.broadcast_to(g.reshape(ids, (4, 1)), (4, 5))
    return [
        g.scatter_reduce(x, spread, g.slice(x, [0, 1], [4, 6]), 0, "mean", False),
        g.scatter_reduce(x, spread, g.slice(x, [0, 1], [4, 6]), 0, "max"),
        g.index_copy(x, ids, g.slice(x, [1], [5]), 0),
        g.index_add(x, g.slice(ids, [0], [2]), g.slice(x, [0, 2], [6, 4]), 1, alpha=0.5),
        g.index_put(x, [ids, g.flip(ids)], 2.0, accumulate=True),
        g.index_put(x, [None, ids], g.slice(x, [0, 0], [6, 4])),
        g.getitem(x, (ids, g.expand_dims(ids, 1))),
        g.masked_scatter(x, g.greater(x, 0), g.neg(x)),
        g.slice_scatter(x, g.slice(x, [0], [3]), 0, 0, 6, 2),
        g.select_scatter(x, g.getitem(x, 0), 0, 4),
    ]


def _views(g: ost.Graph, x: Value, ids: Value) -> list[Value]:
    image = g.reshape(g.concat([x, g.exp(x)], 0), (1, 2, 6, 7))
    columns = g.im2col(image, (2, 3), (2, 1), 1)
    return [
        g.unfold(g.exp(x), 1, 3, 2),
        g.sum(g.unfold(x, 0, 4), axis=-1),
        g.diagonal(x, 1),
        g.trace(g.square(x)),
        g.diag_embed(x, -1),
        g.diagonal_scatter(x, g.diagonal(x, 2), -1),
        columns,
        g.col2im(columns, (6, 7), (2, 3), (2, 1), 1),
        g.as_strided(x, (3, 4), (7, 2), 1),
        g.roll(x, (8, -2), (1, 0)),
        g.rot90(x, 3),
    ]


def _bins(g: ost.Graph, x: Value, ids: Value) -> list[Value]:
    offsets = g.constant([0, 1, 1])
    return [
        g.bincount(ids, length=5),
        g.histc(x, 4, -1, 1),
        g.histogram(x, [-1.0, 0.0, 2.0], density=True),
        *(g.embedding_bag(x, ids, offsets, mode=mode) for mode in ("sum", "mean", "max")),
        g.embedding_bag(x, g.reshape(ids, (2, 2)), mode="max", padding_id=1),
        g.cdist(x, g.flip(x), 1),
        g.pdist(x),
        g.renorm(x, 2, 0, 1.0),
        g.cross(g.slice(x, [0, 0], [6, 3]), g.slice(x, [0, 3], [6, 6])),
        g.nanmean(x, 0),
        g.grouped_matmul(x, g.reshape(g.concat([x, x], 0), (2, 7, 6)), offsets=[2, 5]),
    ]


@pytest.fixture(scope="module")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)


@pytest.mark.parametrize("family", [_order, _updates, _views, _bins])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_compositions(family: Family, dtype: str, session: ost.Session) -> None:
    g = ost.Graph()
    x, ids = g.input("x", (6, 7), dtype), g.input("ids", (4,), "int64")
    g.set_outputs(list(family(g, x, ids)))
    rng = np.random.default_rng(7)
    values = (rng.integers(-8, 9, (6, 7)) / 4).astype(dtype)
    feeds = {"x": values, "ids": np.array([3, 0, -1, 3])}
    if family is _order:
        values[2, 3] = np.nan
    expected = ost.reference.evaluate(g, feeds)
    options = [OPTIMISED, UNOPTIMISED] if dtype == "float32" else [OPTIMISED]
    for chosen in options:
        results = session.compile(g, options=chosen).run(feeds)
        for i, (mine, truth) in enumerate(zip(results, expected, strict=True)):
            assert_close(mine, truth, f"output {i}\n{g}")


def _every(g: ost.Graph, x: Value, ids: Value) -> Iterator[Value]:
    """All methods that take a matrix of these sizes and this dtype."""
    rows, columns = (int(d) for d in x.shape)
    dtype = x.dtype
    spread = g.broadcast_to(g.reshape(ids, (rows, 1)), x.shape)
    yield from g.sort(x, 0)
    yield g.argsort(x, 1, descending=True)
    yield from g.cummax(x, 0)
    yield from g.cummin(x, 1)
    yield g.index_copy(x, ids, g.flip(x), 0)
    yield g.index_add(x, ids, x, 0)
    yield g.gather(x, spread, 0)
    yield g.index_put(x, [ids], g.flip(x), accumulate=True)
    yield g.masked_scatter(x, g.equal(x, g.flip(x)), x)
    yield g.slice_scatter(x, g.slice(x, [0], [None], [2], axes=[1]), 1, None, None, 2)
    yield g.count_nonzero(x, 0)
    yield g.diagonal(x, 1)
    yield g.diag_embed(x, -1)
    yield g.diagonal_scatter(x, g.diagonal(x), 0)
    yield g.roll(x, (3, -1), (0, 1))
    yield g.rot90(x)
    yield g.unfold(x, 1, min(columns, 2), 2)
    yield g.bucketize(x, g.sort(g.reshape(x, (-1,)))[0])
    if rows:
        for found in (g.median(x, 0), g.mode(x, 0)):
            yield from found
        if columns:
            yield g.getitem(x, (ids, g.where(g.less(ids, columns), ids, 0)))
    if not dtype.is_bool:
        for mode in ("sum", "prod", "mean", "min", "max"):
            yield g.scatter_reduce(x, spread, x, 0, mode, include_self=False)
        yield g.trace(x)
        if rows:
            yield from g.kthvalue(x, (rows + 1) // 2, 0)
            yield from g.aminmax(x, 0)
    if dtype.is_float:
        yield g.logcumsumexp(x, 0)
        yield g.nansum(x, 1)
        yield g.nanmean(x, 0)
        yield g.histc(x, 3, -1, 1)
        yield g.cdist(x, x, 1)
        yield g.renorm(x, 2, 0, 1.0)
        if rows:
            yield g.quantile(x, [0.0, 0.3, 1.0], 0)
            yield g.nanquantile(x, 0.5, 0, interpolation="nearest")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ANY)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 13), (7, 1), (11, 3), (5, 257)])
def test_every_size_and_dtype(dtype: str, shape: tuple[int, int], session: ost.Session) -> None:
    d = Draw(ost.Graph(), np.random.default_rng(shape[1]))
    x = d.of(shape, dtype)
    results = list(_every(d.g, x, d.ids((shape[0],), max(shape[0], 1))))
    d.g.set_outputs(results)
    expected = ost.reference.evaluate(d.g, d.arrays)
    mine = session.compile(d.g, options=OPTIMISED).run(d.arrays)
    for i, (got, truth) in enumerate(zip(mine, expected, strict=True)):
        assert_close(got, truth, f"{results[i].node} of {dtype} {shape}")


def _symbolic(g: ost.Graph, x: Value, ids: Value, rows: Value) -> Iterator[Value]:
    """Methods on ``[n, 5]``, ``[m]`` and ``[m, 5]``."""
    count, size = ids.shape[0], x.shape[0]
    spread = g.broadcast_to(g.reshape(ids, (count, 1)), rows.shape)
    for found in (
        g.median(x, 0),
        g.nanmedian(x),
        g.mode(x, 0),
        g.cummax(x, 0),
        g.kthvalue(x, 1, 0),
    ):
        yield from found
    yield g.quantile(x, [0.1, 0.9], 0)
    yield g.nanquantile(x, 0.5, None, True)
    yield g.searchsorted(g.sort(g.getitem(x, (slice(None), 0)))[0], rows)
    yield g.scatter_reduce(x, spread, rows, 0, "mean", False)
    yield g.index_copy(x, ids, rows, 0)
    yield g.index_put(x, [ids, ids], 1.0)
    yield g.index_put(x, [g.greater(x, 0)], 0.0, accumulate=True)
    yield g.getitem(x, (ids, g.expand_dims(ids, 1)))
    yield g.getitem(x, (g.greater(x, 0),))
    yield g.masked_scatter(x, g.greater(x, 9), rows)
    yield g.slice_scatter(x, g.slice(x, [0], [None], [2]), 0, None, None, 2)
    yield g.select_scatter(x, g.getitem(x, 0), 0, size - 1)
    yield g.diagonal_scatter(x, g.diagonal(x, 1), 1)
    yield g.unfold(x, 0, 3, 2)
    yield g.roll(x, -4, 0)
    yield g.bincount(g.abs(ids), bound=20)
    yield from (g.embedding_bag(x, ids, [0, 1, 1], mode=mode) for mode in ("max", "mean"))
    yield g.cdist(x, rows)
    yield g.pdist(x)
    yield g.tril_indices(size, count)
    yield from g.unique_consecutive(x, 0)
    yield from g.unique(x, 0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [OPTIMISED, UNOPTIMISED], ids=["optimised", "plain"])
def test_symbolic_sizes(options: ost.CompileOptions, session: ost.Session) -> None:
    g = ost.Graph()
    n, m = ost.Variable("n", 1, 9), ost.Variable("m", 0, 6)
    operands = g.input("x", (n, 5)), g.input("ids", (m,), "int64"), g.input("rows", (m, 5))
    results = list(_symbolic(g, *operands))
    g.set_outputs(results)
    compiled = session.compile(g, options=options)
    for rows, count in ((1, 0), (9, 6), (4, 1), (3, 2), (1, 1)):
        rng = np.random.default_rng(rows * 10 + count)
        feeds = {
            "x": (rng.integers(-4, 5, (rows, 5)) / 2).astype(np.float32),
            "ids": rng.integers(-rows, rows, count),
            "rows": rng.standard_normal((count, 5)).astype(np.float32),
        }
        expected = ost.reference.evaluate(g, feeds)
        for i, (got, truth) in enumerate(zip(compiled.run(feeds), expected, strict=True)):
            assert_close(got, truth, f"{results[i].node} of {rows}, {count}")

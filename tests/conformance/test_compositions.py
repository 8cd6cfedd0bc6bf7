"""Methods made of several ops, on each device: optimised and not, against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Value
from tests.devices.registered import open_session

from .compare import assert_close
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

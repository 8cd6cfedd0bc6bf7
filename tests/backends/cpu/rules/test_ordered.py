"""Scatters on the CPU: in parallel where elements differ, in order where they are the same."""

from __future__ import annotations

import numpy as np
import pytest

import ostinato as ost


def test_rows_of_a_state_are_written_in_place_by_many_threads():
    g = ost.Graph()
    rows, at = g.input("rows", (2, 4, 3, 16)), g.input("at", (3,), "int32")
    cache = g.state("cache", (2, 4, 32, 16))
    g.assign(cache, g.index_copy(cache, at, rows, 2))
    g.set_outputs([g.sum(rows)])
    compiled = ost.Session(threads=2).compile(g)
    (kernel,) = (k for k in compiled.plan.kernels if k.name == "scatter")
    assert not any(k.name == "copy" for k in compiled.plan.kernels)
    for part in ("loops, parallel", "for i0: 0..7", "inner i1: 0..15", "stage for i2: 0..2"):
        assert part in kernel.loops


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("mode", ["set", "add", "max"])
def test_updates_of_one_element_take_effect_in_order(axis, mode):
    rng = np.random.default_rng(3)
    shape = (5, 7, 37)
    g = ost.Graph()
    x, ids, updates = g.input("x", shape), g.input("ids", shape, "int64"), g.input("u", shape)
    line = g.reshape(g.slice(ids, [0, 0, 0], [1, 1, shape[axis]]), (-1,))
    rows = [shape[a] if a == axis else 1 for a in range(3)]
    same = g.broadcast_to(g.reshape(line, rows), shape)
    g.set_outputs([g.scatter(x, by, updates, axis, mode) for by in (ids, same)])
    feeds = {
        "x": rng.standard_normal(shape).astype(np.float32),
        "ids": rng.integers(-4, 4, shape),
        "u": rng.standard_normal(shape).astype(np.float32),
    }
    results = ost.Session(threads=2).compile(g).run(feeds)
    for mine, truth in zip(results, ost.reference.evaluate(g, feeds), strict=True):
        np.testing.assert_allclose(mine, truth, rtol=1e-5, atol=1e-6)

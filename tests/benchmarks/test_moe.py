"""The hit rate of TIDE is no lower than that of the better of two other policies."""

from __future__ import annotations

import numpy as np
import pytest
from bench import moe

import ostinato as ost


@pytest.mark.parametrize("drifting", [False, True])
@pytest.mark.parametrize("skew", [0.8, 1.2])
def test_hit_rates(skew: float, drifting: bool) -> None:
    """A quarter of 64 experts is resident; routing follows Zipf's law."""
    sizes = moe.Sizes(features=8, hidden=8)
    graph = moe.layers_graph(sizes)
    weights = {name: np.zeros(p.shape, np.float32) for name, p in graph.params.items()}
    compiled = ost.Session("cpu", threads=1).compile(graph, params=weights)
    layers = [
        moe.routing(600, skew=skew, drifting=drifting, seed=seed) for seed in range(sizes.layers)
    ]
    loops = moe.ways(compiled.clone, every=4)
    results = moe.decode(loops, [*zip(*layers, strict=True)], sizes.features)
    rates = {name: result.hit_rate for name, result in results.items()}
    assert rates["TIDE"] >= max(rates["LRU"], rates["static"]) - 0.01, rates
    assert rates["TIDE"] > 0.4


def test_the_least_recently_used_makes_room() -> None:
    pool = moe.Lru(4, 2)
    assert pool.resident == [0, 1]
    assert pool.use(np.array([[3, 0]]))
    assert pool.resident == [0, 3]
    assert pool.use(np.array([[2]]))
    assert pool.resident == [0, 2]
    assert not pool.use(np.array([[0]]))


def test_a_small_run(tmp_path) -> None:
    """With a file, and all that is measured."""
    sizes = moe.Sizes(layers=1, features=32, hidden=64)
    moe.write_experts(tmp_path / "experts", sizes)
    session = ost.Session("cpu", threads=1)
    loops = moe.ways(lambda: moe.compiled_from(tmp_path / "experts", sizes, session), every=2)
    steps = [[ids] for ids in moe.routing(30, skew=1.0, drifting=False, seed=0)]
    results = moe.decode(loops, steps, sizes.features)
    assert set(results) == {"TIDE", "LRU", "static"}
    assert all(r.tokens_per_second > 0 and r.megabytes_per_token > 0 for r in results.values())

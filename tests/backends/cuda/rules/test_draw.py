"""Drawing tokens by a kernel of its own, in the emulator, against the definition."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.compiler import compile_text
from ostinato.backends.cuda.rules.draw import Draw
from ostinato.backends.cuda.target import CudaTarget
from tests.backends.cuda.render.recipe_kernels import kernels_of
from tests.devices.registered import open_session
from tests.token_sampling import distribution, sampled

Array = np.ndarray[Any, Any]

SETTINGS = ("uniform", "temperature", "top_k", "top_p", "min_p")


def graph(vocabulary: int) -> ost.Graph:
    rows, g = ost.Variable("rows", 1, 64), ost.Graph("draws")
    given = [g.input(name, (rows,), "int32" if name == "top_k" else "float32") for name in SETTINGS]
    g.set_outputs([g.sample(g.input("logits", (rows, vocabulary)), *given)])
    return g


@functools.cache
def compiled(vocabulary: int) -> ost.CompiledGraph:
    return open_session("cudahost").compile(graph(vocabulary))


def drawn(logits: Array, *settings: Any) -> Array:
    arrays = {"logits": logits.astype(np.float32)}
    for name, values in zip(SETTINGS, settings, strict=True):
        dtype = np.int32 if name == "top_k" else np.float32
        arrays[name] = np.broadcast_to(np.asarray(values, dtype), len(logits)).copy()
    (tokens,) = compiled(logits.shape[1]).run(arrays)
    return np.asarray(tokens)


@pytest.mark.parametrize("vocabulary", [1, 2, 33, 1500, 20_000])
@pytest.mark.parametrize("filters", ["none", "top_k", "top_p", "min_p", "all"])
def test_tokens_are_those_of_the_definition(vocabulary: int, filters: str) -> None:
    """Flat rows have more weights that matter than a block lists."""
    rng, rows = np.random.default_rng(5), 12
    logits = (rng.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
    logits[3] = np.round(logits[3])  # with many equal ones
    logits[4, rng.random(vocabulary) < 0.7] = -np.inf
    logits[5] *= 0.01
    logits[6] = 0
    off = {"top_k": np.zeros(rows), "top_p": np.ones(rows), "min_p": np.zeros(rows)}
    on = {
        "top_k": rng.integers(1, vocabulary + 2, rows),
        "top_p": rng.uniform(0, 1, rows),
        "min_p": rng.uniform(0, 0.5, rows),
    }
    chosen = {name: (on if filters in (name, "all") else off)[name] for name in on}
    values = [rng.random(rows), rng.uniform(0.2, 2, rows), *chosen.values()]
    values[1][:2] = 0
    exact = [np.asarray(x, np.int64 if i == 2 else np.float32) for i, x in enumerate(values)]
    found, wanted = drawn(logits, *exact), sampled(logits, *exact)
    # Where a draw falls on an edge, sums of another precision may decide otherwise.
    assert np.sum(found != wanted) <= 1
    for row in np.flatnonzero(found != wanted):
        chances = distribution(logits[row], float(exact[1][row]), 0, 1.0, 0.0)
        assert chances[found[row]] > 0


def test_settings_at_their_ends() -> None:
    logits = np.array([[0.0, 2.0, 1.0, 2.0, -np.inf, np.nan]] * 8, np.float32)
    uniform = [0.0, 1.0, 2.0, -1.0, np.nan, 0.9, 0.9, 0.9]
    assert drawn(logits, uniform, 1.0, 0, 1.0, 0.0)[:5].tolist() == [0, 3, 3, 0, 0]
    top_p = [0.0, -1.0, 1e-9, 1.0, 2.0, np.nan, 0.5, 0.4]
    found = drawn(logits, 0.999, 1.0, 0, top_p, 0.0)
    assert found[:3].tolist() == [1, 1, 1]
    assert found[3:6].tolist() == [3, 3, 3]
    assert drawn(logits, 0.999, 1.0, [1, 2, 3, 5, 6, 99, -1, 0], 1.0, 0.0)[:2].tolist() == [1, 3]
    min_p = [1.0, 1.5, np.inf, np.nan, -1.0, 0.0, 0.5, 0.1]
    found = drawn(logits, 0.999, 1.0, 0, 1.0, min_p)
    assert found.tolist() == [3, 1, 1, 3, 3, 3, 3, 3]
    rows = np.array([[-np.inf] * 6, [np.nan] * 6, [np.inf, 0, np.inf, 0, 0, 0]], np.float32)
    assert drawn(rows, [0.3, 0.3, 0.9], 1.0, 0, 1.0, 0.0).tolist() == [0, 0, 2]


def test_small_and_large_weights() -> None:
    """Of `draw` itself: weights need not be at most 1."""
    g = ost.Graph("draw")
    dtypes = {"uniform": "float32", "top_k": "int64", "top_p": "float32", "min_p": "float32"}
    given = [g.input(name, (3,), dtype) for name, dtype in dtypes.items()]
    g.set_outputs([g.draw(g.input("weights", (3, 4)), *given)])
    weights = np.array([[1e-45, 0, 3e-45, 0], [3e38, 1e38, 0, -1], [1, np.nan, 1, 2]], np.float32)
    run = open_session("cudahost").compile(g).run
    for uniform, wanted in ((0.0, [0, 0, 0]), (0.4, [2, 0, 2]), (0.8, [2, 1, 3])):
        settings = dict(zip(dtypes, (uniform, 0, 1, 0), strict=True))
        arrays = {name: np.full(3, settings[name], dtype) for name, dtype in dtypes.items()}
        (tokens,) = run({"weights": weights, **arrays})
        assert np.asarray(tokens).tolist() == wanted


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_it_compiles(arch: str) -> None:
    (kernel,) = [k for k in kernels_of(graph(128_256)) if isinstance(k, Draw)]
    compile_text(kernel.source(CudaTarget.of_arch(arch)), arch)

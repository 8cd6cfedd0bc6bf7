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
from tests.pairwise import every_second
from tests.token_sampling import FILTERS, check_draws, drawn_by, sampled, sampling_graph

Array = np.ndarray[Any, Any]


@functools.cache
def compiled(vocabulary: int, device: str = "cudahost") -> ost.CompiledGraph:
    return open_session(device).compile(sampling_graph(vocabulary, 64))


def drawn(logits: Array, *settings: Any) -> Array:
    return drawn_by(compiled(logits.shape[1]), logits, *settings)


@pytest.mark.parametrize(
    ("vocabulary", "filters"), every_second([20_000, 1500, 33, 2, 1], list(FILTERS))
)
def test_tokens_are_those_of_the_definition(vocabulary: int, filters: str) -> None:
    check_draws(drawn, vocabulary, filters, rows=12)


@pytest.mark.parametrize(("vocabulary", "filters"), every_second([4100, 9000, 1], list(FILTERS)))
def test_blocks_draw_together(vocabulary: int, filters: str) -> None:
    """Two blocks, which share a row where it is long, and draw from one after the other."""

    def drawn_together(logits: Array, *settings: Any) -> Array:
        return drawn_by(compiled(vocabulary, "cudagrids"), logits, *settings)

    check_draws(drawn_together, vocabulary, filters, rows=8)


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


def test_many_small_weights_may_be_most_of_what_is_kept() -> None:
    """Their sum is above a fifth of all."""
    logits = np.full((3, 33_000), -17 * np.log(2), np.float32)
    logits[:, 7] = 0
    settings = (np.array([0.1, 0.9, 0.999], np.float32), 1.0, 0, 0.99, 0.0)
    found = drawn(logits, *settings)
    exact = [np.full(3, x, np.int64 if i == 1 else np.float32) for i, x in enumerate(settings[1:])]
    assert found[0] == 7
    assert np.abs(found - sampled(logits, settings[0], *exact)).max() <= 2
    assert found[2] > found[1] > 10_000


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


@pytest.mark.parametrize(
    "arch", ["sm_90", *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_80", "sm_100"))]
)
def test_it_compiles(arch: str) -> None:
    (kernel,) = [k for k in kernels_of(sampling_graph(128_256, 64)) if isinstance(k, Draw)]
    compile_text(kernel.source(CudaTarget.of_arch(arch)), arch)

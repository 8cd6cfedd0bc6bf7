"""Top-k, scatters and attention at sizes that take every way through their kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from tests.conformance.compare import assert_close
from tests.pairwise import pairwise

from .test_matmuls import check, drawn

RNG = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("dtype", "size", "largest"),
    pairwise(
        ["float32", "float16", "int8", "uint16", "int64", "uint64"],
        [(1, 1), (7, 7), (97, 5), (700, 3), (700, 90), (5003, 4000)],
        [True, False],
    ),
)
def test_topk(session: ost.Session, dtype: str, size: tuple[int, int], largest: bool) -> None:
    """Many elements are equal: those at lower positions come first."""
    n, k = size
    check(session, lambda g, x: list(g.topk(x, k, largest=largest)), drawn(dtype, 3, n))


@pytest.mark.parametrize(
    ("n", "m", "mode"),
    [
        *((*size, mode) for size in ((7, 20), (5000, 4000)) for mode in ("set", "add", "max")),
        (66_003, 65_701, "add"),
        *(pytest.param(66_003, 65_701, m, marks=pytest.mark.slow) for m in ("set", "max")),
    ],
)
def test_scatter(session: ost.Session, mode: str, n: int, m: int) -> None:
    """More points than a loop of Mesa's software adapter has iterations."""
    graph = ost.Graph("scatter")
    x, ids, updates = (
        graph.input("x", (n,)),
        graph.input("ids", (m,), "int64"),
        graph.input("updates", (m,)),
    )
    graph.set_outputs([graph.scatter(x, ids, updates, axis=0, mode=mode)])
    given: dict[str, Any] = {
        "x": drawn("float32", n),
        "ids": RNG.integers(-n, n, m),
        "updates": drawn("float32", m),
    }
    (found,) = session.compile(graph).run(given)
    (truth,) = ost.reference.evaluate(graph, given)
    assert_close(found, truth, f"scatter {mode}")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("heads", "length", "keys", "depth"),
    [((2, 2), 1, 1, 1), ((4, 2), 1, 300, 64), ((3, 1), 17, 97, 20), ((2, 2), 130, 130, 33)],
)
@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"causal": True, "window": 9}])
def test_attention(
    session: ost.Session,
    dtype: str,
    heads: tuple[int, int],
    length: int,
    keys: int,
    depth: int,
    settings: dict[str, Any],
) -> None:
    many, few = heads
    arrays = (
        drawn(dtype, 2, many, length, depth),
        drawn(dtype, 2, few, keys, depth),
        drawn(dtype, 2, few, keys, depth + 3),
    )
    check(session, lambda g, q, k, v: g.attention(q, k, v, **settings), *arrays)


@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_attention_with_a_mask(session: ost.Session, kind: str) -> None:
    """One row attends to nothing: its result is zero."""
    mask = RNG.integers(0, 2, (11, 70)).astype(bool)
    mask[3] = False
    given = mask if kind == "bool" else np.where(mask, 0.5, -np.inf).astype(np.float32)
    arrays = (drawn("float32", 1, 2, 11, 16), drawn("float32", 1, 2, 70, 16))
    check(
        session,
        lambda g, q, k, m: g.attention(q, k, k, mask=m, softcap=5.0, scale=0.3),
        *arrays,
        given,
    )

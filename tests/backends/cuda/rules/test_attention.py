"""Attention of the CUDA device, in the emulator, against the oracle."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.rules.attention import Attention
from ostinato.backends.cuda.rules.segment_assembly import Segment
from ostinato.backends.cuda.target import CudaTarget
from ostinato.plan.prepared import KernelCall
from ostinato.records import replace
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session

#: Batch, query heads, key heads, queries, keys, head size, features.
SHAPES = {
    "one": (1, 1, 1, 1, 1, 1, 1),
    "heads": (2, 4, 2, 5, 7, 8, 8),
    "one query": (1, 8, 2, 1, 37, 16, 16),
    "tiles": (1, 2, 1, 70, 70, 16, 16),
    "wide": (1, 1, 1, 20, 33, 80, 96),
    "odd": (2, 3, 3, 17, 19, 5, 7),
    "many features": (1, 1, 1, 3, 9, 4, 300),
    "parts": (1, 2, 1, 3, 600, 8, 8),
    "parts of tiles": (2, 4, 2, 1, 300, 16, 32),
    "tiles of few rows": (1, 8, 1, 2, 50, 32, 16),
    "two tiles of rows": (1, 256, 256, 33, 5, 16, 16),
    "long": (1, 2, 1, 150, 200, 16, 16),
    "lanes": (1, 6, 2, 1, 150, 32, 32),
    "lanes of wide heads": (2, 8, 1, 1, 41, 128, 128),
    "lanes of narrow heads": (1, 3, 1, 2, 70, 8, 8),
    "groups of warps": (1, 2, 1, 70, 140, 64, 64),
    "groups of warps and many keys": (1, 2, 1, 40, 420, 64, 64),
    "groups of wide heads": (1, 1, 1, 70, 75, 128, 128),
    "two groups": (1, 4, 2, 130, 66, 80, 64),
    "no queries": (1, 2, 2, 0, 5, 8, 8),
    "no keys": (1, 2, 2, 5, 0, 8, 8),
}

#: Of heads that parts of segments have in registers, for tensor cores.
FRAGMENTS = {
    "one key": (1, 1, 1, 1, 1, 32, 32),
    "rows of a group": (2, 8, 2, 1, 37, 64, 64),
    "two halves of rows": (1, 12, 1, 1, 150, 32, 64),
    "queries": (1, 4, 2, 3, 140, 64, 32),
    "many keys": (1, 3, 1, 1, 700, 96, 128),
    "many keys of many heads": (13, 5, 5, 1, 261, 32, 32),
    "keys of none": (1, 2, 2, 5, 0, 32, 32),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "wide window": {"causal": True, "window": 100},
    "band": {"window": 2},
    "softcap": {"softcap": 1.5, "scale": -0.7},
    "bool mask": {"mask": "bool"},
    "added mask": {"mask": "float32", "causal": True},
}


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaemu")


@pytest.fixture(scope="module")
def segments() -> ost.Session:
    return open_session("cudasegments")


def check(
    session: ost.Session, shape: str, dtype: str, *, beside: bool = False, **options: Any
) -> ost.Graph:
    """Compare attention with the oracle; ``beside``: with a kernel of its own beside it."""
    batch, heads, key_heads, queries, keys, size, features = (SHAPES | FRAGMENTS)[shape]
    name = f"{shape} {dtype} {options}"
    draw = Draw(ost.Graph("attention"), np.random.default_rng(zlib.crc32(name.encode())))
    q = draw.of((batch, heads, queries, size), dtype)
    k = draw.of((batch, key_heads, keys, size), dtype)
    v = draw.of((batch, key_heads, keys, features), dtype)
    mask = options.pop("mask", None)
    if mask is not None:
        mask = draw.of((1, heads, queries, keys), mask)
        mask = mask if mask.dtype.is_bool else draw.g.cast(mask, dtype)
    others = [draw.g.sum(q)] if beside else []
    draw.g.set_outputs([draw.g.attention(q, k, v, mask=mask, **options), *others])
    check_against_oracle(draw.g, draw.arrays, [(session, ost.CompileOptions(verify=True))])
    return draw.g


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(session: ost.Session, shape: str, dtype: str) -> None:
    check(session, shape, dtype, causal=shape != "odd")


@pytest.mark.parametrize(
    ("shape", "option", "dtype"),
    [
        pytest.param(shape, option, dtype, marks=[] if fast else [pytest.mark.slow])
        for i, shape in enumerate(
            ("heads", "tiles", "long", "groups of warps", "lanes of narrow heads")
        )
        for j, option in enumerate(OPTIONS)
        for dtype in ("float16", "float64")
        for fast in [dtype == "float16" and (i + j) % 2 == 0]
    ],
)
def test_options(session: ost.Session, shape: str, option: str, dtype: str) -> None:
    check(session, shape, dtype, **OPTIONS[option])


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_lanes(session: ost.Session, option: str) -> None:
    check(session, "lanes", "float32", **OPTIONS[option])


@pytest.mark.parametrize(
    ("shape", "dtype", "option"),
    [
        pytest.param(shape, dtype, option, marks=[] if (i + j) % 7 == 0 else [pytest.mark.slow])
        for i, shape in enumerate(FRAGMENTS)
        for j, option in enumerate(OPTIONS)
        for dtype in (["float16", "bfloat16"][j % 2],)
    ],
)
def test_fragments(segments: ost.Session, shape: str, dtype: str, option: str) -> None:
    graph = check(segments, shape, dtype, beside=True, **OPTIONS[option])
    calls = [op for op in segments.compile(graph).plan.prepared_ops if isinstance(op, KernelCall)]
    kernels = [call.kernel.kernel for call in calls]
    target = CudaTarget.of_arch("sm_90")
    (segment,) = [kernel for kernel in kernels if isinstance(kernel, Segment)]
    divided = shape != "many keys of many heads"
    assert "multiply_tiles" in segment.source(target)
    assert ("transposed(" in segment.source(target)) is divided
    assert "transposed(" not in segment.source(replace(target, divided_features=False))
    assert "multiply_tiles" not in segment.source(replace(target, fragments=False))


def test_a_query_that_attends_to_nothing_gives_zeros(session: ost.Session) -> None:
    g = ost.Graph("nothing")
    q, k = g.input("q", (1, 1, 20, 16), "float16"), g.input("k", (1, 1, 70, 16), "float16")
    mask = g.constant(np.zeros((1, 1, 20, 70), bool))
    g.set_outputs([g.attention(q, k, k, mask=mask)])
    ones = np.ones((1, 1, 70, 16), np.float16)
    (result,) = session.compile(g).run({"q": ones[:, :, :20], "k": ones})
    assert not np.asarray(result).any()


def attention_sources(session: ost.Session, graph: ost.Graph, target: CudaTarget) -> list[str]:
    """CUDA C++ of the attention of a graph."""
    calls = [op for op in session.compile(graph).plan.prepared_ops if isinstance(op, KernelCall)]
    kernels = [call.kernel.kernel for call in calls]
    return [kernel.source(target) for kernel in kernels if isinstance(kernel, Attention)]


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are not divided into parts, however few rows there are."""
    monkeypatch.setattr("ostinato.backends.cuda.rules.attention._splits", lambda root: 1)


@pytest.mark.usefixtures("undivided")
@pytest.mark.parametrize("shape", ["groups of warps", "groups of wide heads"])
def test_groups_of_warps_can_be_switched_off(session: ost.Session, shape: str) -> None:
    graph, target = check(session, shape, "float16", causal=True), CudaTarget.of_arch("sm_90")
    (source,) = attention_sources(session, graph, target)
    assert "multiply_group" in source
    (source,) = attention_sources(session, graph, replace(target, warp_groups=False))
    assert "multiply_tiles" in source
    assert "multiply_group" not in source


@pytest.mark.usefixtures("undivided")
@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.slow), 70])
def test_rows_have_the_same_bits_in_chunks(session: ost.Session, window: int | None) -> None:
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal((1, 1, 170, 64)).astype(np.float16) for _ in range(3))
    results = []
    for first, last in ((0, 170), (130, 170)):
        g = ost.Graph("chunk")
        rows, keys = q[:, :, first:last], (k[:, :, :last], v[:, :, :last])
        arrays = {name: x.copy() for name, x in zip("qkv", (rows, *keys), strict=True)}
        given = [g.input(name, x.shape, "float16") for name, x in arrays.items()]
        g.set_outputs([g.attention(*given, causal=True, window=window)])
        found = np.zeros_like(q)
        found[:, :, first:last] = np.asarray(session.compile(g).run(arrays)[0])
        results.append(found)
    whole, chunk = results
    np.testing.assert_array_equal(whole[:, :, 130:], chunk[:, :, 130:])

"""Matmuls of bfloat16 by dot product instructions, against the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import processor_facts
from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.llvm import render
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, assembly
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.table import lower_for_cpu

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
TARGET = TargetSpec.host()

needs_dots = pytest.mark.skipif(
    not TARGET.has_bfloat16_dots, reason="this processor has no dot products of bfloat16"
)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dot products wherever there are any, whether they are fast or not."""
    monkeypatch.setattr(processor_facts, "bfloat16_dots_are_fast", lambda: True)


def numbers(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def product(m: ost.Variable | int, k: int, n: int, *, transposed: bool = False) -> ost.Graph:
    g = ost.Graph("bfloat16")
    w = g.param("w", (n, k) if transposed else (k, n), "bfloat16")
    right = g.permute_dims(w, (1, 0)) if transposed else w
    g.set_outputs([g.relu(g.matmul(g.input("x", (m, k), "bfloat16"), right))])
    return g


def check(lowered: Callable[..., Any], graph: ost.Graph, x: Array, w: Array, **values: int) -> None:
    run = lowered(graph, "host", bfloat16_dots=True)
    assert any(isinstance(k, Gemm) and k.b_format and k.b_format.steps == 2 for k in run.kernels)
    (got,) = run({"x": x, "w": w}, **values)
    (expected,) = ost.reference.evaluate(graph, {"x": x}, {"w": w})
    want = expected.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=2e-2)


SIZES = [
    (1, 1, 16), (1, 7, 17), (2, 33, 65), (3, 2, 4), (8, 256, 96), (9, 127, 31), (13, 64, 3),
    (33, 41, 97), (1, 257, 300), (67, 5, 48),
]  # fmt: skip


@needs_dots
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_sizes(lowered: Callable[..., Any], sizes: tuple[int, int, int], transposed: bool) -> None:
    m, k, n = sizes
    w = numbers((n, k) if transposed else (k, n), 1)
    check(lowered, product(m, k, n, transposed=transposed), numbers((m, k)), w)


@needs_dots
@pytest.mark.parametrize("sizes", [(0, 5, 20), (5, 0, 20), (5, 5, 0)])
def test_nothing_to_do(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    options = ost.CompileOptions(bfloat16_dots=True)
    session = ost.Session("cpu", threads=1)
    compiled = session.compile(product(m, k, n), params={"w": numbers((k, n))}, options=options)
    (got,) = compiled.run({"x": numbers((m, k))})
    assert got.shape == (m, n)
    assert not got.astype(np.float32).any()


@needs_dots
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 20])
def test_symbolic_rows(lowered: Callable[..., Any], rows: int) -> None:
    graph = product(ost.Variable("rows", 0, 20), 33, 70)
    check(lowered, graph, numbers((rows, 33)), numbers((33, 70), 1), rows=rows)


@needs_dots
def test_whole_numbers_are_exact() -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.integers(-8, 9, shape).astype(BF16) for shape in ((19, 61), (61, 50)))
    g = ost.Graph("exact")
    y = g.matmul(g.input("x", x.shape, "bfloat16"), g.param("w", w.shape, "bfloat16", value=w))
    g.set_outputs([y])
    options = ost.CompileOptions(bfloat16_dots=True)
    (got,) = ost.Session("cpu", threads=2).compile(g, options=options).run({"x": x})
    (plain,) = ost.Session("cpu", threads=2).compile(g).run({"x": x})
    np.testing.assert_array_equal(got, plain)


@needs_dots
def test_matmuls_of_the_same_rows_share_a_kernel() -> None:
    x = numbers((6, 4, 50))
    g = ost.Graph("fused")
    left = g.input("x", x.shape, "bfloat16")
    gate, up, other = (
        g.matmul(left, g.param(name, (50, n), "bfloat16", value=numbers((50, n), n)))
        for name, n in (("gate", 96), ("up", 96), ("other", 20))
    )
    g.set_outputs([g.silu(gate) * up, other])
    options = ost.CompileOptions(bfloat16_dots=True)
    results = ost.Session("cpu", threads=2).compile(g, options=options).run({"x": x})
    for got, want in zip(results, ost.reference.evaluate(g, {"x": x}), strict=True):
        mine, truth = (a.astype(np.float64) for a in (got, want))
        np.testing.assert_allclose(mine, truth, rtol=4e-2, atol=4e-2)


@needs_dots
def test_prefetching_changes_no_bits(lowered: Callable[..., Any]) -> None:
    graph, data = product(21, 200, 96), {"x": numbers((21, 200)), "w": numbers((200, 96), 1)}
    small = CacheSizes(second=8 << 10)
    (ahead,) = lowered(graph, "host", small, bfloat16_dots=True)(data)
    (plain,) = lowered(graph, "host", small, bfloat16_dots=True, prefetch=False)(data)
    assert ahead.tobytes() == plain.tobytes()


def gemm(target: TargetSpec, **options: Any) -> Gemm:
    settings = lowering_options(ost.CompileOptions(**options), target)
    program, _ = lower_for_cpu(product(8, 64, 96), settings)
    (found,) = (kernel for kernel in program.kernels if isinstance(kernel, Gemm))
    return found


@needs_dots
def test_the_code_has_the_instruction() -> None:
    text = assembly(render(gemm(TARGET, bfloat16_dots=True), "kernel", TARGET), TARGET)
    assert "vdpbf16ps" in text


def test_off_unless_wanted_and_detected() -> None:
    assert gemm(TARGET).b_format != gemm(TARGET, bfloat16_dots=True).b_format or (
        not TARGET.has_bfloat16_dots
    )
    assert "vdpbf16ps" not in assembly(render(gemm(TARGET), "kernel", TARGET), TARGET)
    older = TargetSpec.named("sse2")
    assert not older.has_bfloat16_dots
    form = gemm(older, bfloat16_dots=True).b_format
    assert form is None or form.steps == 1


@needs_dots
def test_slow_dots_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option leads to widening where that is faster."""
    monkeypatch.setattr(processor_facts, "bfloat16_dots_are_fast", lambda: False)
    assert gemm(TARGET, bfloat16_dots=True).b_format == gemm(TARGET).b_format


@needs_dots
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_have_the_same_bits_alone_and_among_others(threads: int) -> None:
    rows, x, w = ost.Variable("rows", 1, 70), numbers((70, 130)), numbers((300, 130), 1)
    g = ost.Graph("heights")
    matrix = g.permute_dims(g.param("w", w.shape, "bfloat16", value=w), (1, 0))
    g.set_outputs([g.widening_matmul(g.input("x", (rows, 130), "bfloat16"), matrix)])
    options = ost.CompileOptions(bfloat16_dots=True)
    compiled = ost.Session("cpu", threads=threads).compile(g, options=options)
    (whole,) = compiled.run({"x": x})
    assert whole.dtype == np.float32
    for start, count in [(0, 1), (3, 1), (69, 1), (5, 2), (7, 3), (8, 5), (1, 8), (2, 13), (9, 33)]:
        (part,) = compiled.run({"x": x[start : start + count]})
        assert part.tobytes() == whole[start : start + count].tobytes()


@needs_dots
def test_float32_rows_are_rounded_once_for_all_matrices() -> None:
    """A gate and an up matrix share a kernel of dot products; the wanted results are the oracle's.

    The weights are as many as it takes for rows to be rounded.
    """
    x = np.random.default_rng(2).standard_normal((5, 300)).astype(np.float32)
    weights = [numbers((300, 256), seed) for seed in (3, 4)]
    g = ost.Graph("rounded")
    left = g.input("x", x.shape)
    gate, up = (
        g.matmul(left, g.param(name, w.shape, "bfloat16", value=w))
        for name, w in zip(("gate", "up"), weights, strict=True)
    )
    g.set_outputs([g.silu(gate) * up])
    options = ost.CompileOptions(bfloat16_dots=True)
    compiled = ost.Session("cpu", threads=2).compile(g, options=options)
    assert sum(" by 2" in str(kernel.loops) for kernel in compiled.plan.kernels) == 1
    (got,) = compiled.run({"x": x})
    rounded = x.astype(BF16).astype(np.float64)
    gates, ups = (rounded @ w.astype(np.float64) for w in weights)
    np.testing.assert_allclose(got, gates / (1 + np.exp(-gates)) * ups, rtol=2e-5, atol=2e-4)
    (plain,) = ost.Session("cpu", threads=2).compile(g).run({"x": x})
    gates, ups = (x.astype(np.float64) @ w.astype(np.float64) for w in weights)
    np.testing.assert_allclose(plain, gates / (1 + np.exp(-gates)) * ups, rtol=2e-5, atol=2e-4)

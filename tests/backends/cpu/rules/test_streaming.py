"""Large results that are stored past the caches: the same bits, wherever they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.llvm import render
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, assembly
from ostinato.backends.cpu.rules.kernel import CpuLoopNest
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.records import replace

Lowered = Callable[..., Any]

#: Caches that a kilobyte is too much for.
TINY = CacheSizes(second=32)


def nests(graph: ost.Graph, caches: CacheSizes = TINY, **options: Any) -> list[CpuLoopNest]:
    target = replace(TargetSpec.host(), caches=caches)
    program, _ = lower_for_cpu(graph, lowering_options(ost.CompileOptions(**options), target))
    return [kernel for kernel in program.kernels if isinstance(kernel, CpuLoopNest)]


def elementwise(shape: tuple[int, ...], dtype: str = "float32") -> ost.Graph:
    g = ost.Graph("map")
    x = g.input("x", shape, dtype)
    g.set_outputs([g.where(x > 3, x, x * x)])
    return g


def light_rows(count: int, size: int) -> ost.Graph:
    """Rows that take less time than their stores."""
    g = ost.Graph("rows")
    x = g.input("x", (count, size))
    g.set_outputs([x - g.sum(x, -1, keepdims=True) / size])
    return g


def rows(count: int, size: int) -> ost.Graph:
    """Rows that take much arithmetic before they are stored."""
    g = ost.Graph("rows")
    x = g.gelu(g.input("x", (count, size)))
    power = g.exp(x - g.max(x, -1, keepdims=True))
    g.set_outputs([power / g.sum(power, -1, keepdims=True)])
    return g


def same_bits(lowered: Lowered, level: str, graph: ost.Graph, data: dict[str, Any]) -> None:
    streamed = lowered(graph, level, TINY)
    plain = lowered(graph, level, TINY, streaming_stores=False)
    assert any(isinstance(k, CpuLoopNest) and k.streamed for k in streamed.kernels)
    assert not any(isinstance(k, CpuLoopNest) and k.streamed for k in plain.kernels)
    for mine, other in zip(streamed(data), plain(data), strict=True):
        assert mine.tobytes() == other.tobytes()


@pytest.mark.parametrize("size", [257, 400, 1024, 1031, 4099])
def test_maps(lowered: Lowered, level: str, size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    same_bits(lowered, level, elementwise((size,)), {"x": x})


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"]
)
def test_maps_of_every_dtype(lowered: Lowered, level: str, dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.random.default_rng(1).integers(0, 9, 2063).astype(kind)
    same_bits(lowered, level, elementwise((2063,), dtype), {"x": x})


@pytest.mark.parametrize(("count", "size"), [(1, 300), (7, 61), (16, 64), (23, 101), (300, 2)])
@pytest.mark.parametrize("chain", [rows, light_rows])
def test_rows(
    lowered: Lowered, level: str, count: int, size: int, chain: Callable[[int, int], ost.Graph]
) -> None:
    x = np.random.default_rng(size).standard_normal((count, size)).astype(np.float32)
    graph = chain(count, size)
    streamed = lowered(graph, level, TINY)({"x": x})
    plain = lowered(graph, level, TINY, streaming_stores=False)({"x": x})
    assert streamed[0].tobytes() == plain[0].tobytes()


@pytest.mark.parametrize(
    ("chain", "way"), [(rows, "fetches the line"), (light_rows, "past the caches")]
)
def test_outputs_begin_anywhere(chain: Callable[[int, int], ost.Graph], way: str) -> None:
    count, size = 64, 1 + TargetSpec.host().caches.second // 8  # as large as 32 caches, and a bit
    graph = chain(count, size)
    x = np.random.default_rng(2).standard_normal((count, size)).astype(np.float32)
    session = ost.Session("cpu", threads=2)
    streamed = session.compile(graph)
    assert way in str(streamed.plan.kernels[-1].loops)
    options = ost.CompileOptions(streaming_stores=False)
    (expected,) = session.compile(graph, options=options).run({"x": x})
    room = np.empty(count * size + 32, np.float32)
    for shift in range(0, 64, 4):
        room[:] = 7.0
        first = (-room.ctypes.data % 64 + shift) // 4
        end = first + count * size
        streamed.run({"x": x}, out=[room[first:end].reshape(count, size)])
        np.testing.assert_array_equal(room[first:end].reshape(count, size), expected)
        assert (room[:first] == 7).all()
        assert (room[end:] == 7).all()


def test_a_result_that_a_kernel_reads_stays_in_the_caches() -> None:
    g = ost.Graph("read")
    y = g.exp(g.input("x", (30, 50)))
    g.set_outputs([y, g.matmul(y, g.param("w", (50, 40)))])
    assert [nest.streamed for nest in nests(g) if len(nest.args) == 2] == [None]


def test_small_results_and_those_across_memory_are_not_streamed() -> None:
    assert [nest.streamed for nest in nests(elementwise((500,)), CacheSizes())] == [None]
    assert [nest.streamed for nest in nests(elementwise((500,)), streaming_stores=False)] == [None]
    assert [nest.streamed for nest in nests(elementwise((500,)), optimize=False)] == [None] * len(
        nests(elementwise((500,)), optimize=False)
    )


def test_lines_of_rows_that_take_long_are_fetched() -> None:
    (nest,) = nests(rows(64, 512))
    assert nest.streamed is None
    assert nest.fetched is not None
    target = replace(TargetSpec.host(), caches=TINY)
    text = assembly(render(nest, "kernel", target), target)
    assert ("prefetchw" in text) == target.triple.startswith("x86")
    assert "movnt" not in text
    (plain,) = nests(rows(64, 512), streaming_stores=False)
    assert plain.fetched is None
    assert "prefetchw" not in assembly(render(plain, "kernel", target), target)


def test_streams_are_fenced() -> None:
    target = replace(TargetSpec.host(), caches=TINY)
    (nest,) = nests(elementwise((512,)))
    text = assembly(render(nest, "kernel", target), target)
    if not target.has_streaming_stores:
        pytest.skip("no streaming stores here")
    assert "movnt" in text
    assert text.rindex("sfence") > text.rindex("movnt")
    (plain,) = nests(elementwise((512,)), streaming_stores=False)
    assert "movnt" not in assembly(render(plain, "kernel", target), target)

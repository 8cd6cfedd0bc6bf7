"""The kernel of packed experts: every level, guard pages, prefetching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.rules.grouped_gemm import GroupedGemm
from ostinato.errors import DeviceUnavailableError
from ostinato.ops.packed.formats import FORMATS
from ostinato.ops.packed_experts import PACKED_GROUPED_BLOCK_MATMUL
from tests.packed_blocks import random_blocks

Array = np.ndarray[Any, Any]
Lowered = Callable[[ost.Graph, str], Any]

LEVELS = ("host", "avx512", "avx2", "sse2")

COMPUTED = [name for name, form in FORMATS.items() if form.computed]

#: Rows, experts, blocks and columns.
SIZES = [(1, 1, 1, 1), (3, 5, 2, 17), (29, 2, 1, 33), (11, 3, 3, 64)]


def operands(name: str, rows: int, experts: int, blocks: int, columns: int) -> dict[str, Array]:
    form, rng = FORMATS[name], np.random.default_rng(rows + columns)
    w = random_blocks(rng, name.removeprefix("gguf:"), experts * columns * blocks, hard=False)
    return {
        "x": rng.standard_normal((rows, blocks * form.size)).astype(np.float32),
        "w": w.reshape(experts, columns, -1),
        "ids": rng.integers(0, experts, rows),
    }


def graph(name: str, arrays: dict[str, Array]) -> ost.Graph:
    g = ost.Graph("experts")
    x, ids = (g.input(key, arrays[key].shape, arrays[key].dtype) for key in ("x", "ids"))
    product = g.packed_grouped_matmul(x, g.param("w", arrays["w"].shape, "uint8"), ids, name)
    g.set_outputs([product, g.silu(product) * 2.0])
    return g


@pytest.mark.parametrize(
    ("name", "level"),
    [
        pytest.param(
            name,
            level,
            # Each format by the host's level, every second by one other; the rest is for make
            # test-slow.
            marks=[]
            if level == "host" or (n % 2 == 0 and level == LEVELS[1 + n // 2 % 3])
            else [pytest.mark.slow],
        )
        for n, name in enumerate(COMPUTED)
        for level in LEVELS
    ],
)
def test_levels(name: str, level: str) -> None:
    start = COMPUTED.index(name) % 2  # half of the sizes with each format
    for sizes in SIZES[start::2] if level == "host" else SIZES[1 + start :][:1]:
        arrays = operands(name, *sizes)
        g, params = graph(name, arrays), {"w": arrays.pop("w")}
        options = ost.CompileOptions(target=level, verify=True)
        try:
            compiled = ost.Session("cpu", threads=2).compile(g, params, options=options)
        except DeviceUnavailableError as error:
            pytest.skip(str(error))
        truth = ost.reference.evaluate(g, arrays, params)
        for actual, expected in zip(compiled.run(arrays), truth, strict=True):
            scale = np.abs(expected).max()
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("name", ["gguf:q4_0", "gguf:q5_k", "gguf:mxfp4"])
def test_between_guard_pages(lowered: Lowered, name: str) -> None:
    form = FORMATS[name]
    arrays = operands(name, 7, 3, 2, 19)
    q = np.random.default_rng(0).integers(-127, 128, arrays.pop("x").shape, np.int8)
    arrays["q"], arrays["scales"] = q, np.full((7, 2), 0.01, np.float32)
    arrays["sums"] = q.reshape(7, -1, form.group).sum(-1, dtype=np.int32)
    g = ost.Graph("blocks")
    left = [g.input(key, arrays[key].shape, arrays[key].dtype) for key in ("q", "scales", "sums")]
    w, ids = g.param("w", arrays["w"].shape, "uint8"), g.input("ids", (7,), "int64")
    g.set_outputs(g.apply(PACKED_GROUPED_BLOCK_MATMUL, [*left, w, ids], {"format": name}))
    ready = lowered(g, "host")
    assert [type(kernel) for kernel in ready.kernels].count(GroupedGemm) == 1
    (actual,) = ready(arrays)
    params = {"w": arrays.pop("w")}
    (expected,) = ost.reference.evaluate(g, arrays, params)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["gguf:q4_k", "gguf:q8_0"])
def test_prefetching_changes_no_bit(name: str) -> None:
    arrays = operands(name, 9, 2, 2048 // FORMATS[name].size, 520)
    w = arrays.pop("w")
    found = []
    for on in (True, False):
        options = ost.CompileOptions(prefetch=on)
        g = graph(name, {**arrays, "w": w})
        compiled = ost.Session("cpu", threads=1).compile(g, {"w": w}, options=options)
        (kernel,) = (k for k in compiled.plan.kernels if "grouped" in k.name)
        assert ("prefetch" in kernel.loops) == on
        found.append(compiled.run(arrays)[0])
    np.testing.assert_array_equal(*found)


def test_weights_stay_packed() -> None:
    """One row reads hardly more than the blocks of its expert."""
    name = "gguf:q4_0"
    arrays = operands(name, 1, 4, 1024 // FORMATS[name].size, 128)
    w = arrays.pop("w")
    compiled = ost.Session("cpu", threads=1).compile(graph(name, {**arrays, "w": w}), {"w": w})
    compiled.run(arrays)
    (read,) = [p.bytes for p in compiled.plan.execute_profiled() if "grouped" in p.name]
    assert w[0].nbytes <= read <= w[0].nbytes + 8192

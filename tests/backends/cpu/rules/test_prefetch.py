"""Matmuls that prefetch their panels against those that do not: the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import processor_facts
from ostinato.backends.cpu.caches import CacheSizes, caches_in
from ostinato.backends.cpu.capabilities import lowering_options
from ostinato.backends.cpu.llvm import render
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, assembly
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.prefetch import Prefetch
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.backends.cpu.work_items import work_items
from ostinato.lower.loopir.text import kernel_text
from ostinato.records import replace
from tests.backends.cpu.levels import across_levels
from tests.pairwise import every_second

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

#: So small that matmuls of a few kilobytes come from memory, in several blocks.
SMALL = CacheSizes(first=32 << 10, second=8 << 10)

SIZES = [
    (1, 101, 200), (6, 97, 130), (7, 64, 300), (8, 256, 96), (9, 131, 97), (13, 300, 48),
    (16, 257, 193), (17, 128, 64), (31, 113, 80), (40, 512, 33), (65, 149, 65), (67, 90, 1),
]  # fmt: skip


def expect_strips(monkeypatch: pytest.MonkeyPatch, *, faster: bool) -> None:
    """Give the trials of strips a result."""
    for trial in ("strips_are_faster", "row_strips_are_faster"):
        monkeypatch.setattr(processor_facts, trial, lambda: faster)


@pytest.fixture(autouse=True)
def whole_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels are in strips where a test says so, whatever this machine would find."""
    expect_strips(monkeypatch, faster=False)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 100, shape).astype(dtype)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return rng.standard_normal(shape).astype(kind)


def product(m: int, k: int, n: int, x: str, w: str | None = None) -> tuple[ost.Graph, Array, Array]:
    rng = np.random.default_rng(m + k + n)
    left, weight = numbers(rng, (m, k), x), numbers(rng, (k, n), w or x)
    g = ost.Graph("product")
    right = g.param("w", weight.shape, w or x)
    if w is not None and x != w:
        right = g.cast(right, x)
    g.set_outputs([g.relu(g.matmul(g.input("x", (m, k), x), right))])
    return g, left, weight


def gemms(graph: ost.Graph, caches: CacheSizes = SMALL, **options: Any) -> list[Gemm]:
    target = replace(TargetSpec.host(), caches=caches)
    program, _ = lower_for_cpu(graph, lowering_options(ost.CompileOptions(**options), target))
    return [kernel for kernel in program.kernels if isinstance(kernel, Gemm)]


@pytest.mark.parametrize(("level", "sizes"), across_levels(SIZES), indirect=["level"])
def test_same_bits(lowered: Lowered, level: str, sizes: tuple[int, int, int]) -> None:
    graph, x, w = product(*sizes, "float32")
    data = {"x": x, "w": w}
    (ahead,) = lowered(graph, level, SMALL)(data)
    (plain,) = lowered(graph, level, SMALL, prefetch=False)(data)
    np.testing.assert_array_equal(ahead, plain)
    (expected,) = ost.reference.evaluate(graph, {"x": x}, {"w": w})
    np.testing.assert_allclose(ahead, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    every_second(
        [1, 2, 3, 5, 8, 9, 16, 21, 40, 128],
        [(1, 20), (203, 15), (203, 131), (512, 48), (768, 81)],
    ),
)
def test_same_bits_in_strips(
    lowered: Lowered, rows: int, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, columns = sizes
    if TargetSpec.host().vector_bytes < 32:
        pytest.skip("no vectors of half a line here")
    graph, x, w = product(rows, depth, columns, "float32")
    data = {"x": x, "w": w}
    expect_strips(monkeypatch, faster=True)
    for level in ("avx2", "avx512")[: TargetSpec.host().vector_bytes // 32]:
        (ahead,) = lowered(graph, level, SMALL)(data)
        (plain,) = lowered(graph, level, SMALL, prefetch=False)(data)
        np.testing.assert_array_equal(ahead, plain)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(
    ("x", "w"),
    [("float64", None), ("float32", "bfloat16"), ("bfloat16", None), ("float32", "float16")],
)
def test_same_bits_in_strips_of_every_width(
    lowered: Lowered, x: str, w: str | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_strips(monkeypatch, faster=True)
    graph, left, weight = product(rows, 203, 67, x, w)
    data = {"x": left, "w": weight}
    (ahead,) = lowered(graph, "host", SMALL)(data)
    (plain,) = lowered(graph, "host", SMALL, prefetch=False)(data)
    assert ahead.tobytes() == plain.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_same_bits_in_strips_of_any_number_of_rows(
    lowered: Lowered, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    g, weight = ost.Graph("product"), numbers(rng, (203, 330), dtype)
    x = g.input("x", (ost.Variable("rows", 1, 40), 203))
    g.set_outputs([g.matmul(x, g.cast(g.param("w", weight.shape, dtype), "float32"))])
    results = []
    for faster in (True, False):
        expect_strips(monkeypatch, faster=faster)
        (gemm,) = gemms(g)
        narrow = 2 * TargetSpec.host().vector_bytes < SMALL.line
        assert (gemm.strip < gemm.panel) is (faster and not narrow)
        results.append(lowered(g, "host", SMALL))
    for rows in (1, 5, 16, 40):
        data = {"x": rng.standard_normal((rows, 203)).astype(np.float32), "w": weight}
        strips, whole = (found(data, rows=rows)[0] for found in results)
        np.testing.assert_array_equal(strips, whole)


@pytest.mark.parametrize("faster", [True, False])
def test_strips_are_of_few_rows(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_strips(monkeypatch, faster=faster)

    def strips(rows: int, caches: CacheSizes = SMALL, **options: Any) -> bool:
        (gemm,) = gemms(product(rows, 300, 200, "float32")[0], caches, **options)
        return gemm.strip < gemm.panel

    on = faster and 2 * TargetSpec.host().vector_bytes >= SMALL.line
    assert [strips(rows) for rows in (1, 2, 8, 9, 16, 17)] == [*[on] * 5, False]
    monkeypatch.setattr(processor_facts, "row_strips_are_faster", lambda: not faster)
    assert strips(1) is (2 * TargetSpec.host().vector_bytes >= SMALL.line and not faster)
    assert not strips(8, CacheSizes(second=8 << 20))
    assert not strips(8, prefetch=False)
    assert not strips(8, optimize=False)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ("float64", None), ("float16", None), ("bfloat16", None), ("int32", None), ("int64", None),
        ("uint8", None), ("float32", "float16"), ("float32", "bfloat16"),
    ],
)  # fmt: skip
def test_same_bits_in_every_dtype(lowered: Lowered, level: str, x: str, w: str | None) -> None:
    for sizes in ((8, 200, 67), (19, 203, 110)):
        graph, left, weight = product(*sizes, x, w)
        data = {"x": left, "w": weight}
        (ahead,) = lowered(graph, level, SMALL)(data)
        (plain,) = lowered(graph, level, SMALL, prefetch=False)(data)
        assert ahead.tobytes() == plain.tobytes()


@pytest.mark.parametrize(("level", "rows"), across_levels([1, 8, 9, 21]), indirect=["level"])
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_same_bits_in_bytes(lowered: Lowered, level: str, format: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    g = ost.Graph("bytes")
    data = {"x": numbers(rng, (rows, 160), "int8")}
    x = g.input("x", (rows, 160), "int8")
    if format == "int8":
        data["w"] = numbers(rng, (160, 96), "int8")
        g.set_outputs([g.integer_matmul(x, g.param("w", (160, 96), "int8"))])
    else:
        data |= {
            "xs": numbers(rng, (rows, 5), "float32"),
            "w": numbers(rng, (80, 96), "uint8"),
            "ws": numbers(rng, (5, 96), "float32"),
        }
        scales = g.input("xs", (rows, 5)), g.param("w", (80, 96), "uint8"), g.param("ws", (5, 96))
        g.set_outputs([g.blockwise_matmul(x, *scales, group=32)])
    (ahead,) = lowered(g, level, SMALL)(data)
    (plain,) = lowered(g, level, SMALL, prefetch=False)(data)
    np.testing.assert_array_equal(ahead, plain)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_same_bits_in_convolutions(lowered: Lowered, level: str, kernel: int, stride: int) -> None:
    rng = np.random.default_rng(kernel + stride)
    g = ost.Graph("convolution")
    x, w = (
        numbers(rng, (2, 130, 11, 7), "float32"),
        numbers(rng, (70, 130, kernel, kernel), "float32"),
    )
    g.set_outputs([g.conv(g.input("x", x.shape), g.param("w", w.shape), stride=stride)])
    (ahead,) = lowered(g, level, SMALL, winograd=False)({"x": x, "w": w})
    (plain,) = lowered(g, level, SMALL, winograd=False, prefetch=False)({"x": x, "w": w})
    np.testing.assert_array_equal(ahead, plain)


@pytest.mark.parametrize("turned", [False, True])
def test_same_bits_in_batches(lowered: Lowered, level: str, turned: bool) -> None:
    rng = np.random.default_rng(6)
    g = ost.Graph("batches")
    x, w = numbers(rng, (3, 21, 200), "float32"), numbers(rng, (3, 200, 67), "float32")
    y = g.matmul(g.input("x", x.shape), g.input("w", w.shape))
    g.set_outputs([g.permute_dims(y, (0, 2, 1)) if turned else y])
    (ahead,) = lowered(g, level, SMALL)({"x": x, "w": w})
    (plain,) = lowered(g, level, SMALL, prefetch=False)({"x": x, "w": w})
    np.testing.assert_array_equal(ahead, plain)


def test_same_bits_where_rows_are_symbolic(lowered: Lowered, level: str) -> None:
    rows = ost.Variable("rows", 0, 30)
    g = ost.Graph("symbolic")
    g.set_outputs([g.matmul(g.input("x", (rows, 150)), g.param("w", (150, 70)))])
    rng = np.random.default_rng(3)
    w = numbers(rng, (150, 70), "float32")
    sides = [lowered(g, level, SMALL, prefetch=on) for on in (True, False)]
    for count in (0, 1, 6, 7, 8, 15, 30):
        x = numbers(rng, (count, 150), "float32")
        (ahead,), (plain,) = (side({"x": x, "w": w}, rows=count) for side in sides)
        np.testing.assert_array_equal(ahead, plain)


def test_same_bits_with_shared_epilogues_and_mixed_forms(lowered: Lowered, level: str) -> None:
    rng = np.random.default_rng(5)
    g = ost.Graph("gate")
    x = g.input("x", (19, 160))
    gate, up = numbers(rng, (160, 96), "float32"), numbers(rng, (160, 96), "bfloat16")
    wide = g.cast(g.param("up", up.shape, "bfloat16"), "float32")
    unit = g.silu(g.matmul(x, g.param("gate", gate.shape))) * g.matmul(x, wide)
    g.set_outputs([unit])
    data = {"x": numbers(rng, (19, 160), "float32"), "gate": gate, "up": up}
    (ahead,) = lowered(g, level, SMALL)(data)
    (plain,) = lowered(g, level, SMALL, prefetch=False)(data)
    np.testing.assert_array_equal(ahead, plain)


@pytest.mark.parametrize("rows", [1, 7, 40, 67])
def test_same_bits_by_expert(lowered: Lowered, level: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    g = ost.Graph("experts")
    x, ids = g.input("x", (rows, 70)), g.input("ids", (rows,), "int64")
    g.set_outputs([g.grouped_matmul(x, g.param("w", (3, 70, 65)), ids)])
    data = {
        "x": numbers(rng, (rows, 70), "float32"),
        "w": numbers(rng, (3, 70, 65), "float32"),
        "ids": rng.integers(0, 2, rows),
    }
    (ahead,) = lowered(g, level, SMALL)(data)
    (plain,) = lowered(g, level, SMALL, prefetch=False)(data)
    np.testing.assert_array_equal(ahead, plain)


def test_rows_out_of_use_stay_out(lowered: Lowered) -> None:
    """Blocks of ``k`` and sums that go on have no part in which rows are computed."""
    graph, x, w = product(24, 512, 100, "float32")
    compiled = ost.Session("cpu", threads=1).compile(graph, params={"w": w})
    whole = compiled.run({"x": x})[0]
    with compiled.active_extent(9, 24):
        part = compiled.run({"x": x})[0]
    np.testing.assert_array_equal(part[:9], whole[:9])


def test_blocks_where_several_tiles_share_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_facts, "few_rows_prefetch", lambda: True)
    (several,) = gemms(product(32, 512, 96, "float32")[0])
    (one,) = gemms(product(several.rows, 512, 96, "float32")[0])
    assert one.fetch is not None
    assert one.depth_block is None
    assert several.depth_block is not None
    block = several.depth_block * several.panel * several.b_dtype.itemsize
    assert block <= SMALL.first // 2
    assert several.fetching_tiles == several.item_tiles > 1


def test_many_rows_that_share_a_panel_do_not_wait_for_it() -> None:
    (many,) = gemms(product(300, 512, 96, "float32")[0])
    # So many rows that all panels pass by each block of them.
    (streaming,) = gemms(product(1024, 512, 96, "float32")[0])
    assert many.fetch is None
    assert streaming.fetch is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_symbolic_number_of_rows_may_be_small(dtype: str) -> None:
    """Up to 512 rows: tiles of a few rows and more prefetch, with the same bits."""
    rng = np.random.default_rng(3)
    x, w = numbers(rng, (40, 1024), "float32"), numbers(rng, (1024, 320), dtype)
    found = []
    for on in (True, False):
        g, rows = ost.Graph("rows"), ost.Variable("rows", 1, 512)
        given = g.input("x", (rows, 1024))
        g.set_outputs([g.matmul(given, g.cast(g.param("w", w.shape, dtype, value=w), "float32"))])
        options = ost.CompileOptions(prefetch=on, stored_programs=False)
        compiled = ost.Session("cpu").compile(g, options=options)
        (kernel,) = (kernel for kernel in compiled.plan.kernels if "matmul" in kernel.name)
        assert ("rows on" in kernel.loops) == on
        found.append(
            [compiled.run({"x": x[:count]})[0] for count in (1, 2, 4, 5, 6, 7, 8, 9, 16, 33)]
        )
    for ahead, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(ahead, plain)


def test_few_rows_and_resident_panels_are_left_to_the_hardware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor_facts, "few_rows_prefetch", lambda: False)
    (few,) = gemms(product(4, 512, 96, "float32")[0])
    (resident,) = gemms(product(32, 512, 96, "float32")[0], CacheSizes(second=1 << 30))
    (off,) = gemms(product(32, 512, 96, "float32")[0], prefetch=False)
    (plain,) = gemms(product(32, 512, 96, "float32")[0], optimize=False)
    assert few.fetch is resident.fetch is off.fetch is plain.fetch is None


@pytest.mark.parametrize("rows", [8, 32])
def test_lines_are_fetched_into_both_caches(rows: int, level: str) -> None:
    target = replace(TargetSpec.named(level), caches=SMALL)
    settings = lowering_options(ost.CompileOptions(), target)
    program, _ = lower_for_cpu(product(rows, 512, 96, "float32")[0], settings)
    (gemm,) = (kernel for kernel in program.kernels if isinstance(kernel, Gemm))
    text = assembly(render(gemm, "kernel", target), target)
    assert "prefetcht1" in text
    assert "prefetcht0" in text


@pytest.mark.parametrize(
    "caches", [CacheSizes(32 << 10, 1 << 20), CacheSizes(48 << 10, 2 << 20)], ids=str
)
def test_all_rows_go_over_a_panel_block_by_block(caches: CacheSizes) -> None:
    """One item has all rows where there are panels enough for all threads."""
    for rows in (16, 32, 128):
        (gemm,) = gemms(product(rows, 512, 8192, "float32")[0], caches)
        assert gemm.block == -(-rows // gemm.rows) * gemm.rows
        assert gemm.depth_block is not None
        block = gemm.depth_block * gemm.panel * 4
        assert block <= 4 * caches.first
    (narrow,) = gemms(product(128, 4096, 10 * gemm.panel, "float32")[0], caches)
    assert narrow.block < 128  # ten panels alone would be few items


@pytest.mark.parametrize(
    ("threads", "rows", "items"),
    [(1, 128, 16), (2, 128, 16), (4, 64, 32), (8, 32, 64), (64, 32, 64)],
)
def test_the_fewer_threads_the_larger_items(threads: int, rows: int, items: int) -> None:
    graph, _, _ = product(128, 768, 768, "float32")
    target = replace(TargetSpec.host(), vector_bytes=64, caches=CacheSizes(48 << 10, 2 << 20))
    settings = lowering_options(ost.CompileOptions(), target, items=work_items(threads))
    program, _ = lower_for_cpu(graph, settings)
    (gemm,) = (kernel for kernel in program.kernels if isinstance(kernel, Gemm))
    assert (gemm.block, gemm.extent) == (rows, items)
    assert f"in items of {rows}\n" in kernel_text(gemm)


def test_items_of_any_size_give_the_same_bits() -> None:
    graph, x, w = product(150, 771, 800, "float32")
    results = [
        ost.Session("cpu", threads=threads).compile(graph, params={"w": w}).run({"x": x})[0]
        for threads in (1, 4, 8)
    ]
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_blocks_are_of_one_size_where_they_can_be() -> None:
    fetch = Prefetch(CacheSizes(32 << 10, 1 << 20), 64)
    assert fetch.block_steps(4096, 4096 * 192, 3 << 10) == 512
    assert fetch.block_steps(768, 768 * 192, 3 << 10) == 384
    assert fetch.block_steps(997, 997 * 192, 3 << 10) == 504
    assert fetch.block_steps(0, 0, 0) > 0
    larger = Prefetch(CacheSizes(48 << 10, 2 << 20), 64)
    assert larger.block_steps(4096, 4096 * 192, 3 << 10) == 96  # 3/8 of a first-level cache
    assert larger.block_steps(768, 768 * 192, 3 << 10) == 96
    assert larger.block_steps(4096, 4096 * 192, 24 << 10) == 512  # sums have that
    assert larger.block_steps(784, 784 * 128, 3 << 10) == 160  # seven blocks of 112 are too short


@pytest.mark.parametrize("sizes", [(3, 40, 65), (40, 900, 70), (300, 130, 96)])
def test_experts_in_blocks_give_the_same_bits(
    lowered: Lowered, level: str, sizes: tuple[int, int, int]
) -> None:
    rows, depth, columns = sizes
    rng = np.random.default_rng(rows)
    g = ost.Graph("experts")
    x, ids = g.input("x", (rows, depth)), g.input("ids", (rows,), "int64")
    g.set_outputs([g.grouped_matmul(x, g.param("w", (4, depth, columns)), ids)])
    data = {
        "x": numbers(rng, (rows, depth), "float32"),
        "w": numbers(rng, (4, depth, columns), "float32"),
        "ids": rng.integers(0, 3, rows) % 2,
    }
    (ahead,) = lowered(g, level, SMALL)(data)
    (plain,) = lowered(g, level, SMALL, prefetch=False)(data)
    np.testing.assert_array_equal(ahead, plain)


# -- caches ----------------------------------------------------------------------------------------


def described(folder: Path, *caches: tuple[str, str, str, str]) -> Path:
    for number, (level, kind, size, shared) in enumerate(caches):
        place = folder / f"index{number}"
        place.mkdir()
        for name, text in (
            ("level", level), ("type", kind), ("size", size),
            ("shared_cpu_list", shared), ("coherency_line_size", "64"),
        ):  # fmt: skip
            (place / name).write_text(f"{text}\n")
    return folder


def test_caches_are_read_from_the_system(tmp_path: Path) -> None:
    folder = described(
        tmp_path,
        ("1", "Data", "48K", "0"),
        ("1", "Instruction", "32K", "0"),
        ("2", "Unified", "2M", "0,64"),
        ("3", "Unified", "105M", "0-95"),
    )
    assert caches_in(folder) == CacheSizes(48 << 10, 2 << 20, 64)


def test_a_cache_of_several_cores_is_shared_among_them(tmp_path: Path) -> None:
    folder = described(tmp_path, ("1", "Data", "64K", "0"), ("2", "Unified", "4096K", "0-3"))
    assert caches_in(folder) == CacheSizes(64 << 10, 1 << 20, 64)


@pytest.mark.parametrize("entry", [("1", "Data", "?", "0"), ("1", "Data", "48K", "")])
def test_what_is_not_said_has_defaults(tmp_path: Path, entry: tuple[str, str, str, str]) -> None:
    assert caches_in(tmp_path / "none") == CacheSizes()
    assert caches_in(described(tmp_path, entry)) == CacheSizes()


def test_caches_are_part_of_what_code_is_kept_under() -> None:
    host = TargetSpec.host()
    assert replace(host, caches=SMALL).identity != host.identity


# -- huge pages ------------------------------------------------------------------------------------

HUGE = 2 << 20


def huge_bytes(address: int) -> int:
    """Bytes on huge pages of the mapping that holds ``address``."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no mapping holds {address:#x}")


def huge_pages_are_given() -> bool:
    """Whether the system has them, and enough free memory in one piece for those of this test."""
    try:
        mode = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        defrag = Path("/sys/kernel/mm/transparent_hugepage/defrag").read_text()
    except OSError:
        return False
    return "[never]" not in mode and "[never]" not in defrag and "[defer]" not in defrag


@pytest.mark.skipif(not huge_pages_are_given(), reason="this system gives no huge pages at once")
def test_weights_lie_on_huge_pages() -> None:
    g = ost.Graph("large")
    w = np.ones((1024, 2048), np.float32)
    g.set_outputs([g.matmul(g.input("x", (8, 1024)), g.param("w", w.shape))])
    shared = ost.Session("cpu", threads=1).compile(g, params={"w": w})
    written = shared.clone()
    written.set_param("w", 2 * w)  # a copy of the block: no longer shared
    for compiled in (shared, written):
        address = compiled._execution.executable.memory.weights.block.memory.address
        assert address % HUGE == 0
        assert huge_bytes(address) >= w.nbytes // 2

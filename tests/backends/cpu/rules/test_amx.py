"""Matmuls in the tile registers of AMX: their code as it is, and run with AMX emulated."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import _core, host
from ostinato.backends.cpu.capabilities import CAPABILITIES, lowering_options
from ostinato.backends.cpu.llvm import render
from ostinato.backends.cpu.llvm.amx_tiles import configuration
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, assembly
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.multi_gemm import MultiGemm
from ostinato.backends.cpu.rules.table import lower_for_cpu
from ostinato.dtypes import DType
from ostinato.passes.pipeline import run_passes
from ostinato.records import replace
from tests.backends.cpu.rules.amx_emulation import EMULATED, FEATURES, HOST, Amx

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]
BF16 = np.dtype(ml_dtypes.bfloat16)

SAPPHIRE_RAPIDS = replace(HOST, cpu="sapphirerapids", features=f"-prefer-256-bit,{FEATURES}")

needs_avx512 = pytest.mark.skipif(not HOST.has_avx512, reason="this processor has no AVX-512")

#: Rows, depth and columns: ones, primes, and both sides of the edges of tiles.
SIZES = [
    (8, 1, 2), (8, 32, 16), (9, 33, 17), (11, 5, 70), (16, 64, 64), (17, 63, 31), (31, 96, 33),
    (32, 65, 48), (33, 31, 130), (47, 2, 20), (49, 129, 65), (97, 67, 5), (130, 3, 40),
]  # fmt: skip
BYTES = [*itertools.product(("int8", "uint8"), repeat=2)]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Values of which many are the extreme ones, if they are bytes."""
    rng = np.random.default_rng(seed)
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(BF16)
    info = np.iinfo(dtype)
    array = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    extreme = rng.random(shape)
    array[extreme < 0.2], array[extreme > 0.8] = info.min, info.max
    return array


def matmul(
    m: ost.Variable | int, k: int, n: int, left: str = "bfloat16", right: str = "bfloat16"
) -> ost.Graph:
    g = ost.Graph("matmul")
    x, w = g.input("x", (m, k), left), g.param("w", (k, n), right)
    g.set_outputs([g.relu(g.matmul(x, w) if left == "bfloat16" else g.integer_matmul(x, w))])
    return g


def emulated(
    lowered: Lowered, graph: ost.Graph, data: dict[str, Array], **variables: int
) -> tuple[list[Array], Amx]:
    """The outputs, and the emulation that computed them."""
    amx = Amx()
    run = lowered(graph, EMULATED, rewrite=amx.rewritten, amx=True)
    assert any(isinstance(k, Gemm) and k.amx for k in run.kernels) or any(
        isinstance(k, MultiGemm) and k.first.amx for k in run.kernels
    )
    outputs = run(data, **variables)
    amx.check()
    return outputs, amx


def close(got: Array, want: Array) -> None:
    mine, truth = (a.astype(np.float64) for a in (got, want))
    np.testing.assert_allclose(mine, truth, rtol=2e-2, atol=2e-2)


# -- results ---------------------------------------------------------------------------------------


@needs_avx512
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_bfloat16(lowered: Lowered, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    data = {"x": numbers((m, k), "bfloat16"), "w": numbers((k, n), "bfloat16", 1)}
    graph = matmul(m, k, n)
    (got,), amx = emulated(lowered, graph, data)
    (want,) = ost.reference.evaluate(graph, {"x": data["x"]}, {"w": data["w"]})
    close(got, want)
    assert amx.executed["tdpbf16ps"]


@needs_avx512
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_dot_products_that_are_wanted(lowered: Lowered, rows: int) -> None:
    """Of any number of rows, with float32 results; a row has the same bits among any others."""
    if not HOST.has_bfloat16_dots:
        pytest.skip("this processor has no dot products of bfloat16")
    g = ost.Graph("dots")
    x, w = numbers((40, 100), "bfloat16")[:rows], numbers((100, 70), "bfloat16", 1)
    left, right = g.input("x", x.shape, "bfloat16"), g.param("w", w.shape, "bfloat16")
    g.set_outputs([g.widening_matmul(left, right)])
    amx = Amx()
    run = lowered(g, EMULATED, rewrite=amx.rewritten, bfloat16_dots=True)
    (got,) = run({"x": x, "w": w})
    amx.check()
    assert amx.executed["tdpbf16ps"]
    assert got.dtype == np.float32
    wide = [array.astype(np.float64) for array in (x, w)]
    np.testing.assert_allclose(got, wide[0] @ wide[1], rtol=1e-5, atol=1e-4)
    again = lowered(g, EMULATED, rewrite=amx.rewritten, bfloat16_dots=True)({"x": x[::-1], "w": w})
    np.testing.assert_array_equal(again[0][::-1], got)


@needs_avx512
@pytest.mark.parametrize("dtypes", BYTES, ids="-".join)
def test_bytes_are_exact(lowered: Lowered, dtypes: tuple[str, str]) -> None:
    left, right = dtypes
    for m, k, n in SIZES[:: 1 if left != right else 3]:
        data = {"x": numbers((m, k), left), "w": numbers((k, n), right, 1)}
        (got,), amx = emulated(lowered, matmul(m, k, n, left, right), data)
        want = data["x"].astype(np.int64) @ data["w"].astype(np.int64)
        np.testing.assert_array_equal(got, np.maximum(want, 0).astype(np.int32))
        assert amx.executed[f"tdpb{left[0].replace('i', 's')}{right[0].replace('i', 's')}d"]


@needs_avx512
@pytest.mark.parametrize("sizes", [(0, 5, 20), (9, 0, 20), (9, 5, 0)])
def test_nothing_to_do(lowered: Lowered, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    amx = Amx()
    graph = matmul(m, k, n)
    run = lowered(graph, EMULATED, rewrite=amx.rewritten, amx=True)
    (got,) = run({"x": numbers((m, k), "bfloat16"), "w": numbers((k, n), "bfloat16")})
    amx.check()
    assert got.shape == (m, n)
    assert not got.astype(np.float32).any()


@needs_avx512
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 31, 32, 33, 70])
def test_symbolic_rows(lowered: Lowered, rows: int) -> None:
    graph = matmul(ost.Variable("rows", 0, 70), 35, 70)
    data = {"x": numbers((rows, 35), "bfloat16"), "w": numbers((35, 70), "bfloat16", 1)}
    (got,), _ = emulated(lowered, graph, data, rows=rows)
    close(got, np.maximum(data["x"].astype(np.float64) @ data["w"].astype(np.float64), 0))


@needs_avx512
def test_a_row_has_the_same_bits_among_any_others(lowered: Lowered) -> None:
    x, w = numbers((70, 45), "bfloat16"), numbers((45, 33), "bfloat16", 1)
    graph = matmul(ost.Variable("rows", 0, 70), 45, 33)
    (whole,), _ = emulated(lowered, graph, {"x": x, "w": w}, rows=70)
    for rows in (1, 20, 33):
        (some,), _ = emulated(lowered, graph, {"x": x[:rows], "w": w}, rows=rows)
        assert some.tobytes() == whole[:rows].tobytes()


@needs_avx512
@pytest.mark.parametrize("depth", [1, 31, 33])
def test_no_row_reads_another(lowered: Lowered, depth: int) -> None:
    """Nor do products with what is beyond the last position of ``k`` count."""
    x, w = numbers((40, depth), "bfloat16"), numbers((depth, 40), "bfloat16", 1)
    clean, _ = emulated(lowered, matmul(40, depth, 40), {"x": x, "w": w})
    x[1::2], w[:, 7] = np.nan, np.inf
    (got,), _ = emulated(lowered, matmul(40, depth, 40), {"x": x, "w": w})
    kept = [column for column in range(40) if column != 7]
    np.testing.assert_array_equal(got[::2, kept], clean[0][::2, kept])


@needs_avx512
def test_rows_apart_and_rows_that_are_copied(lowered: Lowered) -> None:
    """A slice of wider rows is read where it is; what is transposed is copied first."""
    x, w = numbers((90, 40), "bfloat16"), numbers((35, 33), "bfloat16", 1)
    for transposed in (False, True):
        g = ost.Graph("views")
        part = g.slice(g.input("x", x.shape, "bfloat16"), (3, 2), (38, 37))
        left = g.permute_dims(part, (1, 0)) if transposed else part
        g.set_outputs([g.matmul(left, g.param("w", w.shape, "bfloat16"))])
        (got,), _ = emulated(lowered, g, {"x": x, "w": w})
        taken = x[3:38, 2:37].astype(np.float64)
        close(got, (taken.T if transposed else taken) @ w.astype(np.float64))


@needs_avx512
@pytest.mark.parametrize("rows", [9, 45])
def test_results_stored_along_rows(lowered: Lowered, rows: int) -> None:
    x, w = numbers((rows, 35), "bfloat16"), numbers((35, 50), "bfloat16", 1)
    g = ost.Graph("transposed")
    y = g.matmul(g.input("x", x.shape, "bfloat16"), g.param("w", w.shape, "bfloat16"))
    g.set_outputs([g.permute_dims(y, (1, 0))])
    (got,), _ = emulated(lowered, g, {"x": x, "w": w})
    close(got, (x.astype(np.float64) @ w.astype(np.float64)).T)


@needs_avx512
def test_epilogues_and_siblings(lowered: Lowered) -> None:
    x = numbers((3, 19, 50), "bfloat16")
    g = ost.Graph("fused")
    left = g.input("x", x.shape, "bfloat16")
    weights = {
        name: numbers((50, n), "bfloat16", n)
        for name, n in (("gate", 96), ("up", 96), ("other", 20))
    }
    gate, up, other = (
        g.matmul(left, g.param(name, w.shape, "bfloat16")) for name, w in weights.items()
    )
    g.set_outputs([g.silu(gate) * up, other])
    outputs, amx = emulated(lowered, g, {"x": x, **weights})
    for got, want in zip(outputs, ost.reference.evaluate(g, {"x": x}, weights), strict=True):
        close(got, want)
    assert len({*amx.configurations}) == 2, "57 rows are 32 and 25"


@needs_avx512
def test_whole_numbers_are_as_without_tiles(lowered: Lowered) -> None:
    rng = np.random.default_rng(4)
    data = {
        name: rng.integers(-8, 9, shape).astype(BF16)
        for name, shape in (("x", (37, 61)), ("w", (61, 50)))
    }
    graph = matmul(37, 61, 50)
    (got,), _ = emulated(lowered, graph, data)
    (plain,) = lowered(graph, "host")(data)
    np.testing.assert_array_equal(got, plain)


@needs_avx512
@pytest.mark.parametrize("dtypes", BYTES, ids="-".join)
def test_zero_points(lowered: Lowered, dtypes: tuple[str, str]) -> None:
    """Quantised matmuls are matmuls of bytes less what the zero points come to."""
    x, w = numbers((2, 19, 70), dtypes[0]), numbers((70, 33), dtypes[1], 1)
    g = ost.Graph("affine")
    a, b = g.input("x", x.shape, dtypes[0]), g.param("w", w.shape, dtypes[1])
    g.set_outputs([g.affine_matmul(a, b, 3, 7)])
    graph, _ = run_passes(g, capabilities=CAPABILITIES)
    (got,), amx = emulated(lowered, graph, {"x": x, "w": w})
    want = (x.astype(np.int64) - 3) @ (w.astype(np.int64) - 7)
    np.testing.assert_array_equal(got, want.astype(np.int32))
    assert amx.executed


# -- code ------------------------------------------------------------------------------------------


def gemm(graph: ost.Graph, target: TargetSpec, **options: Any) -> Gemm:
    program, _ = lower_for_cpu(graph, lowering_options(ost.CompileOptions(**options), target))
    (found,) = (kernel for kernel in program.kernels if isinstance(kernel, Gemm))
    return found


def code(kernel: Gemm, target: TargetSpec = SAPPHIRE_RAPIDS) -> str:
    return assembly(render(kernel, "kernel", target), target)


@needs_avx512
@pytest.mark.parametrize(
    ("dtypes", "instruction"),
    [
        (("bfloat16", "bfloat16"), "tdpbf16ps"),
        (("int8", "int8"), "tdpbssd"),
        (("int8", "uint8"), "tdpbsud"),
        (("uint8", "int8"), "tdpbusd"),
        (("uint8", "uint8"), "tdpbuud"),
    ],
    ids=lambda part: part if isinstance(part, str) else "-".join(part),
)
def test_the_loop(dtypes: tuple[str, str], instruction: str) -> None:
    """A step of the loop: a tile for each operand's part, a product for each pair, no spill."""
    text = code(gemm(matmul(64, 1024, 128, *dtypes), SAPPHIRE_RAPIDS, amx=True))
    loops = re.findall(r"(\.LBB\d+_\d+):\n((?:\t.*\n)*?\tj\w+\t\1\n)", text)
    (body,) = (lines for _, lines in loops if instruction in lines)
    used = [line.split("\t")[1] for line in body.splitlines()]
    assert used.count(instruction) == 4
    assert used.count("tileloadd") == 4
    assert "tilestored" not in used
    assert text.count("tilestored") == 4
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    assert "%rsp" not in body


@needs_avx512
@pytest.mark.parametrize("target", [SAPPHIRE_RAPIDS, EMULATED], ids=lambda target: target.cpu)
def test_instructions_stay_in_order(target: TargetSpec) -> None:
    """LLVM schedules nothing across tile registers, nor the copy of the last bytes of rows."""
    module = render(gemm(matmul(69, 1030, 128), target, amx=True), "kernel", target)
    calls = re.findall(r'call void @"llvm\.x86\.([lt]\w+)"\((.*)\)', str(module))
    wanted = [(name.removesuffix("64"), re.findall(r"i8 (\d)", text)) for name, text in calls]
    found: list[tuple[str, list[str]]] = []
    copied: list[int] = []
    for line in assembly(module, target).splitlines():
        if match := re.match(r"\t(ldtilecfg|tile\w+|tdp\w+)\b(.*)", line):
            registers = re.findall(r"%tmm(\d)", match[2])  # the result comes last
            found.append((match[1], registers[::-1]))
        elif re.match(r"\tvmov\w+\t%zmm\d+, ", line) and len(found) > 2:  # behind the kernel
            copied.append(len(found))
    assert found == wanted
    first, second = found.index(("tileloadd", ["6"])), found.index(("tileloadd", ["3"]))
    assert copied == [first + 8] * 32 + [second + 5] * 5, "between the loop and the last step"


@needs_avx512
def test_configurations() -> None:
    """Palette 1; bytes of a row for each register, then rows."""

    def shapes(kernel: Gemm, rows: int) -> list[tuple[int, int]]:
        held = configuration(kernel, rows)
        assert held[0] == 1
        assert not any(held[1:16])
        assert len(held) == 64
        columns = np.frombuffer(held[16:48], "<u2").tolist()
        found = [*zip(held[48:], columns, strict=True)]
        assert found[8:] == [(0, 0)] * 8
        return found[:8]

    full, none = (16, 64), (0, 0)
    square = gemm(matmul(69, 64, 128), EMULATED, amx=True)
    assert (square.rows, square.panel, square.remainders) == (32, 32, (5,))
    assert shapes(square, 32) == [full] * 8
    assert shapes(square, 21) == [full, full, (5, 64), (5, 64), full, (5, 64), full, full]
    assert shapes(square, 5) == [(5, 64), (5, 64), (5, 64), full, full, *[none] * 3]
    wide = gemm(matmul(13, 64, 128), EMULATED, amx=True)
    assert (wide.rows, wide.panel) == (13, 64)
    assert shapes(wide, 13) == [*[(13, 64)] * 5, *[full] * 3]
    text = code(square)
    quoted = re.search(r'tiles\.32x32:\n\t\.asciz\t"(.*)"', text)
    assert quoted is not None
    escaped = quoted[1].encode().decode("unicode_escape").encode("latin-1") + b"\0"
    assert escaped == configuration(square, 32)


@needs_avx512
def test_few_rows_and_unknown_sizes_are_left_to_vectors() -> None:
    assert not gemm(matmul(7, 64, 128), EMULATED, amx=True).amx
    assert gemm(matmul(8, 64, 128), EMULATED, amx=True).amx
    g = ost.Graph("batches")
    g.set_outputs(
        [g.matmul(g.input("x", (3, 20, 40), "bfloat16"), g.input("y", (3, 40, 50), "bfloat16"))]
    )
    assert not gemm(g, EMULATED, amx=True).amx


@needs_avx512
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_that_are_summed_in_bytes_are_left_to_vectors(lowered: Lowered, dtype: str) -> None:
    """``matmul`` of bytes gives bytes, modulo 256: sums in tiles are of 32 bits."""
    graph = ost.Graph("bytes")
    x, w = numbers((33, 100), dtype), numbers((100, 70), dtype, 1)
    graph.set_outputs(
        [graph.matmul(graph.input("x", x.shape, dtype), graph.param("w", w.shape, dtype))]
    )
    assert not gemm(graph, EMULATED).amx
    (got,) = lowered(graph, HOST)({"x": x, "w": w})
    np.testing.assert_array_equal(got, (x.astype(np.int64) @ w.astype(np.int64)).astype(dtype))


@needs_avx512
def test_siblings_all_use_tiles_or_none_does(lowered: Lowered) -> None:
    """A weight with a leading 1 is left to vectors, and so is one that shares its kernel."""
    x = numbers((20, 40), "bfloat16")
    weights = {"v": numbers((40, 64), "bfloat16", 1), "w": numbers((1, 40, 64), "bfloat16", 2)}
    g = ost.Graph("siblings")
    left = g.input("x", x.shape, "bfloat16")
    g.set_outputs([g.matmul(left, g.param(n, w.shape, "bfloat16")) for n, w in weights.items()])
    amx = Amx()
    run = lowered(g, EMULATED, rewrite=amx.rewritten, amx=True)
    (kernel,) = (kernel for kernel in run.kernels if isinstance(kernel, MultiGemm))
    assert not any(part.amx for part in kernel.gemms)
    for got, want in zip(
        run({"x": x, **weights}), ost.reference.evaluate(g, {"x": x}, weights), strict=True
    ):
        close(got, want)
    assert not amx.executed


@needs_avx512
def test_bytes_where_detected_and_bfloat16_where_wanted() -> None:
    graph, of_bytes = matmul(64, 64, 128), matmul(64, 64, 128, "int8", "uint8")
    assert gemm(of_bytes, EMULATED).amx
    assert not gemm(of_bytes, EMULATED, amx=False).amx
    assert not gemm(of_bytes, HOST).amx
    assert not gemm(graph, EMULATED, amx=False).amx
    assert not gemm(graph, EMULATED).amx
    assert not gemm(graph, HOST, amx=True).amx
    assert "tdp" not in code(gemm(graph, EMULATED), EMULATED)
    assert gemm(graph, EMULATED, bfloat16_dots=True).amx
    assert not gemm(graph, EMULATED, bfloat16_dots=True, amx=False).amx
    assert not gemm(matmul(7, 64, 128), EMULATED, amx=True).amx
    only_bytes = replace(HOST, features=f"{HOST.features},+amx-tile,+amx-int8")
    assert not gemm(graph, only_bytes, amx=True).amx
    assert gemm(matmul(64, 64, 128, "int8", "int8"), only_bytes, amx=True).amx


# -- detection -------------------------------------------------------------------------------------


def test_permission_is_refused_softly() -> None:
    """Nothing is asked of the system without tiles; asking twice changes nothing."""
    facts = Path("/proc/cpuinfo")
    flags = facts.read_text().split() if facts.exists() else []
    found = _core.permit_amx()
    assert found == _core.permit_amx()
    assert not any(found) or "amx_tile" in flags


def test_names_of_what_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    for granted, names in [
        ((False, False), ()),
        ((True, False), ("amx-tile", "amx-bf16")),
        ((True, True), ("amx-tile", "amx-bf16", "amx-int8")),
    ]:
        monkeypatch.setattr(host._core, "permit_amx", lambda granted=granted: granted)
        assert host.amx_features() == names


def test_the_option_is_harmless_without_amx() -> None:
    assert not HOST.amx_dtypes
    x, w = numbers((37, 61), "int8"), numbers((61, 50), "int8", 1)
    options = ost.CompileOptions(amx=True)
    session = ost.Session("cpu", threads=2)
    compiled = session.compile(matmul(37, 61, 50, "int8", "int8"), {"w": w}, options=options)
    want = np.maximum(x.astype(np.int32) @ w.astype(np.int32), 0)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], want)


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), *BYTES], ids="-".join)
def test_the_processor_agrees_with_the_emulation(lowered: Lowered, dtypes: tuple[str, str]) -> None:
    target = TargetSpec.named("host", amx=True)
    if not {DType.parse(name) for name in dtypes} <= target.amx_dtypes:
        pytest.skip("this machine has no AMX, or the system does not permit it")
    for m, k, n in SIZES:
        graph = matmul(m, k, n, *dtypes)
        data = {"x": numbers((m, k), dtypes[0]), "w": numbers((k, n), dtypes[1], 1)}
        (want,), _ = emulated(lowered, graph, data)
        (got,) = lowered(graph, target, amx=True)(data)
        if dtypes[0] == "bfloat16":
            close(got, want)
        else:
            np.testing.assert_array_equal(got, want)

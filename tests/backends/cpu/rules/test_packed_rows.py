"""Packed weights by many rows in the tile registers of Intel AMX: the bits of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu.capabilities import CAPABILITIES
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.multi_gemm import MultiGemm
from ostinato.dtypes import INT8
from ostinato.ir.graph import BaseGraph
from ostinato.ops.packed.formats import FORMATS
from ostinato.passes.pipeline import run_passes
from tests.backends.cpu.rules.amx_emulation import EMULATED, HOST, Amx
from tests.packed_blocks import random_blocks

Array = np.ndarray[Any, Any]
Lowered = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    not (HOST.has_avx512 and HOST.has_byte_dots), reason="this processor has no AVX-512 VNNI"
)

COMPUTED = [name for name, form in FORMATS.items() if form.computed]


def weights(name: str, columns: int, depth: int) -> Array:
    """Blocks of any bits, with scales near 1."""
    rng, form = np.random.default_rng(columns + depth), FORMATS[name]
    short, count = name.removeprefix("gguf:"), columns * depth // form.size
    return random_blocks(rng, short, count, hard=False).reshape(columns, -1)


def matmul(name: str, rows: ost.Variable | int, w: Array, depth: int) -> ost.Graph:
    g = ost.Graph("packed")
    x = g.input("x", (rows, depth))
    g.set_outputs([g.packed_matmul(x, g.param("w", w.shape, "uint8"), name) * 2.0])
    return g


def spelled_out(g: ost.Graph) -> BaseGraph:
    """The graph as lowering takes it: rows are rounded, then multiplied as integers."""
    return run_passes(g, capabilities=CAPABILITIES)[0]


def numbers(rows: int, depth: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)


@pytest.mark.parametrize("name", COMPUTED)
def test_every_format_has_the_bits_of_vectors(lowered: Lowered, name: str) -> None:
    """Whole stretches of 256 and a shorter one; rows and columns that are left."""
    depth = 512 if FORMATS[name].size == 256 else 352
    w = weights(name, 33, depth)
    g, data = matmul(name, 37, w, depth), {"x": numbers(37, depth), "w": w}
    amx = Amx()
    run = lowered(spelled_out(g), EMULATED, rewrite=amx.rewritten)
    (gemm,) = (kernel for kernel in run.kernels if isinstance(kernel, Gemm))
    assert gemm.tall == 16
    (tiles,) = run(data)
    amx.check()
    per_row_block = -(-33 // gemm.panel) * (gemm.panel // 16) * depth // FORMATS[name].group
    assert amx.executed["tdpbssd"] == 2 * per_row_block
    (vectors,) = lowered(spelled_out(g), HOST)(data)
    np.testing.assert_array_equal(tiles, vectors)


def test_any_number_of_rows(lowered: Lowered) -> None:
    name, depth = "gguf:q4_k", 256
    w, x = weights(name, 20, depth), numbers(70, depth)
    n = ost.Variable("n", 1, 70)
    amx = Amx()
    run = lowered(spelled_out(matmul(name, n, w, depth)), EMULATED, rewrite=amx.rewritten)
    vectors = lowered(spelled_out(matmul(name, n, w, depth)), HOST)
    (whole,) = vectors({"x": x, "w": w}, n=70)
    for rows in (1, 15, 16, 17, 31, 32, 47, 64, 70):
        before = amx.executed["tdpbssd"]
        (found,) = run({"x": x[:rows], "w": w}, n=rows)
        amx.check()
        np.testing.assert_array_equal(found, whole[:rows])
        groups = rows // 16 * depth // FORMATS[name].group
        assert amx.executed["tdpbssd"] - before == groups * 2, "two panels of 16 columns"


def test_shared_epilogues(lowered: Lowered) -> None:
    """A gate and what it multiplies, in one kernel."""
    name, depth = "gguf:q6_k", 256
    g = ost.Graph("gated")
    data = {"x": numbers(50, depth)}
    x = g.input("x", (50, depth))

    def times(part: str, seed: int) -> ost.Value:
        data[part] = weights(name, 40, depth + 256 * seed)[:, : FORMATS[name].nbytes]
        return g.packed_matmul(x, g.param(part, data[part].shape, "uint8"), name)

    g.set_outputs([g.silu(times("gate", 0)) * times("up", 1)])
    amx = Amx()
    run = lowered(spelled_out(g), EMULATED, rewrite=amx.rewritten)
    assert any(isinstance(kernel, MultiGemm) and kernel.first.tall for kernel in run.kernels)
    (tiles,) = run(data)
    amx.check()
    assert amx.executed["tdpbssd"]
    np.testing.assert_array_equal(tiles, lowered(spelled_out(g), HOST)(data)[0])


def test_a_bad_row_is_bad_alone(lowered: Lowered) -> None:
    """A NaN in a row, an infinity in another one; the others have their bits."""
    name, depth = "gguf:q8_0", 64
    w, x = weights(name, 17, depth), numbers(32, depth)
    (right,) = lowered(spelled_out(matmul(name, 32, w, depth)), HOST)({"x": x, "w": w})
    bad = x.copy()
    bad[3, 5], bad[20, 40] = np.nan, np.inf
    amx = Amx()
    (found,) = lowered(spelled_out(matmul(name, 32, w, depth)), EMULATED, rewrite=amx.rewritten)(
        {"x": bad, "w": w}
    )
    amx.check()
    assert np.isnan(found[[3, 20]]).all()
    others = np.setdiff1d(np.arange(32), [3, 20])
    np.testing.assert_array_equal(found[others], right[others])


def test_few_rows_and_the_option_leave_all_to_vectors(lowered: Lowered) -> None:
    w = weights("gguf:q4_0", 20, 64)

    def tall(rows: int, **options: Any) -> int:
        g = spelled_out(matmul("gguf:q4_0", rows, w, 64))
        kernels = lowered(g, EMULATED, **options).kernels
        (gemm,) = (kernel for kernel in kernels if isinstance(kernel, Gemm))
        return gemm.tall

    assert [tall(rows) for rows in (1, 15, 16, 300)] == [0, 0, 16, 16]
    assert tall(300, amx=False) == 0


@pytest.mark.parametrize("name", ["gguf:q4_0", "gguf:q4_1", "gguf:q5_k", "gguf:q6_k", "gguf:mxfp4"])
def test_the_processor_agrees(name: str) -> None:
    """With one thread and with two, rows in several items."""
    if INT8 not in TargetSpec.named("host", amx=None).amx_dtypes:
        pytest.skip("this machine has no AMX, or the system does not permit it")
    depth = 1024
    w, x = weights(name, 100, depth), numbers(531, depth)
    found = []
    for amx, threads in ((False, 1), (None, 1), (None, 2)):
        session, options = ost.Session("cpu", threads=threads), ost.CompileOptions(amx=amx)
        compiled = session.compile(matmul(name, 531, w, depth), {"w": w}, options=options)
        assert any("tdpbssd" in kernel.source for kernel in compiled.plan.kernels) == (amx is None)
        found.append(compiled.run({"x": x})[0])
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])

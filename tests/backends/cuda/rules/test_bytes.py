"""Matmuls of a few rows by weights of 8 and 4 bits, in the emulator, against the oracle."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cuda.render import byte_rows, byte_tiles
from ostinato.backends.cuda.rules.blockwise import BlockwiseMatmul
from ostinato.backends.cuda.rules.product import Matmul
from ostinato.backends.cuda.target import CudaTarget
from ostinato.lower.loopir.nodes import max_extent
from tests.conformance.compare import check_against_oracle
from tests.conformance.draw import Draw
from tests.devices.registered import open_session


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return open_session("cudaemu")


def drawn(name: str) -> Draw:
    return Draw(ost.Graph("bytes"), np.random.default_rng(zlib.crc32(name.encode())))


def check(session: ost.Session, d: Draw, *outputs: ost.Value) -> ost.CompiledGraph:
    """Compare with the oracle; the compiled graph."""
    d.g.set_outputs(list(outputs))
    check_against_oracle(d.g, d.arrays, [(session, ost.CompileOptions(verify=True))])
    return session.compile(d.g)


def matmuls(compiled: ost.CompiledGraph) -> list[Matmul]:
    return [k.kernel for k in compiled.plan.kernels if isinstance(k.kernel, Matmul)]


#: The same for tiles, most of which end beyond the result.
LARGE = ((17, 16, 3), (130, 48, 70), (64, 208, 65))

#: Rows, depth and columns: one, primes, tails of warps and of columns, more rows than a pass has.
SIZES = ((1, 16, 1), (1, 4, 3), (3, 64, 7), (2, 560, 33), (8, 32, 5), (11, 48, 9), (16, 20, 4))


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("size", SIZES)
def test_bytes(session: ost.Session, left: str, right: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    d = drawn(f"{size} {left} {right}")
    low = {"int8": -128, "uint8": 0}
    a = d.of((m, k), left, low[left], low[left] + 255)
    weight = d.rng.integers(low[right], low[right] + 256, (k, n)).astype(right)
    compiled = check(session, d, d.g.integer_matmul(a, d.g.constant(weight)))
    if n > 1:
        assert any(byte_rows.fits(kernel) for kernel in matmuls(compiled))


@pytest.mark.parametrize("signs", ["int8 int8", "uint8 int8", "int8 uint8", "uint8 uint8"])
@pytest.mark.parametrize("size", LARGE)
def test_tiles_of_bytes(session: ost.Session, signs: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    left, right = signs.split()
    d = drawn(f"tiles {size} {signs}")
    low = {"int8": -128, "uint8": 0}
    a = d.of((m, k), left, low[left], low[left] + 255)
    weight = d.g.constant(d.rng.integers(low[right], low[right] + 256, (k, n)).astype(right))
    compiled = check(session, d, d.g.cast(d.g.integer_matmul(a, weight), "float32") * 0.5)
    target = CudaTarget.of_arch("sm_90")
    assert any(byte_tiles.fits(kernel, target) for kernel in matmuls(compiled))
    older = CudaTarget.of_arch("sm_75")
    assert not any("multiply_bytes" in kernel.source(older) for kernel in matmuls(compiled))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("size", [(17, 128, 3), (130, 384, 70)])
def test_tiles_of_codes(session: ost.Session, size: tuple[int, int, int], group: int) -> None:
    m, k, n = size
    d = drawn(f"tiles {size} {group}")
    codes = d.g.constant(d.rng.integers(0, 256, (k // 2, n)).astype("uint8"))
    scales = d.g.constant(d.rng.uniform(0, 0.1, (k // group, n)).astype("float32"))
    y = d.g.int4_matmul(d.of((m, k), "float32"), codes, scales, group=group)
    compiled = check(session, d, d.g.silu(y) + d.of((n,), "float32"))
    sources = [kernel.source(CudaTarget.of_arch("sm_90")) for kernel in matmuls(compiled)]
    assert any("multiply_bytes" in text for text in sources)


def test_rows_that_are_not_words(session: ost.Session) -> None:
    """A depth that is no multiple of 4, and rows that lie apart."""
    d = drawn("odd")
    weight = d.g.constant(d.rng.integers(-128, 128, (33, 6)).astype("int8"))
    apart = d.g.permute_dims(d.of((32, 5), "int8"), (1, 0))
    other = d.g.constant(d.rng.integers(-128, 128, (32, 6)).astype("int8"))
    check(
        session,
        d,
        d.g.integer_matmul(d.of((2, 33), "uint8"), weight),
        d.g.integer_matmul(apart, other),
    )


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantized_matmul(session: ost.Session, dtype: str, rows: int) -> None:
    d = drawn(f"quantized {dtype} {rows}")
    weight = d.g.constant(d.rng.integers(-127, 128, (96, 40)).astype("int8"))
    scales = d.g.constant(d.rng.uniform(0, 0.1, 40).astype("float32"))
    y = d.g.quantized_matmul(d.of((rows, 96), dtype), weight, scales)
    compiled = check(session, d, d.g.silu(y) * d.of((rows, 40), dtype))
    target = CudaTarget.of_arch("sm_90")
    sources = [kernel.kernel.source(target) for kernel in compiled.plan.kernels]
    assert any("ost::round_of_quotient(" in text for text in sources)


#: Rows, depth, columns and block.
BLOCKS = ((1, 32, 1, 32), (1, 64, 5, 64), (3, 128, 33, 128), (2, 1120, 6, 32), (16, 192, 3, 64))


@pytest.mark.parametrize("scale", ["float32", "float16"])
@pytest.mark.parametrize("size", BLOCKS)
def test_int4_matmul(session: ost.Session, size: tuple[int, int, int, int], scale: str) -> None:
    m, k, n, group = size
    d = drawn(f"{size} {scale}")
    codes = d.g.constant(d.rng.integers(0, 256, (k // 2, n)).astype("uint8"))
    scales = d.g.constant(d.rng.uniform(0, 0.1, (k // group, n)).astype(scale))
    y = d.g.int4_matmul(d.of((m, k), "float32"), codes, scales, group=group)
    compiled = check(session, d, d.g.silu(y) + d.of((m, n), "float32"))
    assert any(isinstance(kernel, BlockwiseMatmul) for kernel in matmuls(compiled))


def test_int4_weights_that_are_no_whole_blocks(session: ost.Session) -> None:
    """A depth that ends within a block, weights that are no params, and many rows."""
    d = drawn("tails")
    g = d.g
    codes = g.constant(d.rng.integers(0, 256, (25, 6)).astype("uint8"))
    scales = g.constant(d.rng.uniform(0, 0.1, (2, 6)).astype("float32"))
    part = g.int4_matmul(d.of((3, 50), "float32"), codes, scales, group=32)
    given = g.int4_matmul(
        d.of((2, 64), "float32"), d.of((32, 3), "uint8", 0, 255), d.of((2, 3), "float32"), group=32
    )
    whole = g.constant(d.rng.integers(0, 256, (32, 6)).astype("uint8"))
    many = g.int4_matmul(d.of((20, 64), "float32"), whole, scales, group=32)
    check(session, d, part, given, many)


def test_open_rows(session: ost.Session) -> None:
    g = ost.Graph("open")
    rows = ost.Variable("rows", 0, 12)
    rng = np.random.default_rng(3)
    codes = g.constant(rng.integers(0, 256, (32, 10)).astype("uint8"))
    scales = g.constant(rng.uniform(0, 0.1, (2, 10)).astype("float32"))
    weight = g.constant(rng.integers(-128, 128, (64, 10)).astype("int8"))
    x, q = g.input("x", (rows, 64)), g.input("q", (rows, 64), "int8")
    g.set_outputs([g.int4_matmul(x, codes, scales, group=32), g.integer_matmul(q, weight)])
    compiled = session.compile(g)
    for size in (0, 1, 7, 12):
        inputs = {
            "x": rng.normal(size=(size, 64)).astype("float32"),
            "q": rng.integers(-128, 128, (size, 64)).astype("int8"),
        }
        expected = ost.reference.evaluate(g, inputs)
        for mine, truth in zip(compiled.run(inputs), expected, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=1e-5, atol=1e-6)


def test_kernels_compile_for_gpus() -> None:
    """Sources that the emulator runs as host C++ are CUDA C++, too."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from ostinato.backends.cuda.capabilities import lowering_options
    from ostinato.backends.cuda.compiler import compile_text
    from ostinato.backends.cuda.rules.table import lower_for_cuda

    d = drawn("compiled")
    codes = d.g.constant(d.rng.integers(0, 256, (32, 70)).astype("uint8"))
    scales = d.g.constant(d.rng.uniform(0, 0.1, (2, 70)).astype("float32"))
    weight = d.g.constant(d.rng.integers(-128, 128, (64, 70)).astype("int8"))
    outputs = []
    for rows in (2, 40):
        q, q_scales = d.of((rows, 64), "int8"), d.of((rows, 2), "float32")
        outputs.append(d.g.blockwise_matmul(q, q_scales, codes, scales, group=32))
        outputs.append(d.g.integer_matmul(q, weight))
    d.g.set_outputs(outputs)
    target = CudaTarget.of_arch("sm_90")
    program, _ = lower_for_cuda(d.g, lowering_options(ost.CompileOptions(segments=False)))
    kernels = [call.kernel for call in program.calls if isinstance(call.kernel, Matmul)]
    assert len(kernels) == 4
    for kernel in kernels:
        text = compile_text(kernel.source(target), target.arch, ptx=True)
        few = max_extent(kernel.m) == 2
        assert (b"dp4a.s32" if few else b"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8") in text

"""The contraction renderer against float64 NumPy, with memory that faults beyond its end."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostinato.backends.cpu.caches import CacheSizes
from ostinato.backends.cpu.llvm.gemm import render
from ostinato.backends.cpu.llvm.kernel import extent_symbol
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, compile_module
from ostinato.backends.cpu.loader.link import load
from ostinato.backends.cpu.rules.gemm import Gemm
from ostinato.backends.cpu.rules.prefetch import Prefetch
from ostinato.backends.cpu.rules.sum_axes import SumAxis
from ostinato.backends.cpu.rules.tiles import tile_for
from ostinato.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)
from ostinato.errors import DeviceUnavailableError, OstinatoError
from ostinato.lower.loopir.builder import cast
from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Arg,
    Load,
    Number,
    Scalar,
    Store,
    max_extent,
)
from ostinato.variables import Dim, Symbol, Variable, axis, evaluate, prod, symbols

Array = np.ndarray[Any, Any]
LEVELS = ("avx512", "avx2", "sse2")
CANARY = 0xA5


def target_of(level: str) -> TargetSpec:
    try:
        return TargetSpec.named(level)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


class Guarded:
    """Memory for one array: an unreadable page behind it, canaries in front of it."""

    def __init__(self, array: Array) -> None:
        page = mmap.PAGESIZE
        size = -(-max(array.nbytes, 1) // page) * page + page
        self._memory = mmap.mmap(-1, size + page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(page), 0) == 0
        start = size - array.nbytes
        whole = np.frombuffer(self._memory, np.uint8, size)
        self._front = whole[:start]
        self._front[:] = CANARY
        self.array: Array = whole[start:].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data) if self.array.size else 0

    def check(self) -> None:
        assert (self._front == CANARY).all(), "written before the first element"


class Kernel:
    """A rendered contraction, ready to be called."""

    def __init__(self, contraction: Gemm, target: TargetSpec) -> None:
        self.contraction = contraction
        symbolic = not isinstance(contraction.extent, int)
        names = ["kernel", *([extent_symbol("kernel")] if symbolic else [])]
        module = render(contraction, "kernel", target)
        self._code = load([(compile_module(module, target), names)])
        pointer = ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer)
        self._call = kind(self._code.address("kernel"))
        self._extent = (
            ctypes.CFUNCTYPE(ctypes.c_int64, pointer)(self._code.address(names[1]))
            if symbolic
            else None
        )

    def extent(self, values: Sequence[int]) -> int:
        names = [symbol.name for symbol in self.contraction.variables]
        expected = evaluate(self.contraction.extent, dict(zip(names, values, strict=True)))
        if self._extent is not None:
            assert self._extent((ctypes.c_int64 * max(1, len(values)))(*values)) == expected
        return expected

    def run(
        self,
        arrays: Sequence[Array],
        values: Sequence[int] = (),
        pieces: int = 1,
        extent: int | None = None,
    ) -> None:
        """Runs the (whole) extent in ``pieces``, last piece first; arrays are updated in place."""
        guarded = [Guarded(array) for array in arrays]
        buffers = (ctypes.c_void_p * len(arrays))(*(g.address for g in guarded))
        live = (ctypes.c_int64 * max(1, len(values)))(*values)
        memory = np.full(self.contraction.scratch_bytes + 128, CANARY, np.uint8)
        start = -memory.ctypes.data % 64
        extent = self.extent(values) if extent is None else extent
        cuts = [extent * i // pieces for i in range(pieces + 1)]
        for begin, end in reversed(list(itertools.pairwise(cuts))):
            self._call(buffers, live, begin, end, memory.ctypes.data + start)
        after = memory[start + self.contraction.scratch_bytes :]
        assert (after == CANARY).all(), "scratch overrun"
        for g, array in zip(guarded, arrays, strict=True):
            g.check()
            array[...] = g.array


def pack(b: Array, panel: int, acc: DType) -> Array:
    """``b[group, k, n]`` as panels."""
    groups, k, n = b.shape
    panels = -(-n // panel)
    padded = np.zeros((groups, k, panels * panel), acc.numpy)
    padded[:, :, :n] = b
    return np.ascontiguousarray(padded.reshape(groups, k, panels, panel).transpose(0, 2, 1, 3))


def symbol_of(dim: Dim) -> Symbol:
    (symbol,) = symbols(dim)
    return symbol


Epilogue = Callable[[Scalar, Dim, Dim, Dim], Scalar]


def product(
    target: TargetSpec,
    m: Dim,
    n: Dim,
    k: Dim,
    *,
    dtype: DType = FLOAT32,
    batch: int | None = None,
    lda: Dim | None = None,
    epilogue: Epilogue = lambda total, i, m, n: total,
    transposed: bool = False,
    extra: Sequence[Arg] = (),
    tile: tuple[int, int] | None = None,
    variables: Sequence[Variable] = (),
) -> Gemm:
    """``out[i, m, n] = a[i, m, k] @ b[i, k, n]`` (args: a, packed b, out, extras)."""
    acc = dtype.accumulator
    bound = {v.name: v.max for v in variables}
    registers = 32 if target.vector_bytes == 64 else 16
    rows, panel = tile or tile_for(
        target.vector_bytes, registers, acc, evaluate(m, bound), evaluate(n, bound)
    )
    i: Dim = 0 if batch is None else axis("i", batch)
    am, an, ak = axis("m", m), axis("n", n), axis("k", k)
    lda = k if lda is None else lda
    at = (i * n + an) * m + am if transposed else (i * m + am) * n + an
    value = epilogue(Accumulator(acc), i, am, an)
    value = cast(value, dtype)
    return Gemm(
        args=(Arg(dtype), Arg(acc), Arg(dtype, reads=False, writes=True), *extra),
        batch=(symbol_of(i),) if batch is not None else (),
        m=symbol_of(am),
        n=symbol_of(an),
        k=(symbol_of(ak),),
        a=0,
        a_dtype=dtype,
        a_index=i * (lda * m) + am * lda + ak,
        b=1,
        b_group=i if batch is not None else 0,
        panel=panel,
        rows=rows,
        acc=acc,
        epilogue=(Store(2, at, value),),
        variables=tuple(symbol_of(v) for v in variables),
    )


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def reference(a: Array, b: Array) -> Array:
    """The product in float64, or wrapping integers."""
    if a.dtype.kind in "iu":
        return np.matmul(a, b)
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def check(got: Array, want: Array, dtype: DType, depth: int) -> None:
    if dtype.is_integer:
        np.testing.assert_array_equal(got, want)
        return
    eps = {FLOAT64: 2**-52, FLOAT32: 2**-23, FLOAT16: 2**-10, BFLOAT16: 2**-7}[dtype]
    acc_eps = max(eps, 2**-23) if dtype != FLOAT64 else eps
    slack = 4 * (eps + acc_eps * math.sqrt(depth + 1) * math.sqrt(depth + 1))
    scale = np.maximum(np.abs(want), math.sqrt(depth + 1))
    error = np.abs(got.astype(np.float64) - want) / scale
    assert not error.size or error.max() <= slack


def run_product(
    level: str,
    sizes: tuple[int, int, int],
    dtype: DType = FLOAT32,
    batch: int | None = None,
    pieces: int = 1,
    **options: Any,
) -> Gemm:
    m, n, k = sizes
    target = target_of(level)
    contraction = product(target, m, n, k, dtype=dtype, batch=batch, **options)
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    a = random(rng, (batch or 1, m, k), dtype)
    b = random(rng, (batch or 1, k, n), dtype)
    transposed = options.get("transposed", False)
    out = np.zeros((batch or 1, n, m) if transposed else (batch or 1, m, n), dtype.numpy)
    Kernel(contraction, target).run(
        [a, pack(b, contraction.panel, contraction.acc), out], pieces=pieces
    )
    got = out.transpose(0, 2, 1) if transposed else out
    check(got, reference(a, b), dtype, k)
    return contraction


# -- sizes -----------------------------------------------------------------------------------------

SIZES = [
    (1, 1, 1), (1, 48, 64), (1, 100, 37), (2, 50, 9), (3, 7, 5), (4, 96, 130), (5, 33, 17),
    (7, 64, 8), (8, 48, 12), (9, 49, 13), (12, 32, 4), (13, 31, 3), (16, 16, 16), (17, 65, 31),
    (31, 5, 7), (64, 2, 33), (97, 101, 103), (100, 1, 20), (129, 47, 2), (0, 5, 5), (5, 0, 5),
    (5, 5, 0), (0, 0, 0), (30, 200, 1),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_sizes(level: str, sizes: tuple[int, int, int]) -> None:
    run_product(level, sizes, pieces=3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", [(5, 20, 7), (20, 5, 3), (33, 70, 11), (1, 9, 4), (50, 1, 3)])
def test_transposed_output(level: str, sizes: tuple[int, int, int]) -> None:
    contraction = run_product(level, sizes, batch=2, pieces=2, transposed=True)
    assert contraction.stores_along_rows == (sizes[0] > 1 or sizes[1] == 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64], ids=str)
def test_dtypes(level: str, dtype: DType) -> None:
    for sizes in [(1, 40, 19), (11, 37, 23), (6, 3, 5)]:
        run_product(level, sizes, dtype, batch=3, pieces=2)
    run_product(level, (19, 21, 6), dtype, transposed=True)


@pytest.mark.parametrize("tile", [(1, 1), (2, 2), (3, 4), (5, 24), (8, 48), (12, 32), (6, 96)])
def test_any_tile_is_right(tile: tuple[int, int]) -> None:
    run_product("avx2", (23, 57, 9), tile=tile, pieces=4)
    run_product("avx2", (23, 57, 9), tile=tile, pieces=4, transposed=True)


def test_a_last_block_lower_than_a_tile() -> None:
    contraction = run_product("host", (26, 30, 4400), tile=(8, 32))
    assert (contraction.block, contraction.remainders) == (8, (2,))


def test_batches_share_or_own_panels() -> None:
    contraction = run_product("host", (6, 20, 10), batch=5, pieces=5)
    assert contraction.extent == 5 * contraction.blocks * contraction.panels


# -- symbolic sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", [False, True])
def test_symbolic_sizes(level: str, transposed: bool) -> None:
    target = target_of(level)
    m, n, k = Variable("M", 0, 40), Variable("N", 0, 70), Variable("K", 0, 50)
    contraction = product(target, m, n, k, variables=[m, n, k], transposed=transposed)
    kernel = Kernel(contraction, target)
    rng = np.random.default_rng(1)
    sizes = [(40, 70, 50), (1, 1, 1), (0, 3, 3), (3, 0, 3), (3, 3, 0), (13, 49, 7), (39, 33, 2)]
    for live in sizes:
        rows, columns, depth = live
        a, b = random(rng, (rows, depth), FLOAT32), random(rng, (1, depth, columns), FLOAT32)
        out = np.zeros((columns, rows) if transposed else (rows, columns), np.float32)
        kernel.run([a, pack(b, contraction.panel, FLOAT32), out], live, pieces=2)
        check(out.T if transposed else out, reference(a, b[0]), FLOAT32, depth)


def test_symbolic_rows_alone() -> None:
    target = target_of("host")
    m = Variable("M", 1, 100)
    contraction = product(target, m, 40, 24, variables=[m])
    assert contraction.row_stride == 24
    kernel = Kernel(contraction, target)
    rng = np.random.default_rng(2)
    b = random(rng, (1, 24, 40), FLOAT32)
    for rows in range(1, 30):
        a, out = random(rng, (rows, 24), FLOAT32), np.zeros((rows, 40), np.float32)
        kernel.run([a, pack(b, contraction.panel, FLOAT32), out], [rows])
        check(out, reference(a, b[0]), FLOAT32, 24)


# -- how ``a`` is addressed ------------------------------------------------------------------------


def test_padded_rows() -> None:
    target = target_of("host")
    contraction = product(target, 9, 20, 7, lda=11)
    rng = np.random.default_rng(3)
    a, b = random(rng, (9, 11), FLOAT32), random(rng, (1, 7, 20), FLOAT32)
    out = np.zeros((9, 20), np.float32)
    Kernel(contraction, target).run([a, pack(b, contraction.panel, FLOAT32), out])
    check(out, reference(a[:, :7], b[0]), FLOAT32, 7)


def test_transposed_left_operand() -> None:
    target = target_of("host")
    m, k = axis("m", 10), axis("k", 21)
    base = product(target, 10, 30, 21)
    contraction = replace(base, a_index=k * 10 + m)
    assert contraction.row_stride == 1
    assert contraction.sum_axes == (SumAxis(21, 10),)
    rng = np.random.default_rng(4)
    a, b = random(rng, (21, 10), FLOAT32), random(rng, (1, 21, 30), FLOAT32)
    out = np.zeros((10, 30), np.float32)
    Kernel(contraction, target).run([a, pack(b, contraction.panel, FLOAT32), out])
    check(out, reference(a.T, b[0]), FLOAT32, 21)


def convolution(
    target: TargetSpec,
    shape: tuple[Dim, ...],
    kernel: tuple[int, ...],
    stride: int,
    dilation: int,
    channels_out: int,
    variables: Sequence[Variable] = (),
) -> Gemm:
    """A convolution over ``(N, C, *spatial)`` without padding, output channels first."""
    images, channels, *spatial = shape
    outs = [
        (s - dilation * (f - 1) - 1) // stride + 1 for s, f in zip(spatial, kernel, strict=True)
    ]
    image, m, n = axis("i", images), axis("m", prod(outs)), axis("n", channels_out)
    k = [axis("c", channels), *(axis(f"f{d}", f) for d, f in enumerate(kernel))]
    offset: Dim = image * channels + k[0]
    rest: Dim = m
    for d, (size, tap) in enumerate(zip(spatial, k[1:], strict=True)):
        inner = prod(outs[d + 1 :])
        place, rest = rest // inner, rest % inner
        offset = offset * size + place * stride + tap * dilation
    bound = {v.name: v.max for v in variables}
    pixels = evaluate(prod(outs), bound)
    rows, panel = tile_for(
        target.vector_bytes, 32 if target.vector_bytes == 64 else 16, FLOAT32, pixels, channels_out
    )
    bias = Load(3, n, FLOAT32)
    return Gemm(
        args=(Arg(FLOAT32), Arg(FLOAT32), Arg(FLOAT32, False, True), Arg(FLOAT32)),
        batch=(symbol_of(image),),
        m=symbol_of(m),
        n=symbol_of(n),
        k=tuple(map(symbol_of, k)),
        a=0,
        a_dtype=FLOAT32,
        a_index=offset,
        b=1,
        b_group=0,
        panel=panel,
        rows=rows,
        acc=FLOAT32,
        epilogue=(
            Store(
                2,
                (image * channels_out + n) * prod(outs) + m,
                Apply("add", (Accumulator(FLOAT32), bias), FLOAT32),
            ),
        ),
        variables=tuple(symbol_of(v) for v in variables),
    )


def convolve(x: Array, w: Array, stride: int, dilation: int) -> Array:
    spatial = x.shape[2:]
    outs = [
        (s - dilation * (f - 1) - 1) // stride + 1
        for s, f in zip(spatial, w.shape[2:], strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *outs))
    for taps in itertools.product(*map(range, w.shape[2:])):
        window = tuple(
            slice(t * dilation, t * dilation + (o - 1) * stride + 1, stride)
            for t, o in zip(taps, outs, strict=True)
        )
        part = x[(slice(None), slice(None), *window)].astype(np.float64)
        weights = w[(slice(None), slice(None), *taps)].astype(np.float64)
        out += np.einsum("ic...,oc->io...", part, weights)
    return out


CONVOLUTIONS = [
    ((2, 3, 10, 11), (3, 3), 1, 1, 20),
    ((1, 5, 9, 9), (3, 3), 2, 1, 7),
    ((2, 4, 13, 12), (3, 2), 1, 2, 33),
    ((1, 16, 6, 7), (1, 1), 1, 1, 64),
    ((1, 3, 23, 23), (7, 7), 2, 1, 16),
    ((1, 2, 40), (9,), 1, 1, 5),
    ((1, 2, 5, 6, 7), (2, 3, 2), 1, 1, 9),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{len(c[1])}d-{c[1]}s{c[2]}d{c[3]}")
def test_convolutions(level: str, case: tuple[Any, ...]) -> None:
    shape, kernel, stride, dilation, out_channels = case
    target = target_of(level)
    contraction = convolution(target, shape, kernel, stride, dilation, out_channels)
    rng = np.random.default_rng(5)
    x = random(rng, shape, FLOAT32)
    w = random(rng, (out_channels, shape[1], *kernel), FLOAT32)
    bias = random(rng, (out_channels,), FLOAT32)
    want = convolve(x, w, stride, dilation)
    want += bias.reshape(-1, *[1] * len(kernel))
    out = np.zeros(want.shape, np.float32)
    packed = pack(w.reshape(1, out_channels, -1).transpose(0, 2, 1), contraction.panel, FLOAT32)
    Kernel(contraction, target).run([x, packed, out, bias], pieces=3)
    check(out, want, FLOAT32, w[0].size)


def test_convolution_over_a_symbolic_height() -> None:
    target = target_of("host")
    h = Variable("H", 3, 20)
    contraction = convolution(target, (1, 4, h, 9), (3, 3), 1, 1, 18, [h])
    kernel = Kernel(contraction, target)
    rng = np.random.default_rng(6)
    w, bias = random(rng, (18, 4, 3, 3), FLOAT32), np.zeros(18, np.float32)
    packed = pack(w.reshape(1, 18, -1).transpose(0, 2, 1), contraction.panel, FLOAT32)
    for height in (3, 4, 11, 20):
        x = random(rng, (1, 4, height, 9), FLOAT32)
        want = convolve(x, w, 1, 1)
        out = np.zeros(want.shape, np.float32)
        kernel.run([x, packed, out, bias], [height], pieces=2)
        check(out, want, FLOAT32, 36)


def test_axes_of_the_sum_are_merged_where_one_loop_walks_them() -> None:
    target = target_of("host")
    pointwise = convolution(target, (1, 16, 6, 7), (1, 1), 1, 1, 8)
    assert pointwise.sum_axes == (SumAxis(16, 42),)
    full_width = convolution(target, (1, 4, 5, 6), (3, 6), 1, 1, 8)
    assert full_width.sum_axes == (SumAxis(4, 30), SumAxis(18, 1))


def test_an_index_that_is_not_affine_is_refused() -> None:
    base = product(target_of("host"), 4, 4, 4)
    broken = replace(base, a_index=axis("k", 4) * axis("k", 4))
    with pytest.raises(OstinatoError, match="not affine in k"):
        render(broken, "kernel", target_of("host"))


# -- epilogues -------------------------------------------------------------------------------------


def apply(op: str, *operands: Scalar, **attrs: Any) -> Scalar:
    return Apply(op, operands, FLOAT32, tuple(attrs.items()))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [48, 53])
def test_bias_gelu_and_residual(level: str, transposed: bool, n: int) -> None:
    m, k = 21, 10

    def at(row: Dim, column: Dim) -> Dim:
        return column * m + row if transposed else row * n + column

    def epilogue(total: Scalar, _: Dim, row: Dim, column: Dim) -> Scalar:
        biased = apply("add", total, Load(3, column, FLOAT32))
        active = apply("gelu", biased, approximate=False)
        scaled = apply("multiply", active, Number(0.5, FLOAT32))
        return apply("add", scaled, Load(4, at(row, column), FLOAT32))

    target = target_of(level)
    extra = [Arg(FLOAT32), Arg(FLOAT32)]
    contraction = product(target, m, n, k, epilogue=epilogue, extra=extra, transposed=transposed)
    rng = np.random.default_rng(7)
    a, b = random(rng, (m, k), FLOAT32), random(rng, (1, k, n), FLOAT32)
    bias, residual = random(rng, (n,), FLOAT32), random(rng, (m, n), FLOAT32)
    want = 0.5 * gelu(reference(a, b[0]) + bias) + residual
    out = np.zeros((n, m) if transposed else (m, n), np.float32)
    kept = np.ascontiguousarray(residual.T) if transposed else residual
    packed = pack(b, contraction.panel, FLOAT32)
    Kernel(contraction, target).run([a, packed, out, bias, kept], pieces=2)
    check(out.T if transposed else out, want, FLOAT32, k)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m", [8, 20, 5, Variable("M", 1, 40)], ids=str)
@pytest.mark.parametrize("blocked", [False, True])
def test_epilogues_by_tiles_have_the_bits_of_those_by_items(
    level: str, m: Dim, blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results overwrite the residual: no row may be added to it twice.

    Of 20 rows by tiles of 6, the last tile goes back over rows of the one before it.
    """

    def epilogue(total: Scalar, _: Dim, row: Dim, column: Dim) -> Scalar:
        active = apply("gelu", apply("add", total, Load(3, column, FLOAT32)), approximate=False)
        return apply("add", active, Load(2, row * n + column, FLOAT32))

    target, n, k = target_of(level), 53, 520
    variables = [m] if isinstance(m, Variable) else []
    made = product(
        target,
        m,
        n,
        k,
        epilogue=epilogue,
        extra=[Arg(FLOAT32)],
        tile=(6, 2 * target.lanes(4)),
        variables=variables,
    )
    assert m != 20 or made.remainders == ()
    a, b, _, bias = made.args
    contraction = replace(made, args=(a, b, Arg(FLOAT32, reads=True, writes=True), bias), chains=1)
    if blocked:
        small = CacheSizes(first=1 << 12, second=1 << 16)
        fetch = Prefetch(small, target.vector_bytes, least_rows=1)
        contraction = replace(contraction, caches=small, prefetch=fetch)
    rows, rng = 13 if variables else max_extent(contraction.m), np.random.default_rng(9)
    left, right = random(rng, (rows, k), FLOAT32), random(rng, (1, k, n), FLOAT32)
    packed = pack(right, contraction.panel, FLOAT32)
    added, residual = random(rng, (n,), FLOAT32), random(rng, (rows, n), FLOAT32)
    results = []
    for by_tiles in (True, False):
        monkeypatch.setattr(Gemm, "finishes_tiles", by_tiles)
        made = replace(contraction)  # some of its properties are kept
        assert by_tiles or made.keeps_item
        kept = residual.copy()
        Kernel(made, target).run([left, packed, kept, added], [rows] if variables else [])
        results.append(kept)
    np.testing.assert_array_equal(*results)
    check(results[0], gelu(reference(left, right[0]) + added) + residual, FLOAT32, k)


def test_several_stores_scattered_and_by_row() -> None:
    """A second output with a stride in both axes, and a value for each row."""
    target = target_of("host")
    base = product(target, 14, 37, 5, extra=[Arg(FLOAT32, False, True), Arg(FLOAT32)])
    m, n = axis("m", 14), axis("n", 37)
    doubled = apply("multiply", Accumulator(FLOAT32), Load(4, m, FLOAT32))
    epilogue = (*base.epilogue, Store(3, n * 28 + m * 2, doubled))
    contraction = replace(base, epilogue=epilogue)
    rng = np.random.default_rng(8)
    a, b = random(rng, (14, 5), FLOAT32), random(rng, (1, 5, 37), FLOAT32)
    scale = random(rng, (14,), FLOAT32)
    out, second = np.zeros((14, 37), np.float32), np.zeros((37, 14, 2), np.float32)
    packed = pack(b, contraction.panel, FLOAT32)
    Kernel(contraction, target).run([a, packed, out, second, scale], pieces=2)
    want = reference(a, b[0])
    check(out, want, FLOAT32, 5)
    check(second[:, :, 0].T, want * scale[:, None], FLOAT32, 5)
    assert not second[:, :, 1].any()


def test_nothing_summed_gives_zero_to_the_epilogue() -> None:
    target = target_of("host")
    contraction = product(
        target, 3, 5, 0, epilogue=lambda total, *_: apply("add", total, Number(1.5, FLOAT32))
    )
    out = np.zeros((3, 5), np.float32)
    a, b = np.zeros((3, 0), np.float32), np.zeros((1, 0, 5), np.float32)
    Kernel(contraction, target).run([a, pack(b, contraction.panel, FLOAT32), out])
    assert (out == 1.5).all()


# -- some of the rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tile", [(8, 16), (5, 32), (3, 16)])
@pytest.mark.parametrize("m", [2, 20, 53, 160])
def test_rows_left_out(level: str, m: int, tile: tuple[int, int]) -> None:
    n, k = 70, 300
    target = target_of(level)
    whole = product(target, m, n, k, tile=tile)
    some = replace(whole, args=(*whole.args, Arg(INT64)), masked_tail=3)
    rng = np.random.default_rng(m)
    a, b = random(rng, (1, m, k), FLOAT32), random(rng, (1, k, n), FLOAT32)
    panels = pack(b, whole.panel, whole.acc)
    want = np.zeros((m, n), np.float32)
    Kernel(whole, target).run([a, panels, want])
    kernel = Kernel(some, target)
    for wanted in {0, 1, m // 3, m - 1, m}:
        got = np.full((m, n), np.nan, np.float32)
        extent, computed = some.extent_for(wanted), some.computed_rows(wanted)
        assert isinstance(extent, int)
        assert isinstance(computed, int)
        assert wanted <= computed < wanted + tile[0]
        assert extent <= whole.extent
        kernel.run([a, panels, got, np.array([m - wanted])], pieces=3, extent=extent)
        np.testing.assert_array_equal(got[:computed], want[:computed])
        assert np.isnan(got[computed:]).all()
    assert some.extent_for(m) == whole.extent
    assert some.extent_for(0) == 0


# -- how the work is cut ---------------------------------------------------------------------------


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("m", [1, 2, 3, 10, 49, 197, 480])
@pytest.mark.parametrize("n", [1, 3, 16, 64, 100, 384, 3072])
def test_tiles_fit_the_registers(registers: int, m: int, n: int) -> None:
    vector_bytes = 64 if registers == 32 else 32
    rows, panel = tile_for(vector_bytes, registers, FLOAT32, m, n)
    vectors = max(1, panel * 4 // vector_bytes)
    assert 1 <= rows <= max(m, 1)
    assert rows * vectors + vectors + 1 <= registers
    assert -(-n // panel) * panel < n + max(vector_bytes // 4, n // 3)


def test_tiles_for_symbolic_sizes_suit_small_ones_too() -> None:
    n = Variable("n", 1, 256)
    whole = tile_for(64, 32, FLOAT32, 256, 256)
    assert tile_for(64, 32, FLOAT32, 256, n)[1] < whole[1], "few columns fill few panels"
    rows, _ = tile_for(64, 32, FLOAT32, n, 256)
    assert rows * 2 > whole[0]
    assert tile_for(64, 32, FLOAT32, Variable("m", 256, 256), 256) == whole
    assert tile_for(64, 32, FLOAT32, 4, Variable("k", 0, 3)) == tile_for(64, 32, FLOAT32, 4, 3)


def test_smaller_tiles_exist_only_where_a_full_one_may_not_fit() -> None:
    target = target_of("host")
    assert product(target, 20, 48, 8, tile=(8, 48)).remainders == ()
    assert product(target, 5, 48, 8, tile=(8, 48)).remainders == (5,)
    m = Variable("M", 1, 64)
    assert product(target, m, 48, 8, tile=(8, 48), variables=[m]).remainders == tuple(range(1, 8))
    assert product(target, m, 48, 8, tile=(12, 32), variables=[m]).remainders == tuple(range(1, 12))


def test_sums_are_those_of_a_tile_unless_others_come_before_they_are_whole() -> None:
    target = target_of("host")
    whole = product(target, 96, 48, 512, tile=(8, 48))
    fetch = Prefetch(target.caches, target.vector_bytes)
    long = replace(product(target, 96, 480, 8192, tile=(8, 48)), prefetch=fetch, chains=1)
    turned = product(target, 96, 48, 512, tile=(8, 48), transposed=True)
    assert (whole.finishes_tiles, whole.keeps_item) == (True, False)
    assert whole.sums_bytes == 8 * 48 * 4
    assert (long.finishes_tiles, long.keeps_item) == (True, True)
    assert long.depth_block is not None
    assert long.sums_bytes == long.item_sums_bytes >= long.block * 48 * 4
    assert (turned.finishes_tiles, turned.keeps_item) == (False, True)


def test_items_are_worth_handing_out() -> None:
    target = target_of("host")
    large = product(target, 480, 3072, 768, tile=(8, 48))
    assert large.grain * large.block * large.panel * 2 * 768 >= 1_000_000
    assert isinstance(large.extent, int)
    assert large.extent // large.grain >= 64
    vector = product(target, 1, 768, 768, tile=(1, 64))
    assert vector.blocks == 1
    assert vector.extent == vector.panels == 12

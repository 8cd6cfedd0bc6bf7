"""Loads, stores, gathers and scatters: conversions, masks, and what they must not touch."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from llvmlite import ir

from ostinato.backends.cpu.llvm import memory
from ostinato.backends.cpu.llvm.toolchain import TargetSpec, compile_module
from ostinato.backends.cpu.llvm.types import BYTE_POINTER, I1, I32, I64, vector_of
from ostinato.backends.cpu.loader.link import load
from ostinato.dtypes import ALL_DTYPES, BFLOAT16, FLOAT16, FLOAT32, INT8

WIDTHS = (1, 4, 8, 16)
PAGE = mmap.PAGESIZE


class Copier:
    """Compiled copy routines of one dtype, each ``(to, from, indices or mask)``."""

    def __init__(self, dtype, level="host"):
        self.dtype = dtype
        module = ir.Module()
        names = []
        for lanes in WIDTHS:
            for build in (self._plain, self._masked, self._gather, self._scatter):
                names.append(f"copy{build.__name__}_{lanes}")
                build(self._function(module, names[-1]), lanes)
        self._code = load([(compile_module(module, TargetSpec.named(level)), names)])

    def __call__(self, kind, lanes, to, source, extra=None):
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
        call(self._code.address(f"copy_{kind}_{lanes}"))(
            _pointer(to), _pointer(source), _pointer(extra)
        )

    @staticmethod
    def _function(module, name):
        signature = ir.FunctionType(ir.VoidType(), [BYTE_POINTER] * 3)
        return ir.Function(module, signature, name)

    def _plain(self, function, lanes):
        b = ir.IRBuilder(function.append_basic_block())
        to, source, _ = function.args
        lane = memory.load(b, source, self.dtype, I64(0), lanes)
        memory.store(b, to, self.dtype, I64(0), lane)
        b.ret_void()

    def _masked(self, function, lanes):
        b = ir.IRBuilder(function.append_basic_block())
        to, source, flags = function.args
        mask = self._mask(b, flags, lanes)
        lane = memory.load(b, source, self.dtype, I64(0), lanes, mask)
        memory.store(b, to, self.dtype, I64(0), lane, mask)
        b.ret_void()

    def _gather(self, function, lanes):
        b = ir.IRBuilder(function.append_basic_block())
        to, source, indices = function.args
        lane = memory.gather(b, source, self.dtype, self._indices(b, indices, lanes, I64))
        memory.store(b, to, self.dtype, I64(0), lane)
        b.ret_void()

    def _scatter(self, function, lanes):
        """Reads by 32-bit and writes by 64-bit indices; index -1 is masked out."""
        b = ir.IRBuilder(function.append_basic_block())
        to, source, indices = function.args
        wide = self._indices(b, indices, lanes, I64)
        mask = b.icmp_signed(">=", wide, ir.Constant(wide.type, None))
        narrow = b.trunc(wide, vector_of(I32, lanes))
        lane = memory.gather(b, source, self.dtype, narrow, mask)
        memory.scatter(b, to, self.dtype, wide, lane, mask)
        b.ret_void()

    @staticmethod
    def _indices(b, pointer, lanes, element):
        return b.load(pointer, typ=vector_of(element, lanes), align=8)

    @staticmethod
    def _mask(b, pointer, lanes):
        flags = memory.load(b, pointer, INT8, I64(0), lanes).value
        return b.trunc(flags, vector_of(I1, lanes))


def _pointer(memory_like):
    return memory_like.ctypes.data if isinstance(memory_like, np.ndarray) else memory_like


@pytest.fixture(scope="module", params=ALL_DTYPES, ids=str)
def copier(request):
    return Copier(request.param)


def values(dtype, count):
    if dtype.is_bool:
        return np.arange(count) % 3 == 0
    return (np.arange(count) * 7 % 51 + 1).astype(dtype.numpy)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_copies_are_exact_at_any_alignment(copier, lanes):
    dtype = copier.dtype
    source, to = values(dtype, 40), np.zeros(40, dtype.numpy)
    copier("plain", lanes, to[3:], source[5:])
    expected = np.zeros(40, dtype.numpy)
    expected[3 : 3 + lanes] = source[5 : 5 + lanes]
    np.testing.assert_array_equal(to, expected)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_masked_copies_leave_the_rest(copier, lanes):
    source, to = values(copier.dtype, 16), values(copier.dtype, 17)[1:].copy()
    for pattern in range(4):
        mask = ((np.arange(lanes) + pattern) % 3 == 0).astype(np.int8)
        expected = to.copy()
        expected[:lanes][mask != 0] = source[:lanes][mask != 0]
        copier("masked", lanes, to, source, mask)
        np.testing.assert_array_equal(to, expected)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_gather_and_scatter(copier, lanes):
    dtype = copier.dtype
    source, to = values(dtype, 64), np.zeros(64, dtype.numpy)
    indices = np.random.default_rng(lanes).permutation(64)[:lanes].astype(np.int64)
    copier("gather", lanes, to, source, indices)
    np.testing.assert_array_equal(to[:lanes], source[indices])
    to[:] = 0
    indices[::3] = -1
    copier("scatter", lanes, to, source, indices)
    expected = np.zeros(64, dtype.numpy)
    kept = indices[indices >= 0]
    expected[kept] = source[kept]
    np.testing.assert_array_equal(to, expected)


def guarded_pages():
    """A readable page and an unreadable one after it; gives the mapping and the boundary."""
    mapping = mmap.mmap(-1, 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE), 0) != 0:
        pytest.skip("cannot protect memory here")
    return mapping, start + PAGE


@pytest.mark.parametrize("level", ["host", "avx2", "sse2"])
@pytest.mark.parametrize("lanes", WIDTHS)
def test_inactive_lanes_touch_no_memory(level, lanes):
    mapping, boundary = guarded_pages()
    for dtype in (INT8, FLOAT16, FLOAT32):
        copier = Copier(dtype, level)
        for active in range(lanes):
            edge = boundary - active * dtype.itemsize
            mask = (np.arange(lanes) < active).astype(np.int8)
            out = np.zeros(lanes, dtype.numpy)
            copier("masked", lanes, out, edge, mask)
            copier("masked", lanes, edge, out, mask)
            indices = np.where(mask, np.arange(lanes), -1).astype(np.int64)
            copier("scatter", lanes, edge, edge, indices)
    del mapping


@pytest.mark.parametrize("level", ["host", "sse2"])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("lanes", [1, 8])
def test_sixteen_bit_floats_convert_like_numpy(compile_loops, dtype, lanes, level):
    loops = compile_loops(
        {
            "widen": (lambda x: x.astype(FLOAT32), (dtype,), lanes),
            "narrow": (lambda x: x.astype(dtype), (FLOAT32,), lanes),
        },
        TargetSpec.named(level),
    )
    every = np.arange(1 << 16).astype(np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        wide = every.astype(np.float32)
    np.testing.assert_array_equal(loops("widen", every), wide)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16).astype(np.uint32)
    midpoints = wide.view(np.uint32) + np.uint32(0x1000 if dtype == FLOAT16 else 0x8000)
    x = np.concatenate([wide, midpoints.view(np.float32), bits.view(np.float32)])
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy)
    result = loops("narrow", x)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(
        result.view(np.uint16)[numbers], expected.view(np.uint16)[numbers]
    )
    assert np.isnan(result[~numbers].astype(np.float32)).all()

"""Conversions between every pair of dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.backends.cpu.llvm.namespace import LaneNamespace
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.dtypes import ALL_DTYPES, BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT32
from ostinato.errors import DeviceUnavailableError

XP = LaneNamespace()


def values(dtype):
    if dtype == BOOL:
        return np.array([False, True, True, False])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        small = np.arange(0 if info.min == 0 else -20, 20)
        edges = np.array([info.min, info.max, info.max // 2], dtype.numpy)
        return np.concatenate([small.astype(dtype.numpy), edges])
    small = np.array([0.0, -0.0, 0.4, -0.4, 1.5, -1.5, 2.5, 100.25, -100.75, 0.1, 65504.0])
    return small.astype(dtype.numpy)


def expected(x, dtype):
    """NumPy's conversion where C defines it, else saturated."""
    if dtype.is_integer and x.dtype.kind in "fV":
        info = np.iinfo(dtype.numpy)
        exact = [int(v) for v in x.astype(np.float64)]
        return np.array([min(max(v, info.min), info.max) for v in exact], dtype.numpy)
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy)


@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
def test_every_pair(compile_loops, source):
    x = values(source)
    loops = compile_loops(
        {
            f"to_{d.name}_{w}": ((lambda v, d=d: XP.astype(v, d)), (source,), w)
            for d in ALL_DTYPES
            for w in (1, 8)
        }
    )
    for dtype in ALL_DTYPES:
        want = expected(x, dtype)
        for width in (1, 8):
            got = loops(f"to_{dtype.name}_{width}", x)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(
                got.astype(np.float64), want.astype(np.float64), err_msg=f"{source} to {dtype}"
            )


def test_floats_saturate_to_integers(compile_loops):
    loops = compile_loops(
        {
            "int8": (lambda x: XP.astype(x, "int8"), (FLOAT32,), 8),
            "uint8": (lambda x: XP.astype(x, "uint8"), (FLOAT32,), 1),
            "int64": (lambda x: XP.astype(x, "int64"), (FLOAT64,), 8),
        }
    )
    x = np.array([300, -300, np.inf, -np.inf, np.nan, 1e30, -0.9, 127.9], np.float64)
    single = x.astype(np.float32)
    np.testing.assert_array_equal(loops("int8", single), [127, -128, 127, -128, 0, 127, 0, 127])
    np.testing.assert_array_equal(loops("uint8", single), [255, 0, 255, 0, 0, 255, 0, 127])
    top, bottom = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.testing.assert_array_equal(loops("int64", x), [300, -300, top, bottom, 0, top, 0, 127])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("lanes", [1, 8])
def test_float64_is_rounded_to_sixteen_bits_once(compile_loops, dtype, lanes):
    loops = compile_loops({"narrow": (lambda x: XP.astype(x, dtype), (FLOAT64,), lanes)})
    step = 2.0 ** (-11 if dtype == FLOAT16 else -8)
    midpoints = 1 + step * np.arange(1, 200, 2)
    tiny = 2.0**-40
    x = np.concatenate([midpoints, midpoints + tiny, midpoints - tiny, -midpoints - tiny])
    exact = np.concatenate(
        [
            np.round(midpoints / (2 * step)) * 2 * step,
            midpoints + step,
            midpoints - step,
            -midpoints - step,
        ]
    )
    np.testing.assert_array_equal(loops("narrow", x).astype(np.float64), exact)


def test_bitcast_round_trips(compile_loops):
    loops = compile_loops(
        {"negate": (lambda x: (x.bitcast(INT32) ^ (-1 << 31)).bitcast(FLOAT32), (FLOAT32,), 4)}
    )
    x = np.array([1.5, -2.0, 0.0], np.float32)
    np.testing.assert_array_equal(loops("negate", x), -x)


def test_bool_becomes_one(compile_loops):
    loops = compile_loops({"widen": (lambda x: XP.astype(x, INT8), (BOOL,), 8)})
    np.testing.assert_array_equal(loops("widen", np.array([True, False])), [1, 0])


@pytest.mark.parametrize("level", ["host", "avx512", "avx2", "sse2"])
def test_signs_of_halves_that_were_doubles(compile_loops, level):
    """LLVM takes such a sign from a conversion of its own, by a routine that must be there."""
    try:
        target = TargetSpec.named(level)
    except DeviceUnavailableError as error:
        pytest.skip(str(error))

    def tanh_of_half(x):
        half = XP.astype(XP.astype(x * 3.0, FLOAT32), FLOAT16)
        return XP.astype(XP.tanh(half), FLOAT16)

    widths = (1, 8)
    loops = compile_loops({f"f{w}": (tanh_of_half, (FLOAT64,), w) for w in widths}, target)
    x = np.concatenate([values(FLOAT64), -values(FLOAT64), [1e-9, -1e-9, 1e-320, -1e300]])
    with np.errstate(over="ignore"):
        want = np.tanh((x * 3.0).astype(np.float32).astype(np.float16).astype(np.float64))
    for width in widths:
        got = loops(f"f{width}", x)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-3, atol=1e-7)

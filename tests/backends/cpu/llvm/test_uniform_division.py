"""Division by one float32: the bits of a division, for all dividends and divisors."""

from __future__ import annotations

import numpy as np
import pytest
from llvmlite import ir

from ostinato.backends.cpu.llvm.lanes import Lane
from ostinato.backends.cpu.llvm.toolchain import TargetSpec
from ostinato.backends.cpu.llvm.uniform_division import UniformDivisor
from ostinato.dtypes import FLOAT32

LANES = (8, 16)
ONES = np.uint32(0x3F800000)


def first_of(x: Lane, y: Lane) -> Lane:
    divisor = x.builder.extract_element(y.value, ir.IntType(32)(0))
    return x.like(UniformDivisor(x.builder, divisor, x.lanes).quotient(x.value))


@pytest.fixture(scope="module")
def divide(compile_loops):
    if TargetSpec.host().vector_bytes < 32:
        pytest.skip("no fused multiply-adds")
    return compile_loops({f"by_{n}": (first_of, (FLOAT32, FLOAT32), n) for n in LANES})


def assert_divides(divide, x: np.ndarray, y: np.ndarray) -> None:
    """All of ``x`` by each of ``y``, whose vectors are all alike."""
    for divisor in y:
        divisors = np.full_like(x, divisor)
        with np.errstate(all="ignore"):
            expected = x / divisors
        for lanes in LANES:
            found = divide(f"by_{lanes}", x, divisors)
            same = (found.view(np.int32) == expected.view(np.int32)) | np.isnan(expected)
            assert same.all(), (x[~same][0], divisor, found[~same][0], expected[~same][0])
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_significands_of_all_kinds(divide):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 23, 5000).astype(np.uint32)
    edges = np.array([0, 1, 2, 3, (1 << 23) - 1, (1 << 23) - 2, 1 << 22], np.uint32)
    x = (np.concatenate([edges, bits, (1 << 23) - 1 - (bits & 255)]).astype(np.uint32) + ONES).view(
        np.float32
    )
    near = np.concatenate([edges, (1 << 23) - 1 - bits[:40] % 64, bits[40:120], bits[:20] % 32])
    assert_divides(divide, x, (near.astype(np.uint32) + ONES).view(np.float32))


def test_exponents_and_special_values(divide):
    rng = np.random.default_rng(1)
    special = [0.0, np.inf, np.nan, 1e-45, 1.1754944e-38, 3.4e38, 2.0**-100, 2.0**100, 2.0**-101]
    patterns = rng.integers(0, 1 << 32, 4000, np.uint32).view(np.float32)
    patterns = patterns[~np.isnan(patterns)]
    x = np.concatenate([special, np.negative(special), patterns, patterns], dtype=np.float32)
    powers = np.float32(2.0) ** np.array([-126, -27, -26, -25, 0, 25, 26, 27, 126], np.float32)
    y = np.concatenate([special, -powers, 3 * powers, patterns[:60]], dtype=np.float32)
    for _ in range(2):  # special values among others, and together
        assert_divides(divide, x, y)
        x = np.sort(x)


@pytest.mark.slow
def test_every_significand_by_many(divide):
    x = (np.arange(1 << 23, dtype=np.uint32) + ONES).view(np.float32)
    rng = np.random.default_rng(2)
    bits = [*rng.integers(0, 1 << 23, 100), *((1 << 23) - 1 - np.arange(60)), *range(40)]
    assert_divides(divide, x, (np.array(bits, np.uint32) + ONES).view(np.float32))

"""Random numbers of answers: a function of the seed, the answer's number and the token's index.

A token's randomness does not depend on the step in which it is drawn, on the batch, or on earlier
draws. So a preempted, batched or speculated request draws the numbers that it would draw alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["philox", "uniforms"]

#: Multipliers and key increments of Philox4x64 (Salmon et al., "Parallel Random Numbers: As Easy
#: as 1, 2, 3", 2011).
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_INCREMENTS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_WORD = 2**64 - 1


def philox(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """The first words of Philox4x64-10 for the counters ``(c, 0, 0, 0)``.

    Args:
        counters: uint64 ``[n]``.
        key: two numbers of 64 bits.

    Returns:
        uint64 ``[n]``.
    """
    zeros = np.zeros_like(counters)
    a, b, c, d = counters, zeros, zeros, zeros
    first, second = key
    for _ in range(_ROUNDS):
        high_a, low_a = _product(a, _MULTIPLIERS[0])
        high_c, low_c = _product(c, _MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ np.uint64(first), low_c, high_a ^ d ^ np.uint64(second), low_a
        first, second = (first + _INCREMENTS[0]) & _WORD, (second + _INCREMENTS[1]) & _WORD
    return a


def uniforms(seed: int, branch: int, first: int, count: int) -> NDArray[np.float32]:
    """Uniform numbers in [0, 1) for the tokens ``first`` to ``first + count - 1`` of an answer.

    Each is the upper 24 bits of a word of Philox4x64-10 with key ``(seed, branch)`` and the token's
    index as counter, so float32 holds it exactly.

    Args:
        seed: of the request, 0 to 2**64 - 1.
        branch: number of the answer among those of its request.
        first: index of a token in the answer, from 0.
        count: number of tokens.
    """
    counters = np.arange(first, first + count, dtype=np.uint64)
    top = philox(counters, (seed, branch)) >> np.uint64(40)
    return top.astype(np.float32) * np.float32(2.0**-24)


def _product(words: NDArray[np.uint64], factor: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The upper and lower 64 bits of ``words * factor``."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    low, high = words & mask, words >> half
    factor_low, factor_high = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    cross = high * factor_low + ((low * factor_low) >> half)
    middle = low * factor_high + (cross & mask)
    upper = high * factor_high + (cross >> half) + (middle >> half)
    return upper, words * np.uint64(factor)

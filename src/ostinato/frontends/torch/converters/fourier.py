"""Converters of Fourier transforms, in the three forms to which PyTorch brings all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.frontends.torch.call import Complex

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]

#: The results are divided by nothing, by the root of the number of elements, or by the number.
_BY_ROOT, _BY_NUMBER = 1, 2


def _scaled(call: Call, x: Value, sizes: list[int], normalization: int) -> Value:
    count = math.prod(sizes)
    factor = {_BY_ROOT: 1 / math.sqrt(count), _BY_NUMBER: 1 / count}.get(normalization, 1.0)
    return x if factor == 1.0 else call.g.multiply(x, factor)


def _sizes(call: Call, x: Value | Complex, axes: tuple[int, ...]) -> list[int]:
    return [call.fixed(x.shape[axis], "length") for axis in axes]


def _along(call: Call, pairs: Value, axes: tuple[int, ...], *, forward: bool) -> Value:
    """The transforms along axes, one after the other, without a scale."""
    g = call.g
    for axis in axes:
        if forward:
            pairs = g.fft(pairs, axis=axis, norm="backward")
        else:
            pairs = g.ifft(pairs, axis=axis, norm="forward")
    return pairs


def _complex_to_complex(
    call: Call, self: Complex, dim: tuple[int, ...], normalization: int, forward: bool
) -> Complex:
    axes = tuple(call.axis(d, self.ndim) for d in dim)
    pairs = _along(call, self.pairs, axes, forward=forward)
    return Complex(_scaled(call, pairs, _sizes(call, self, axes), normalization))


def _real_to_complex(
    call: Call, self: Value, dim: tuple[int, ...], normalization: int, onesided: bool
) -> Complex:
    """Of the last axis, the first half where ``onesided``: the rest follows from it."""
    g = call.g
    axes = tuple(call.axis(d, self.ndim) for d in dim)
    if onesided:
        pairs = g.rfft(self, axis=axes[-1], norm="backward")
        pairs = _along(call, pairs, axes[:-1], forward=True)
    else:
        pairs = _along(call, g.stack([self, g.zeros_like(self)], -1), axes, forward=True)
    return Complex(_scaled(call, pairs, _sizes(call, self, axes), normalization))


def _complex_to_real(
    call: Call, self: Complex, dim: tuple[int, ...], normalization: int, last_dim_size: int
) -> Value:
    g = call.g
    axes = tuple(call.axis(d, self.ndim) for d in dim)
    length = call.fixed(last_dim_size, "length")
    pairs = _along(call, self.pairs, axes[:-1], forward=False)
    result = g.irfft(pairs, n=length, axis=axes[-1], norm="forward")
    sizes = [*_sizes(call, self, axes[:-1]), length]
    return _scaled(call, result, sizes, normalization)


CONVERTERS: dict[str, Converter] = {
    "aten._fft_c2c": _complex_to_complex,
    "aten._fft_r2c": _real_to_complex,
    "aten._fft_c2r": _complex_to_real,
}

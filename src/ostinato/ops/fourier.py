"""Discrete Fourier transforms of the last axis, in real arithmetic.

A complex tensor is a pair of real ones; an imaginary part may be ``None``, for zeros. Short
transforms are matmuls with a constant matrix. A length ``a * b`` is split as Cooley and Tukey do:
transforms of ``a`` points, factors, then transforms of ``b`` points. A long prime length is a
convolution with a chirp (Bluestein, 1970), by transforms of a power of two. So the cost is linear
in the elements but for a logarithm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ostinato.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.variables import Dim

__all__ = ["NORMS", "Parts", "fitted", "fixed_length", "mirrored", "scale", "transform"]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: A complex tensor: its real part, and its imaginary part or ``None``.
Parts: TypeAlias = tuple[Any, Any]

#: Transforms of at most so many points are one matmul; longer ones are split at a divisor.
_LARGEST_MATMUL = 64

#: Prime lengths of at most so many points are one matmul, too.
_LARGEST_PRIME = 200

#: The factors by which transforms are scaled: of both ways, by the length to these powers.
NORMS = {"backward": (0.0, -1.0), "ortho": (-0.5, -0.5), "forward": (-1.0, 0.0)}


def scale(norm: str, length: int, inverse: bool) -> float:
    """The factor of a transform with a norm of :data:`NORMS`.

    Raises:
        GraphError: no such norm.
    """
    if norm not in NORMS:
        raise GraphError(f"the norm is one of {tuple(NORMS)}, got {norm!r}")
    return float(length ** NORMS[norm][inverse])


def fixed_length(length: Dim) -> int:
    """The length of a transform.

    Raises:
        GraphError: it depends on a Variable, or is less than 1.
    """
    if not isinstance(length, int):
        raise GraphError(f"the length of a transform depends on a Variable: {length}; fix its size")
    if length < 1:
        raise GraphError(f"a transform of {length} points")
    return length


def fitted(g: Any, x: Any, length: int) -> Any:
    """``x`` cut at ``length`` along the last axis, or filled with zeros up to it."""
    type_ = g.type_of(x)
    size = type_.shape[-1]
    if size == length:
        return x
    if fixed_length(max(size, 1) if isinstance(size, int) else size) > length:
        return g.slice(x, [0], [length], axes=[-1])
    return g.pad(x, [(0, 0)] * (type_.ndim - 1) + [(0, length - size)])


def mirrored(g: Any, x: Parts, length: int) -> Parts:
    """All bins of a real signal, from the first half of them: the others are their conjugates."""
    parts = []
    for index, part in enumerate(x):
        if part is not None:
            rest = g.flip(g.slice(part, [1], [length - length // 2], axes=[-1]), axis=-1)
            part = g.concat([part, g.neg(rest) if index else rest], axis=-1)  # noqa: PLW2901
        parts.append(part)
    return parts[0], parts[1]


def transform(g: Any, x: Parts, inverse: bool) -> Parts:
    """The transform of the last axis, not scaled."""
    shape = g.type_of(x[0]).shape
    length = fixed_length(shape[-1])
    first = _divisor(length)
    if first == 1 and length > _LARGEST_PRIME:
        return _by_chirp(g, x, inverse)
    if first == 1:
        line = np.arange(length)
        return _matmul(g, x, _roots(np.outer(line, line), length, inverse))
    second, lead = length // first, shape[:-1]
    # Position p = second * i + j; frequency f = k + first * l.
    split = _each(g, x, lambda part: g.swapaxes(g.reshape(part, (*lead, first, second)), -1, -2))
    columns = transform(g, split, inverse)  # [..., j, k]
    factors = _roots(np.outer(np.arange(second), np.arange(first)), length, inverse)
    rows = _each(g, _multiplied(g, columns, factors), lambda part: g.swapaxes(part, -1, -2))
    spectrum = transform(g, rows, inverse)  # [..., k, l]
    return _each(g, spectrum, lambda part: g.reshape(g.swapaxes(part, -1, -2), (*lead, length)))


def _by_chirp(g: Any, x: Parts, inverse: bool) -> Parts:
    """``f * p = (f**2 + p**2 - (f - p)**2) / 2``: a convolution between two multiplications."""
    length = g.type_of(x[0]).shape[-1]
    line = np.arange(length)
    half_turns = line * line % (2 * length)
    chirp = _roots(half_turns, 2 * length, inverse)
    size = 1 << (2 * length - 2).bit_length()
    kernel = np.zeros(size, np.complex128)
    kernel[:length] = chirp[0] - 1j * chirp[1]
    kernel[size - length + 1 :] = kernel[length - 1 : 0 : -1]
    spectrum = np.fft.fft(kernel) / size
    modulated = _each(g, _multiplied(g, x, chirp), lambda part: fitted(g, part, size))
    product = _multiplied(g, transform(g, modulated, False), (spectrum.real, spectrum.imag))
    convolved = _each(g, transform(g, product, True), lambda part: fitted(g, part, length))
    return _multiplied(g, convolved, chirp)


def _each(g: Any, x: Parts, change: Any) -> Parts:
    real, imaginary = x
    return change(real), None if imaginary is None else change(imaginary)


def _divisor(length: int) -> int:
    """The divisor to split ``length`` at; 1 to leave it whole."""
    if length <= _LARGEST_MATMUL:
        return 1
    return next(d for d in range(math.isqrt(length), 0, -1) if length % d == 0)


def _roots(turns: Array, length: int, inverse: bool) -> tuple[Array, Array]:
    """Cosines and sines of ``turns / length`` turns, clockwise unless ``inverse``."""
    angle = (2 if inverse else -2) * np.pi * (turns % length) / length
    return np.cos(angle), np.sin(angle)


def _matmul(g: Any, x: Parts, matrix: tuple[Array, Array]) -> Parts:
    """A product with a constant matrix: one matmul of the two parts side by side."""
    (real, imaginary), (cos, sin) = x, matrix
    size = cos.shape[0]
    rows = np.concatenate([cos, sin], axis=1)
    if imaginary is not None:
        rows = np.concatenate([rows, np.concatenate([-sin, cos], axis=1)])
        real = g.concat([real, imaginary], axis=-1)
    both = g.matmul(real, g.constant(rows, g.type_of(real).dtype))
    return g.slice(both, [0], [size], axes=[-1]), g.slice(both, [size], [2 * size], axes=[-1])


def _multiplied(g: Any, x: Parts, factors: Sequence[Array]) -> Parts:
    real, imaginary = x
    cos, sin = (g.constant(part, g.type_of(real).dtype) for part in factors)
    if imaginary is None:
        return g.multiply(real, cos), g.multiply(real, sin)
    return (
        g.subtract(g.multiply(real, cos), g.multiply(imaginary, sin)),
        g.add(g.multiply(real, sin), g.multiply(imaginary, cos)),
    )

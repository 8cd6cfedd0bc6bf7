"""The methods for complex numbers and Fourier transforms.

A complex tensor is a tensor of floats with a last axis of 2: the real and the imaginary parts, as
``torch.view_as_real`` has them. Axes are counted without that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import FLOAT32
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.base import normalize_axis
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.linalg import LinalgVocabulary
from ostinato.ops.vocabulary.shape import ShapeVocabulary
from ostinato.ops.vocabulary.special import SpecialVocabulary

if TYPE_CHECKING:
    from ostinato.ops import fourier
    from ostinato.ops.fourier import Parts
else:
    fourier = LazyModule("ostinato.ops.fourier")

__all__ = ["SpectralVocabulary"]


class SpectralVocabulary(LinalgVocabulary[T], ShapeVocabulary[T], SpecialVocabulary[T]):
    """Methods over complex numbers; all raise :class:`~ostinato.errors.GraphError` for misfits."""

    # -- complex numbers --------------------------------------------------------------------

    def complex_multiply(self, x: Any, y: Any) -> T:
        """The product of complex tensors, which broadcast."""
        (a, b), (c, d) = self._parts(x), self._parts(y)
        real = self.subtract(self.multiply(a, c), self.multiply(b, d))
        return self.stack([real, self.add(self.multiply(a, d), self.multiply(b, c))], axis=-1)

    def complex_abs(self, x: Any) -> T:
        """The absolute value of a complex tensor, without overflow."""
        return self.hypot(*self._parts(x))

    def angle(self, x: Any) -> T:
        """The angle of a complex tensor, from -pi to pi."""
        real, imaginary = self._parts(x)
        return self.atan2(imaginary, real)

    def polar(self, abs: Any, angle: Any) -> T:
        """The complex tensor with these absolute values and angles, which broadcast."""
        real = self.multiply(abs, self.cos(angle))
        return self.stack([real, self.multiply(abs, self.sin(angle))], axis=-1)

    # -- Fourier transforms -----------------------------------------------------------------

    def fft(self, x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> T:
        """The discrete Fourier transform of a complex tensor along ``axis``.

        Args:
            n: the length, to which the axis is cut or filled with zeros; that of the axis if not
                given. It is a number: it must not depend on a Variable.
            axis: the axis, counted without that of the parts.
            norm: ``"backward"``, ``"ortho"`` or ``"forward"``, as NumPy has them.

        Returns:
            A complex tensor.
        """
        return self._full_transform(x, n, axis, norm, inverse=False)

    def ifft(self, x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> T:
        """The inverse of :meth:`fft`; arguments are the same."""
        return self._full_transform(x, n, axis, norm, inverse=True)

    def rfft(self, x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> T:
        """The first ``n // 2 + 1`` frequencies of a real tensor, as a complex tensor.

        Arguments are those of :meth:`fft`; integers give float32.
        """
        lifted, type_ = self._typed(x)
        dtype = type_.dtype if type_.dtype.is_float else FLOAT32
        where = normalize_axis(axis, type_.ndim)
        length = fourier.fixed_length(type_.shape[where] if n is None else n)
        signal = self.moveaxis(self.cast(lifted, dtype.accumulator), where, -1)
        spectrum = fourier.transform(self, (fourier.fitted(self, signal, length), None), False)
        bins = length // 2 + 1
        cut = (self.slice(part, [0], [bins], axes=[-1]) for part in spectrum)
        factor = fourier.scale(norm, length, False)
        return self.cast(self._joined(tuple(cut), where, factor), dtype)

    def irfft(self, x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> T:
        """The real tensor whose :meth:`rfft` is ``x``.

        Arguments are those of :meth:`fft`; the length is ``2 * (bins - 1)`` unless given.
        """
        where, parts, dtype = self._along(x, axis)
        bins = self._typed(parts[0])[1].shape[-1]
        length = fourier.fixed_length(2 * (bins - 1) if n is None else n)
        half = length // 2 + 1
        fitted = tuple(fourier.fitted(self, part, half) for part in parts)
        whole = fourier.mirrored(self, (fitted[0], fitted[1]), length)
        real, _ = fourier.transform(self, whole, True)
        scaled = self.multiply(real, fourier.scale(norm, length, True))
        return self.cast(self.moveaxis(scaled, -1, where), dtype)

    # -- machinery --------------------------------------------------------------------------

    def _parts(self, x: Any) -> tuple[T, T]:
        """The real and the imaginary part."""
        lifted, type_ = self._typed(x)
        if type_.ndim == 0 or type_.shape[-1] != 2 or not type_.dtype.is_float:
            raise GraphError(f"a complex tensor is floats [..., 2], got {type_}")
        real, imaginary = (
            self.reshape(self.slice(lifted, [i], [i + 1], axes=[-1]), type_.shape[:-1])
            for i in (0, 1)
        )
        return real, imaginary

    def _along(self, x: Any, axis: int) -> tuple[int, Parts, Any]:
        """The axis, the parts with that axis as the last one, and the dtype of ``x``."""
        parts = self._parts(x)
        type_ = self._typed(parts[0])[1]
        where = normalize_axis(axis, type_.ndim)
        wide = type_.dtype.accumulator
        real, imaginary = (self.moveaxis(self.cast(part, wide), where, -1) for part in parts)
        return where, (real, imaginary), type_.dtype

    def _full_transform(self, x: Any, n: int | None, axis: int, norm: str, *, inverse: bool) -> T:
        where, parts, dtype = self._along(x, axis)
        length = fourier.fixed_length(self._typed(parts[0])[1].shape[-1] if n is None else n)
        real, imaginary = (fourier.fitted(self, part, length) for part in parts)
        spectrum = fourier.transform(self, (real, imaginary), inverse)
        return self.cast(self._joined(spectrum, where, fourier.scale(norm, length, inverse)), dtype)

    def _joined(self, parts: tuple[Any, ...], axis: int, factor: float) -> T:
        """Parts as one tensor, with the last axis at its place, times a factor."""
        if factor != 1.0:
            parts = tuple(self.multiply(part, factor) for part in parts)
        return self.stack([self.moveaxis(part, -1, axis) for part in parts], axis=-1)

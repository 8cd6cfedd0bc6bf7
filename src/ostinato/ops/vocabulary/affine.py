"""The methods of affine quantisation: integers that stand for ``(q - zero_point) * scale``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import DType
from ostinato.errors import GraphError
from ostinato.lazy import LazyModule
from ostinato.ops.vocabulary.core import T
from ostinato.ops.vocabulary.windows import PerAxis, WindowVocabulary

if TYPE_CHECKING:
    from ostinato.ops import affine, convolution, windows
    from ostinato.ops.windows import PaddingSpec
else:
    affine = LazyModule("ostinato.ops.affine")
    convolution = LazyModule("ostinato.ops.convolution")
    windows = LazyModule("ostinato.ops.windows")

__all__ = ["AffineVocabulary"]


class AffineVocabulary(WindowVocabulary[T]):
    """Methods on integers with a scale and a zero point; all raise ``GraphError`` for misfits."""

    def quantize(self, x: Any, scale: Any, zero_point: Any) -> T:
        """``saturate(round(x / scale) + zero_point)``, in the dtype of ``zero_point``.

        Args:
            x: floats.
            scale: floats that broadcast against ``x``.
            zero_point: integers that do; an array or a value, as its dtype is the result's.
        """
        return self._one(affine.QUANTIZE, *self._lift(x), *self._lift(scale, zero_point))

    def dequantize(self, q: Any, scale: Any, zero_point: Any) -> T:
        """``(q - zero_point) * scale``, in the dtype of ``scale``.

        Args:
            q: integers.
            scale: floats that broadcast against ``q``.
            zero_point: integers that do.
        """
        q, type_ = self._typed(q)
        return self._one(affine.DEQUANTIZE, q, *self._lift(scale), self._zero(zero_point, type_))

    def requantize(self, sums: Any, scale: Any, zero_point: Any) -> T:
        """``saturate(round(sums * scale) + zero_point)`` of int32, in ``zero_point``'s dtype.

        Args:
            sums: int32, as integer matmuls and convolutions give.
            scale: floats that broadcast against ``sums``: of the operands, over the result's.
            zero_point: integers that do.
        """
        return self._one(affine.REQUANTIZE, *self._lift(sums), *self._lift(scale, zero_point))

    def affine_matmul(self, a: Any, b: Any, a_zero: Any = 0, b_zero: Any = 0) -> T:
        """``(a - a_zero) @ (b - b_zero)`` of int8 or uint8, in int32, wrapping.

        Args:
            a: ``[..., M, K]``; 1-D stands for a row.
            b: ``[..., K, N]``; 1-D stands for a column.
            a_zero: in the dtype of ``a``: a scalar, or ``[..., M, 1]``.
            b_zero: in the dtype of ``b``: a scalar, or ``[..., 1, N]``.
        """
        (a, a_type), (b, b_type) = self._typed(a), self._typed(b)
        zeros = self._zero(a_zero, a_type), self._zero(b_zero, b_type)
        return self._one(affine.AFFINE_MATMUL, a, b, *zeros)

    def integer_conv(
        self,
        x: Any,
        w: Any,
        stride: PerAxis = 1,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
    ) -> T:
        """:meth:`conv` of int8 or uint8, summed in int32, wrapping; it pads with the integer 0."""
        operands, attrs = self._convolved(x, w, stride, padding, dilation)
        return self._one(convolution.INTEGER_CONV, *operands, **attrs, groups=groups)

    def affine_conv(
        self,
        x: Any,
        w: Any,
        x_zero: Any = 0,
        w_zero: Any = 0,
        stride: PerAxis = 1,
        padding: PaddingSpec = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
    ) -> T:
        """:meth:`conv` of ``x - x_zero`` and ``w - w_zero``, int8 or uint8, in int32, wrapping.

        Args:
            x: ``[N, C, *spatial]``.
            w: ``[O, C / groups, *kernel]``.
            x_zero: a scalar in the dtype of ``x``.
            w_zero: in the dtype of ``w``: a scalar, or ``[O]``.
            stride, padding, dilation, groups: as for ``conv``; padding stands for the number 0.
        """
        operands, attrs = self._convolved(x, w, stride, padding, dilation)
        zeros = [
            self._zero(zero, self._typed(operand)[1])
            for zero, operand in zip((x_zero, w_zero), operands, strict=True)
        ]
        return self._one(affine.AFFINE_CONV, *operands, *zeros, **attrs, groups=groups)

    def _convolved(
        self, x: Any, w: Any, stride: PerAxis, padding: PaddingSpec, dilation: PerAxis
    ) -> tuple[tuple[T, T], dict[str, Any]]:
        """The operands of a convolution, and its attributes but for the groups."""
        x, sizes = self._spatial(x)
        w, kernel = self._kernel(w, len(sizes))
        strides = windows.per_axis("stride", stride, len(sizes))
        dilations = windows.per_axis("dilation", dilation, len(sizes))
        pads = windows.resolve_padding(padding, sizes, kernel, strides, dilations)
        return (x, w), {"stride": strides, "padding": pads, "dilation": dilations}

    def _zero(self, zero_point: Any, of: Any) -> T:
        """A zero point; a Python int takes the dtype of what it is the zero of."""
        if not isinstance(zero_point, int) or isinstance(zero_point, bool):
            return self._lift(zero_point)[0]
        dtype = DType.parse(of.dtype)
        info = np.iinfo(dtype.numpy) if dtype.is_integer else None
        if info is None or not info.min <= zero_point <= info.max:
            raise GraphError(f"the zero point {zero_point} does not fit {dtype}")
        return self.constant(zero_point, dtype)

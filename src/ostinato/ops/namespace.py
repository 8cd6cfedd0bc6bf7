"""The array namespace of the oracle: NumPy under the vocabulary's names, with float64 throughout.

An op's rule calls functions of the namespace ``xp`` that it is given, by the names that the
vocabulary has (array API names where that standard has the function). What NumPy lacks, spells
otherwise, or defines otherwise is written out here; nothing mutates its arguments. Every float
array in here is float64, whatever dtype it stands for; :func:`ostinato.conversion.round_to` makes
it that dtype.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ostinato.conversion import convert, round_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.dtypes import DType

__all__ = ["ORACLE", "NumpyNamespace", "as_oracle"]

Array = np.ndarray[Any, Any]

_ERF = np.frompyfunc(math.erf, 1, 1)
_ERFC = np.frompyfunc(math.erfc, 1, 1)
_SCATTER = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def as_oracle(x: Any) -> Array:
    """``x`` as the oracle computes on it: floats of any width become float64."""
    array = np.asarray(x)
    return array if array.dtype.kind in "biu" else array.astype(np.float64)


class NumpyNamespace:
    """The functions that rules may call. Integer results keep their dtype and wrap."""

    neg = np.negative
    abs = np.absolute
    sign = np.sign
    square = np.square
    exp, exp2, expm1 = np.exp, np.exp2, np.expm1
    log, log2, log10, log1p = np.log, np.log2, np.log10, np.log1p
    sqrt = np.sqrt
    sin, cos, tan = np.sin, np.cos, np.tan
    asin, acos, atan, atan2 = np.arcsin, np.arccos, np.arctan, np.arctan2
    sinh, cosh, tanh = np.sinh, np.cosh, np.tanh
    asinh, acosh, atanh = np.arcsinh, np.arccosh, np.arctanh
    floor, ceil, round, trunc = np.floor, np.ceil, np.rint, np.trunc
    isnan, isinf, isfinite = np.isnan, np.isinf, np.isfinite

    add, subtract, multiply, divide = np.add, np.subtract, np.multiply, np.true_divide
    floor_divide, remainder, fmod = np.floor_divide, np.remainder, np.fmod
    maximum, minimum = np.maximum, np.minimum
    copysign, signbit = np.copysign, np.signbit
    equal, not_equal = np.equal, np.not_equal
    less, less_equal = np.less, np.less_equal
    greater, greater_equal = np.greater, np.greater_equal
    logical_not, logical_and = np.logical_not, np.logical_and
    logical_or, logical_xor = np.logical_or, np.logical_xor
    bitwise_invert, bitwise_and = np.invert, np.bitwise_and
    bitwise_or, bitwise_xor = np.bitwise_or, np.bitwise_xor
    bitwise_left_shift, bitwise_right_shift = np.left_shift, np.right_shift

    where = staticmethod(np.where)
    matmul = np.matmul
    reshape = staticmethod(np.reshape)
    broadcast_to = staticmethod(np.broadcast_to)
    concat = staticmethod(np.concatenate)
    flip = staticmethod(np.flip)
    any = staticmethod(np.any)
    all = staticmethod(np.all)
    take_along_axis = staticmethod(np.take_along_axis)

    # -- elementwise ------------------------------------------------------------------------

    @staticmethod
    def erf(x: Any) -> Array:
        """The error function, to float64 accuracy."""
        return np.asarray(_ERF(x)).astype(np.float64)

    @staticmethod
    def normal_cdf(x: Any) -> Array:
        """The normal distribution's cumulative, to float64 accuracy."""
        scaled = np.asarray(x, np.float64) * -math.sqrt(0.5)
        return 0.5 * np.asarray(_ERFC(scaled)).astype(np.float64)

    @staticmethod
    def silu(x: Any) -> Any:
        return x / (1.0 + np.exp(-x))

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return 1.0 / np.sqrt(x)

    @staticmethod
    def reciprocal(x: Any) -> Any:
        return 1.0 / x

    @staticmethod
    def pow(x: Any, y: Any) -> Any:
        """``x ** y``; negative powers of integers truncate towards zero, of 0 they are 0."""
        if np.asarray(x).dtype.kind == "f" or np.asarray(y).dtype.kind == "f":
            return np.power(x, y)
        negative = np.less(y, 0)
        power = np.power(x, np.where(negative, 0, y).astype(np.asarray(y).dtype))
        odd = np.bitwise_and(y, 1) != 0
        of_minus_one = np.where(odd, -1, 1)
        inverse = np.where(np.equal(x, 1), 1, np.where(np.equal(x, -1), of_minus_one, 0))
        return np.where(negative, inverse.astype(power.dtype), power)

    @staticmethod
    def cast(x: Any, dtype: DType) -> Array:
        """Converted by :func:`~ostinato.conversion.convert`, as floats of the oracle."""
        array = convert(x, dtype)
        return as_oracle(array)

    @staticmethod
    def bitcast(x: Any, source: DType, dtype: DType) -> Array:
        """The bits of ``x``, which stands for elements of ``source``, read as ``dtype``."""
        return as_oracle(round_to(x, source).view(dtype.numpy))

    # -- shapes -----------------------------------------------------------------------------

    @staticmethod
    def permute_dims(x: Any, axes: Sequence[int]) -> Array:
        return np.transpose(x, axes)

    @staticmethod
    def pad(x: Any, before: Sequence[int], after: Sequence[int], value: Any) -> Array:
        """``x`` with ``before`` and ``after`` elements of ``value`` added around each axis."""
        widths = tuple(zip(before, after, strict=True))
        return np.pad(x, widths, constant_values=value) if widths else np.asarray(x)

    @staticmethod
    def iota(shape: Sequence[int], axis: int, dtype: DType) -> Array:
        """Each element's position along ``axis``."""
        line = [1] * len(shape)
        line[axis] = shape[axis]
        steps = NumpyNamespace.cast(np.arange(shape[axis]), dtype)
        return np.broadcast_to(steps.reshape(line), tuple(shape))

    @staticmethod
    def full(shape: Sequence[int], value: Any, dtype: DType) -> Array:
        return np.full(tuple(shape), NumpyNamespace.cast(value, dtype))

    # -- reductions -------------------------------------------------------------------------

    @staticmethod
    def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return np.sum(x, axis=axis, keepdims=keepdims, dtype=np.asarray(x).dtype)

    @staticmethod
    def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return np.prod(x, axis=axis, keepdims=keepdims, dtype=np.asarray(x).dtype)

    @staticmethod
    def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The greatest element; of none at all, the least number of the dtype."""
        return np.max(x, axis=axis, keepdims=keepdims, initial=_extreme(x, -1))

    @staticmethod
    def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The least element; of none at all, the greatest number of the dtype."""
        return np.min(x, axis=axis, keepdims=keepdims, initial=_extreme(x, 1))

    @staticmethod
    def argmax(x: Any, axis: int, keepdims: bool = False) -> Array:
        return _first_extreme(np.argmax, x, axis, keepdims)

    @staticmethod
    def argmin(x: Any, axis: int, keepdims: bool = False) -> Array:
        return _first_extreme(np.argmin, x, axis, keepdims)

    @staticmethod
    def cumsum(x: Any, axis: int) -> Array:
        return np.cumsum(x, axis=axis, dtype=np.asarray(x).dtype)

    @staticmethod
    def cumprod(x: Any, axis: int) -> Array:
        return np.cumprod(x, axis=axis, dtype=np.asarray(x).dtype)

    @staticmethod
    def cummax(x: Any, axis: int) -> Array:
        return np.maximum.accumulate(x, axis=axis)

    @staticmethod
    def cummin(x: Any, axis: int) -> Array:
        return np.minimum.accumulate(x, axis=axis)

    @staticmethod
    def logcumsumexp(x: Any, axis: int) -> Array:
        return np.logaddexp.accumulate(x, axis=axis)

    # -- indexing ---------------------------------------------------------------------------

    @staticmethod
    def take(x: Any, indices: Any, axis: int) -> Array:
        return np.asarray(np.take(x, indices, axis=axis))

    @staticmethod
    def scatter_at(x: Any, indices: Sequence[Any], updates: Any, mode: str) -> Array:
        """A copy of ``x`` with ``updates`` written, or combined, at the points of ``indices``.

        Args:
            indices: one array per axis of ``x``, all of ``updates``' shape, none negative.
                A point beyond the end of any axis is dropped.
            mode: ``"set"`` (of several writes to one point the last stays), ``"add"``,
                ``"mul"``, ``"min"`` or ``"max"``.
        """
        result = np.array(x)
        inside = np.ones(np.shape(updates), bool)
        for index, size in zip(indices, result.shape, strict=True):
            inside &= np.less(index, size)
        points = tuple(np.broadcast_to(index, inside.shape)[inside] for index in indices)
        if mode == "set":
            result[points] = updates[inside]
        else:
            _SCATTER[mode].at(result, points, updates[inside])
        return result

    @staticmethod
    def non_max_suppression(
        boxes: Any, scores: Any, most: Any, overlap: Any, least: Any, *, centered: bool
    ) -> Array:
        """The boxes chosen of each class, -1 behind the last one; see the op of that name."""
        corners = np.asarray(boxes)
        if centered:
            half = corners[..., 2:] / 2
            low, high = corners[..., :2] - half, corners[..., :2] + half
        else:
            low = np.minimum(corners[..., :2], corners[..., 2:])
            high = np.maximum(corners[..., :2], corners[..., 2:])
        found = np.full(scores.shape, -1, np.int64)
        for batch, class_ in np.ndindex(*scores.shape[:2]):
            score = scores[batch, class_]
            order = NumpyNamespace.argsort(score, axis=0, descending=True)
            left = [box for box in order if score[box] > least]
            chosen: list[int] = []
            while left and len(chosen) < most:
                chosen.append(left.pop(0))
                edges = (low[batch, chosen[-1]], high[batch, chosen[-1]])
                left = [
                    box
                    for box in left
                    if not _overlap(*edges, low[batch, box], high[batch, box]) > overlap
                ]
            found[batch, class_, : len(chosen)] = chosen
        return found

    @staticmethod
    def searchsorted(sequence: Any, values: Any, *, right: bool) -> Array:
        """The first position, or the last, of each value; a sequence for all, or for each row."""
        side: Any = "right" if right else "left"
        if sequence.ndim == 1:
            return np.asarray(np.searchsorted(sequence, values, side))
        found = np.zeros(values.shape, np.int64)
        for row in np.ndindex(*values.shape[:-1]):
            found[row] = np.searchsorted(sequence[row], values[row], side)
        return found

    @staticmethod
    def argsort(x: Any, axis: int, descending: bool) -> Array:
        """A stable order: ties by the lower index. NaN counts as the greatest."""
        if not descending:
            return np.argsort(x, axis=axis, kind="stable")
        order = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
        return np.asarray(x.shape[axis] - 1 - order)


def _overlap(low: Array, high: Array, other_low: Array, other_high: Array) -> float:
    """Intersection over union of two boxes; 0 where either is empty."""
    sides = np.minimum(high, other_high) - np.maximum(low, other_low)
    common = float(np.prod(np.maximum(sides, 0)))
    areas = float(np.prod(high - low)), float(np.prod(other_high - other_low))
    return common / (sum(areas) - common) if common > 0 and min(areas) > 0 else 0.0


def _extreme(x: Any, sign: int) -> Any:
    dtype = np.asarray(x).dtype
    if dtype.kind == "f":
        return sign * np.inf
    if dtype.kind == "b":
        return sign > 0
    info = np.iinfo(dtype)
    return info.max if sign > 0 else info.min


def _first_extreme(function: Any, x: Any, axis: int, keepdims: bool) -> Array:
    """The index of the first extreme element; 0 of none at all."""
    if x.shape[axis]:
        return np.asarray(function(x, axis=axis, keepdims=keepdims), dtype=np.int64)
    lead, rest = x.shape[:axis], x.shape[axis + 1 :]
    return np.zeros((*lead, *((1,) if keepdims else ()), *rest), np.int64)


#: The one instance; rules receive it as ``xp``.
ORACLE: Final = NumpyNamespace()

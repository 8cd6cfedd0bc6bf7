"""The functions that rules of ops call, on the arrays of a framework.

Frameworks follow NumPy and the array API in most names, so one class on the framework's module has
nearly all of them. A subclass has what its framework lacks, spells or defines otherwise. The
definitions are those of the oracle (:mod:`ostinato.ops.namespace`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import BOOL, FLOAT32, INT64, UINT8, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ArrayNamespace"]

#: By the vocabulary's name, NumPy's, where they differ.
_NAMES = MappingProxyType(
    {
        "neg": "negative",
        "asin": "arcsin",
        "acos": "arccos",
        "atan": "arctan",
        "atan2": "arctan2",
        "asinh": "arcsinh",
        "acosh": "arccosh",
        "atanh": "arctanh",
        "bitwise_left_shift": "left_shift",
        "bitwise_right_shift": "right_shift",
    }
)


class ArrayNamespace(ABC):
    """The functions of a framework's arrays, under the names of the vocabulary.

    Args:
        module: the framework's functions by NumPy's names.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """The framework's function of that name, where no method defines it otherwise."""
        if name.startswith("_"):
            raise AttributeError(name)
        function = getattr(self._module, _NAMES.get(name, name))
        setattr(self, name, function)
        return function

    # -- arrays and their types --------------------------------------------------------------------

    @abstractmethod
    def native(self, dtype: DType) -> Any:
        """The framework's element type."""

    @abstractmethod
    def dtype_of(self, x: Any) -> DType:
        """The element type of an array."""

    @abstractmethod
    def asarray(self, x: Any, dtype: DType | None = None) -> Any:
        """An array, or a number as an array."""

    def silu(self, x: Any) -> Any:
        """``x`` times its logistic function."""
        return x / (1.0 + self.exp(-x))

    def to(self, x: Any, dtype: DType) -> Any:
        """``x`` as an array of ``dtype``; floats are rounded, integers wrap."""
        array = self.asarray(x)
        return array if self.dtype_of(array) == dtype else array.astype(self.native(dtype))

    def cast(self, x: Any, dtype: DType) -> Any:
        """Converted as the op ``cast`` does; see :func:`ostinato.conversion.convert`."""
        if isinstance(x, float) and dtype.is_float:
            return self.asarray(x, dtype)
        array = self.asarray(x)
        source = self.dtype_of(array)
        if dtype.is_bool:
            return array if source.is_bool else array != 0
        if dtype.is_integer and source.is_float:
            return self._truncated(self.to(array, source.accumulator), dtype)
        return self.to(array, dtype)

    def _truncated(self, x: Any, dtype: DType) -> Any:
        """Floats of 32 or 64 bits as integers."""
        least, most = int(dtype.lowest), int(dtype.highest)
        low, high = x <= float(least), x >= float(most)
        outside = self.logical_or(self.logical_or(low, high), self.isnan(x))
        inside = self.where(outside, self.asarray(0, self.dtype_of(x)), x)
        whole = inside.astype(self.native(dtype))
        limited = self.where(high, self.asarray(most, dtype), whole)
        return self.where(low, self.asarray(least, dtype), limited)

    def bitcast(self, x: Any, source: DType, dtype: DType) -> Any:
        """The bits of ``x``, which stands for elements of ``source``, read as ``dtype``."""
        array = self.to(x, UINT8 if source.is_bool else source)
        if dtype.is_bool:
            return self._view(array, UINT8) != 0
        return self._view(array, dtype)

    def _view(self, x: Any, dtype: DType) -> Any:
        return x.view(self.native(dtype))

    # -- elementwise -------------------------------------------------------------------------------

    def reciprocal(self, x: Any) -> Any:
        return 1.0 / x

    def floor_divide(self, x: Any, y: Any) -> Any:
        """The quotient rounded down; 0 for an integer divided by zero."""
        x, y = self.asarray(x), self.asarray(y)
        if self.dtype_of(y).is_float:
            return self._floor_of_quotient(x, y, self.fmod(x, y))
        return self._by_nonzero(self._module.floor_divide, x, y)

    def _floor_of_quotient(self, x: Any, y: Any, rest: Any) -> Any:
        """The quotient of floats, rounded down, as NumPy has it."""
        quotient = (x - rest) / y
        below = self.logical_and(rest != 0, (rest < 0) != (y < 0))
        quotient = self.where(below, quotient - 1.0, quotient)
        whole = self.floor(quotient)
        whole = self.where(quotient - whole > 0.5, whole + 1.0, whole)
        whole = self.where(quotient == 0, self.copysign(0.0, x / y), whole)
        return self.where(y == 0, x / y, whole)

    def remainder(self, x: Any, y: Any) -> Any:
        """The remainder with the sign of ``y``; 0 for an integer by zero."""
        x, y = self.asarray(x), self.asarray(y)
        if self.dtype_of(y).is_float:
            return self._float_remainder(x, y)
        return self._by_nonzero(self._module.remainder, x, y)

    def _float_remainder(self, x: Any, y: Any) -> Any:
        rest = self.fmod(x, y)
        other = self.logical_and(rest != 0, (rest < 0) != (y < 0))
        rest = self.where(other, rest + y, rest)
        return self.where(rest == 0, self.copysign(self.asarray(0, self.dtype_of(y)), y), rest)

    def _by_nonzero(self, function: Any, x: Any, y: Any) -> Any:
        """A function of integers that is 0 where the second one is."""
        y = self.asarray(y)
        if self.dtype_of(y).is_float:
            return function(x, y)
        zero = self.asarray(0, self.dtype_of(y))
        none = self.equal(y, zero)
        safe = self.where(none, self.asarray(1, self.dtype_of(y)), y)
        return self.where(none, zero, function(x, safe))

    def pow(self, x: Any, y: Any) -> Any:
        """``x ** y``; negative powers of integers truncate towards zero, of 0 they are 0."""
        x = self.asarray(x)
        dtype = self.dtype_of(x)
        if dtype.is_float:
            return self._module.power(x, y)
        y = self.asarray(y)
        zero, one = self.asarray(0, dtype), self.asarray(1, dtype)
        if not dtype.is_signed:
            return self._integer_power(x, y)
        negative = y < 0
        power = self._integer_power(x, self.where(negative, zero, y))
        minus = self.asarray(-1, dtype)
        odd = self.equal(self.bitwise_and(y, one), one)
        of_minus_one = self.where(odd, minus, one)
        inverse = self.where(self.equal(x, minus), of_minus_one, zero)
        inverse = self.where(self.equal(x, one), one, inverse)
        return self.where(negative, inverse, power)

    def _integer_power(self, x: Any, y: Any) -> Any:
        """``x ** y`` of integers that wrap, of which ``y`` is not negative."""
        return self._module.power(x, y)

    # -- shapes ------------------------------------------------------------------------------------

    def permute_dims(self, x: Any, axes: Sequence[int]) -> Any:
        return self._module.transpose(x, tuple(axes))

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return self._module.reshape(x, tuple(shape))

    def broadcast_to(self, x: Any, shape: Sequence[int]) -> Any:
        return self._module.broadcast_to(self.asarray(x), tuple(shape))

    def concat(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        return self._module.concatenate(list(arrays), axis=axis)

    @abstractmethod
    def flip(self, x: Any, axis: Any) -> Any:
        """The elements in reverse order along one axis or several."""

    def pad(self, x: Any, before: Sequence[int], after: Sequence[int], value: Any) -> Any:
        """``x`` with elements of ``value`` added around each axis."""
        widths = list(zip(before, after, strict=True))
        if not any(low or high for low, high in widths):
            return x
        filling = self.asarray(value, self.dtype_of(x))
        return self._module.pad(x, widths, constant_values=filling)

    def iota(self, shape: Sequence[int], axis: int, dtype: DType) -> Any:
        """Each element's position along ``axis``."""
        line = [1] * len(shape)
        line[axis] = shape[axis]
        counted = self._module.arange(shape[axis], dtype=self.native(INT64))
        return self.broadcast_to(self.reshape(self.cast(counted, dtype), line), shape)

    def full(self, shape: Sequence[int], value: Any, dtype: DType) -> Any:
        return self.broadcast_to(self.cast(value, dtype), shape)

    # -- reductions --------------------------------------------------------------------------------

    def max(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The greatest element; of none at all, the least number of the dtype."""
        return self._extreme("max", x, axis, keepdims)

    def min(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        """The least element; of none at all, the greatest number of the dtype."""
        return self._extreme("min", x, axis, keepdims)

    def _extreme(self, name: str, x: Any, axis: Any, keepdims: bool) -> Any:
        axes = tuple(range(x.ndim)) if axis is None else axis
        axes = (axes % x.ndim,) if isinstance(axes, int) else axes
        if math.prod(x.shape):
            return getattr(self._module, name)(x, axis=axes, keepdims=keepdims)
        dtype = self.dtype_of(x)
        neutral = dtype.lowest if name == "max" else dtype.highest
        return self.broadcast_to(self.asarray(neutral, dtype), reduced(x.shape, axes, keepdims))

    def any(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return self._module.any(self.cast(x, BOOL), axis=axis, keepdims=keepdims)

    def all(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return self._module.all(self.cast(x, BOOL), axis=axis, keepdims=keepdims)

    def argmax(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        """The index of the first greatest element; 0 of none at all."""
        return self._first("argmax", x, axis, keepdims)

    def argmin(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        """The index of the first least element; 0 of none at all."""
        return self._first("argmin", x, axis, keepdims)

    def _first(self, name: str, x: Any, axis: int, keepdims: bool) -> Any:
        if not math.prod(x.shape):
            return self.full(reduced(x.shape, (axis,), keepdims), 0, INT64)
        found = getattr(self._module, name)(x, axis=axis, keepdims=keepdims)
        return self.to(found, INT64)

    # -- indexing ----------------------------------------------------------------------------------

    def scatter_at(self, x: Any, indices: Sequence[Any], updates: Any, mode: str) -> Any:
        """A copy of ``x`` with ``updates`` written, or combined, at the points of ``indices``.

        Args:
            x: the array.
            indices: one array per axis of ``x``, all of ``updates``' shape, none negative.
                A point beyond the end of any axis is dropped.
            updates: the elements.
            mode: ``"set"`` (of several writes to one point the last stays), ``"add"``,
                ``"mul"``, ``"min"`` or ``"max"``.
        """
        size = math.prod(x.shape)
        if not math.prod(updates.shape) or not size:
            return x
        # Points of one axis, that of the elements in C order; one more takes what is dropped.
        point: Any = self.full(updates.shape, 0, INT64)
        inside: Any = self.full(updates.shape, 1, BOOL)
        for index, length in zip(indices, x.shape, strict=True):
            at = self.broadcast_to(index, updates.shape)
            inside = self.logical_and(inside, at < length)
            point = point * length + at
        point = self.where(inside, point, self.asarray(size, INT64))
        flat = self.concat([self.reshape(x, (-1,)), self.full((1,), 0, self.dtype_of(x))])
        done = self._scatter(flat, self.reshape(point, (-1,)), self.reshape(updates, (-1,)), mode)
        return self.reshape(done[:size], x.shape)

    @abstractmethod
    def _scatter(self, x: Any, points: Any, updates: Any, mode: str) -> Any:
        """A copy of the vector ``x`` with updates combined in at points within it."""

    def argsort(self, x: Any, axis: int, descending: bool) -> Any:
        """A stable order: ties by the lower index. NaN counts as the greatest."""
        if not descending:
            return self._ascending(x, axis)
        order = self.flip(self._ascending(self.flip(x, axis), axis), axis)
        return x.shape[axis] - 1 - order

    @abstractmethod
    def _ascending(self, x: Any, axis: int) -> Any:
        """The int64 indices that sort ``x``, equal elements in order, NaN last."""

    def widened(self, x: Any) -> Any:
        """16-bit floats as float32; everything else as it is."""
        dtype = self.dtype_of(x)
        return self.to(x, FLOAT32) if dtype.accumulator != dtype else x


def reduced(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """The shape that remains of ``shape`` when ``axes`` are reduced."""
    if keepdims:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)

"""The functions of rules on MLX's arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ostinato.backends.array_api.namespace import ArrayNamespace
from ostinato.dtypes import BOOL, FLOAT32, FLOAT64, INT64, UINT8, DType

__all__ = ["MlxNamespace"]

#: Sums that are longer are sums of the sums of blocks.
_LONG_SUM, _SUM_BLOCK = 4096, 512


class MlxNamespace(ArrayNamespace):
    """See :class:`ArrayNamespace`."""

    def __init__(self) -> None:
        import mlx.core as mx

        super().__init__(mx)

    # -- arrays and their types --------------------------------------------------------------------

    def native(self, dtype: DType) -> Any:
        if dtype.is_narrow:
            return self._module.uint8
        return getattr(self._module, "bool_" if dtype.is_bool else dtype.name)

    def dtype_of(self, x: Any) -> DType:
        return DType.parse(x.dtype)

    def asarray(self, x: Any, dtype: DType | None = None) -> Any:
        mx = self._module
        if isinstance(x, mx.array):
            return x if dtype is None else self.to(x, dtype)
        if isinstance(x, np.ndarray | np.generic):
            array = self.from_numpy(np.asarray(x))
            return array if dtype is None else self.to(array, dtype)
        if dtype is None:
            dtype = BOOL if isinstance(x, bool) else INT64 if isinstance(x, int) else FLOAT32
        if dtype.is_integer or dtype == FLOAT64:  # MLX makes an int32 or a float32 of it first
            return self.from_numpy(np.asarray(x, dtype.numpy))
        return mx.array(x, self.native(dtype))

    def from_numpy(self, array: np.ndarray[Any, Any]) -> Any:
        """A copy of an array of NumPy's."""
        mx, dtype = self._module, DType.parse(array.dtype)
        if not array.flags.c_contiguous or min(array.strides, default=0) < 0:
            array = array.copy()  # MLX takes no negative strides, not even of single elements
        if dtype.name == "bfloat16":  # NumPy's buffer has no format for it
            return mx.array(array.view(np.uint16)).view(mx.bfloat16)
        if dtype.is_narrow:  # nor has MLX; see `Framework.holds_narrow`
            array = array.view(np.uint8)
        return mx.array(array, self.native(dtype))

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """The elements, in memory of MLX's where they are in C order."""
        dtype = self.dtype_of(x)
        if dtype.name == "bfloat16":
            bits: Any = np.array(x.view(self._module.uint16), copy=None)
            return np.asarray(bits.view(dtype.numpy))
        return np.array(x, copy=None)

    def copied(self, x: Any) -> Any:
        """The array itself: MLX overwrites none."""
        return x

    # -- elementwise -------------------------------------------------------------------------------

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        return self._module.where(condition, x, y)

    def _alike(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Two arrays, a number being of the other one's dtype."""
        mx = self._module
        if not isinstance(x, mx.array) and isinstance(y, mx.array):
            return self.asarray(x, self._dtype_for(x, y)), y
        if not isinstance(y, mx.array) and isinstance(x, mx.array):
            return x, self.asarray(y, self._dtype_for(y, x))
        return self.asarray(x), self.asarray(y)

    def _dtype_for(self, number: Any, array: Any) -> DType:
        dtype = self.dtype_of(array)
        whole = isinstance(number, bool | int | np.integer | np.bool_)
        return dtype if whole or dtype.is_float else FLOAT32

    def exp2(self, x: Any) -> Any:
        return self._module.power(self.asarray(2.0, self.dtype_of(x)), x)

    def sign(self, x: Any) -> Any:
        found = self._module.sign(x)
        return self.where(self.isnan(x), x, found) if self.dtype_of(x).is_float else found

    def rsqrt(self, x: Any) -> Any:
        return 1.0 / self._module.sqrt(x)

    def normal_cdf(self, x: Any) -> Any:
        """The normal distribution's cumulative."""
        return 0.5 * (1.0 + self._module.erf(x * 0.5**0.5))

    def isnan(self, x: Any) -> Any:
        return self._module.isnan(self.asarray(x))

    def signbit(self, x: Any) -> Any:
        if not self.dtype_of(x).is_float:
            return x < 0
        bits = {2: "int16", 4: "int32", 8: "int64"}[self.dtype_of(x).itemsize]
        return x.view(getattr(self._module, bits)) < 0

    def copysign(self, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        size = self._module.abs(x)
        return self.where(self.signbit(y), -size, size)

    def exp(self, x: Any) -> Any:
        """MLX's is 0 where results are subnormal: these are products of two."""
        mx = self._module
        low = x < -80.0
        near = mx.exp(self.where(low, x + 40.0, x))
        return self.where(low, near * math.exp(-40.0), near)

    def sin(self, x: Any) -> Any:
        """MLX's has no sign at zero, near which this is a line."""
        return self.where(self._module.abs(x) < 1e-5, x, self._module.sin(x))

    def log(self, x: Any) -> Any:
        """MLX's takes a float64 for a float32, which may be too small for that."""
        mx = self._module
        if self.dtype_of(x) != FLOAT64:
            return mx.log(x)
        small = mx.logical_and(x > 0, x < 1e-30)
        found = mx.log(self.where(small, x * 2.0**100, x))
        return self.where(small, found - 100 * math.log(2.0), found)

    def erf(self, x: Any) -> Any:
        """MLX's is 0 near zero, where this is a line."""
        slope = 2.0 / math.sqrt(math.pi)
        return self.where(self._module.abs(x) < 1e-4, x * slope, self._module.erf(x))

    def floor_divide(self, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        rest = self.fmod(x, y)
        if self.dtype_of(y).is_float:
            return self._floor_of_quotient(x, y, rest)
        exact = self._by_nonzero(self._module.floor_divide, x - rest, self._beside_minus_one(y))
        if not self._is_signed(y):
            return exact
        exact = self.where(y == -1, -x, exact)
        below = self.logical_and(rest != 0, (rest < 0) != (y < 0))
        return self.where(below, exact - 1, exact)

    def _is_signed(self, x: Any) -> bool:
        return self.dtype_of(x).is_signed

    def _beside_minus_one(self, y: Any) -> Any:
        """Divisors with 1 for -1, by which the least integer cannot be divided: it would trap."""
        return self.where(y == -1, 1, y) if self._is_signed(y) else y

    def remainder(self, x: Any, y: Any) -> Any:
        """The remainder with the sign of ``y``; 0 for an integer by zero."""
        x, y = self._alike(x, y)
        if self.dtype_of(y).is_float:
            return self._float_remainder(x, y)
        rest = self.fmod(x, y)
        other = self.logical_and(rest != 0, (rest < 0) != (y < 0))
        return self.where(other, rest + y, rest)

    def fmod(self, x: Any, y: Any) -> Any:
        """The remainder with the sign of ``x``; 0 for an integer by zero."""
        x, y = self._alike(x, y)
        dtype = self.dtype_of(y)
        if not dtype.is_float:
            return self._by_nonzero(self._whole_fmod, x, y)
        return self._float_fmod(x, y)

    def _whole_fmod(self, x: Any, y: Any) -> Any:
        if not self.dtype_of(y).is_signed:
            return self._module.remainder(x, y)
        least = int(self.dtype_of(y).lowest)
        greatest = y == least  # of all magnitudes: it has no positive counterpart
        size = self.where(greatest, 1, self._module.abs(y))
        rest = self._module.remainder(x, size)
        # MLX's has the sign of the divisor, which is positive.
        rest = self.where(self.logical_and(x < 0, rest != 0), rest - size, rest)
        return self.where(greatest, self.where(x == least, 0, x), rest)

    def _float_fmod(self, x: Any, y: Any) -> Any:
        size = self._module.abs(y)
        rest = self._module.remainder(self._module.abs(x), size)
        infinite = self.logical_and(self._module.isinf(y), self._module.isfinite(x))
        rest = self.where(infinite, self._module.abs(x), rest)
        return self.copysign(rest, x)

    def bitwise_invert(self, x: Any) -> Any:
        if self.dtype_of(x).is_bool:
            return self._module.logical_not(x)
        return self._module.bitwise_invert(x)

    def bitwise_xor(self, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        if self.dtype_of(x).is_bool:
            return x != y
        return self._module.bitwise_xor(x, y)

    def logical_xor(self, x: Any, y: Any) -> Any:
        return self.cast(x, BOOL) != self.cast(y, BOOL)

    def bitwise_left_shift(self, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        count, outside = self._count(x, y)
        return self.where(outside, 0, self._module.left_shift(x, count))

    def bitwise_right_shift(self, x: Any, y: Any) -> Any:
        x, y = self._alike(x, y)
        dtype = self.dtype_of(x)
        count, outside = self._count(x, y)
        moved = self._module.right_shift(x, count)
        if not dtype.is_signed:
            return self.where(outside, 0, moved)
        return self.where(outside, self.where(x < 0, self.asarray(-1, dtype), 0), moved)

    def _count(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Counts of bits within the width, and whether they are not."""
        outside = self.logical_or(y < 0, y >= self.dtype_of(x).bits)
        return self.where(outside, 0, y), outside

    # -- shapes ------------------------------------------------------------------------------------

    def flip(self, x: Any, axis: Any) -> Any:
        axes = axis if isinstance(axis, tuple | list) else (axis,)
        for one in axes:
            if x.shape[one] > 1:
                last = self._module.arange(x.shape[one] - 1, -1, -1)
                x = self._module.take(x, last, axis=one)
        return x

    def matmul(self, x: Any, y: Any) -> Any:
        """Floats by MLX's; integers as sums of products."""
        if self.dtype_of(x).is_float and math.prod(x.shape) and math.prod(y.shape):
            return self._module.matmul(x, y)
        return self._whole_matmul(x, y)

    def _whole_matmul(self, x: Any, y: Any) -> Any:
        row = x.ndim == 1
        column = y.ndim == 1
        left = x[None, :] if row else x
        right = y[:, None] if column else y
        result: Any = None
        for k in range(left.shape[-1]):
            product = left[..., k : k + 1] * right[..., k : k + 1, :]
            result = product if result is None else result + product
        if result is None:
            lead = np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
            result = self.full((*lead, left.shape[-2], right.shape[-1]), 0, self.dtype_of(x))
        if column:
            result = result[..., 0]
        if row:
            result = result[..., 0, :] if not column else result[..., 0]
        return result

    # -- reductions --------------------------------------------------------------------------------

    def sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        dtype = self.dtype_of(x)
        axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        if dtype.is_float and axes:
            x = self._blocks_added(x, max(axes, key=lambda one: x.shape[one]) % x.ndim)
        return self.to(self._module.sum(x, axis=axis, keepdims=keepdims), dtype)

    def _blocks_added(self, x: Any, axis: int) -> Any:
        """The sums of the blocks of a long axis: MLX's CPU adds up one element after another."""
        mx, length = self._module, x.shape[axis]
        if length <= _LONG_SUM:
            return x
        whole, rest = mx.split(x, [length - length % _SUM_BLOCK], axis=axis)
        shape = (*x.shape[:axis], whole.shape[axis] // _SUM_BLOCK, _SUM_BLOCK, *x.shape[axis + 1 :])
        added = mx.sum(mx.reshape(whole, shape), axis=axis + 1)
        return mx.concatenate([added, rest], axis=axis)

    def prod(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        dtype = self.dtype_of(x)
        return self.to(self._module.prod(x, axis=axis, keepdims=keepdims), dtype)

    def _first(self, name: str, x: Any, axis: int, keepdims: bool) -> Any:
        if self.dtype_of(x).is_float and math.prod(x.shape):
            nan = self._module.isnan(x)
            whole = self.cast(self._module.any(nan, axis=axis, keepdims=True), BOOL)
            extreme = math.inf if name == "argmax" else -math.inf
            x = self.where(whole, self.where(nan, extreme, -extreme), x)
        return super()._first(name, x, axis, keepdims)

    def cumsum(self, x: Any, axis: int) -> Any:
        return self.to(self._module.cumsum(x, axis=axis), self.dtype_of(x))

    def cumprod(self, x: Any, axis: int) -> Any:
        return self.to(self._module.cumprod(x, axis=axis), self.dtype_of(x))

    # -- indexing ----------------------------------------------------------------------------------

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        return self._module.take(x, self.asarray(indices), axis=axis)

    def take_along_axis(self, x: Any, indices: Any, axis: int) -> Any:
        return self._module.take_along_axis(x, indices, axis=axis)

    def _scatter(self, x: Any, points: Any, updates: Any, mode: str) -> Any:
        dtype = self.dtype_of(x)
        if dtype.is_bool:
            return self.cast(
                self._scatter(
                    x.astype(self.native(UINT8)), points, updates.astype(self.native(UINT8)), mode
                ),
                BOOL,
            )
        at = x.at[points]
        if mode == "set":
            # Of several writes to one point the last stays: find it, then read its update.
            order = (
                self._module.full(x.shape, -1, self.native(INT64))
                .at[points]
                .maximum(self._module.arange(points.size, dtype=self.native(INT64)))
            )
            chosen = self._module.take(updates, self._module.maximum(order, 0), axis=0)
            return self.where(order >= 0, chosen, x)
        combine = {"add": at.add, "mul": at.multiply, "min": at.minimum, "max": at.maximum}
        return combine[mode](updates)

    def _ascending(self, x: Any, axis: int) -> Any:
        """The order by value, then by index: ranks make every element distinct."""
        if not math.prod(x.shape):
            return self.full(x.shape, 0, INT64)
        return self.to(self._module.argsort(x, axis=axis), INT64)

"""Conversion of arrays between element types: the rule of the op ``cast``, and its only home on the
host.

The reference evaluates ``cast`` with it, and ``CompileOptions(cast_inputs=True)`` converts inputs,
params and handles with it, so an array that is converted on its way in becomes what the graph's own
``cast`` would have made of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.dtypes import BFLOAT16, INT32, DType

__all__ = ["convert", "round_to"]

Array = np.ndarray[Any, Any]


def convert(x: Any, dtype: DType) -> Array:
    """``x`` as a C-contiguous array of ``dtype``.

    Floats become integers by truncation: out of range saturates, NaN gives 0. Integers wrap; narrow
    ones are the low bits of an int32. Anything becomes bool by ``!= 0``. What becomes a float is
    rounded to nearest, ties to even; out of the range of a narrow one it becomes infinite, NaN
    where the format has no infinity, or the greatest number where it has neither.
    """
    array = np.asarray(x)
    if array.dtype.kind == "V":  # of ml_dtypes, which converts to fewer types than NumPy
        array = array.astype(np.float32)
    with np.errstate(all="ignore"):  # a value out of range is defined above
        if dtype.is_narrow and dtype.format.is_integer:
            whole = array.astype(np.int32) if array.dtype.kind in "biu" else _truncate(array, INT32)
            result = whole.astype(np.int8).astype(dtype.numpy)
        elif dtype.is_bool:
            result = np.asarray(array != 0)
        elif dtype.is_integer and array.dtype.kind not in "biu":
            result = _truncate(array, dtype)
        else:
            result = round_to(array, dtype)
    return np.asarray(result, order="C")


def round_to(x: Any, dtype: DType) -> Array:
    """``x`` as an array of ``dtype``; floats are rounded once, integers wrap."""
    array = np.asarray(x)
    rounds_twice = dtype == BFLOAT16 or dtype.is_narrow  # ml_dtypes goes by way of float32
    if rounds_twice and array.dtype == np.float64:
        array = _round_to_odd(array)
    return array.astype(dtype.numpy, copy=False)


def _truncate(array: Array, dtype: DType) -> Array:
    """Floats as integers."""
    if array.dtype.itemsize == 2:  # the bounds of an integer may be beyond the narrow format
        array = array.astype(np.float32)
    info = np.iinfo(dtype.numpy)
    low, high = array <= float(info.min), array >= float(info.max)
    inside = np.where(low | high | np.isnan(array), 0, array).astype(dtype.numpy)
    limited = np.where(high, dtype.numpy.type(info.max), inside)
    return np.where(low, dtype.numpy.type(info.min), limited)


def _round_to_odd(x: Array) -> Array:
    """``x`` as float32 that rounds on to a narrower float as ``x`` itself would.

    Rounding twice to nearest can err by a unit; an inexact first step that leaves an odd last bit
    cannot be mistaken for a tie by the second.
    """
    nearest = x.astype(np.float32)
    outward = np.abs(nearest.astype(np.float64)) > np.abs(x)
    inward = np.where(outward, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (nearest.astype(np.float64) != x) & np.isfinite(nearest)
    odd = (np.asarray(inward).view(np.uint32) | 1).view(np.float32)
    return np.where(inexact, odd, nearest)

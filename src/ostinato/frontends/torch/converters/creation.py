"""Converters of ops that make tensors of given sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.conversion import convert as convert_array
from ostinato.dtypes import FLOAT64, INT64
from ostinato.ir.graph import Value

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter

__all__ = ["CONVERTERS"]


def _filled(call: Call, value: Any) -> Value:
    """A tensor of one value, of the result's type."""
    return call.g.broadcast_to(call.value(value, call.dtype), call.shape)


def _constant(value: int) -> Converter:
    """``zeros``, ``ones`` and the like; memory that is not initialised holds zeros."""

    def convert(call: Call, *_: Any, **__: Any) -> Value:
        return _filled(call, value)

    return convert


def _full(call: Call, size: Any, fill_value: Any, **_: Any) -> Value:
    return _filled(call, fill_value)


def _full_of(call: Call, self: Any, size: Any, fill_value: Any, **_: Any) -> Value:
    return _filled(call, fill_value)


def _full_like(call: Call, self: Value, fill_value: Any, **_: Any) -> Value:
    return _filled(call, fill_value)


def _fill(call: Call, self: Value, value: Any) -> Value:
    return _filled(call, value)


def _scalar_tensor(call: Call, s: Any, **_: Any) -> Value:
    return call.value(s, call.dtype)


def _line(call: Call, start: Any, step: Any) -> Value:
    """``start``, ``start + step``, … in the result's dtype, as many as the result has."""
    g = call.g
    (count,) = call.shape
    parts = (start, step)
    if any(isinstance(part, float) for part in parts) or any(
        isinstance(part, Value) and part.dtype.is_float for part in parts
    ):
        numbers = g.cast(g.iota((count,)), FLOAT64)
        return g.cast(
            g.add(g.multiply(numbers, call.value(step, FLOAT64)), call.value(start, FLOAT64)),
            call.dtype,
        )
    numbers = g.iota((count,))
    if not isinstance(step, int) or step != 1:
        numbers = g.multiply(numbers, call.value(step, INT64))
    if not isinstance(start, int) or start != 0:
        numbers = g.add(numbers, call.value(start, INT64))
    return g.cast(numbers, call.dtype)


def _range_to(call: Call, end: Any, **_: Any) -> Value:
    return _line(call, 0, 1)


def _range(call: Call, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    if not call.dtype.is_float:  # bounds of integers are truncated first
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    return _line(call, start, step)


def _linspace(call: Call, start: Any, end: Any, steps: int, **_: Any) -> Value:
    """So many numbers at equal distances: the first half from the start, the rest from the end."""
    if isinstance(start, Value) or isinstance(end, Value):
        return _linspace_between(call, start, end, steps)
    return call.g.constant(_evenly(call, float(start), float(end), steps), call.dtype)


def _evenly(call: Call, start: float, end: float, steps: int) -> Any:
    wide = np.float64 if call.dtype.bits > 32 or call.dtype.is_integer else np.float32
    first, last = wide(start), wide(end)
    line = np.arange(steps)
    if steps < 2:
        return convert_array(np.full(steps, first), call.dtype)
    step = (last - first) / wide(steps - 1)
    if call.dtype.is_integer:  # steps of integers are floats of 32 bits
        step = np.float32(last - first) / np.float32(steps - 1)
    low, high = first + step * line, last - step * (steps - 1 - line)
    return convert_array(np.where(line < steps // 2, low, high), call.dtype)


def _linspace_between(call: Call, start: Any, end: Any, steps: int) -> Value:
    g = call.g
    first, last = call.value(start, FLOAT64), call.value(end, FLOAT64)
    if steps < 2:
        return g.cast(g.broadcast_to(first, (steps,)), call.dtype)
    line = g.cast(g.iota((steps,)), FLOAT64)
    step = g.divide(g.subtract(last, first), float(steps - 1))
    low = g.add(first, g.multiply(step, line))
    high = g.subtract(last, g.multiply(step, g.subtract(float(steps - 1), line)))
    return g.cast(g.where(g.less(line, float(steps // 2)), low, high), call.dtype)


def _logspace(call: Call, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any) -> Value:
    if isinstance(start, Value) or isinstance(end, Value):
        exponents = _linspace_between(call, start, end, steps)
        return call.rounded(call.g.pow(call.value(base, exponents.dtype), exponents))
    line = np.linspace(float(start), float(end), steps)
    with np.errstate(all="ignore"):
        return call.g.constant(convert_array(np.power(float(base), line), call.dtype), call.dtype)


def _eye(call: Call, n: Any, m: Any = None, **_: Any) -> Value:
    g = call.g
    rows, columns = call.shape
    diagonal = g.equal(g.iota((rows, 1), 0), g.iota((1, columns), 1))
    return g.cast(diagonal, call.dtype)


def _triangle_indices(lower: bool) -> Converter:
    def convert(call: Call, row: int, col: int, offset: int = 0, **_: Any) -> Value:
        rows, columns = call.known(row, "size"), call.known(col, "size")
        found = np.tril_indices if lower else np.triu_indices
        return call.g.constant(np.stack(found(rows, offset, columns)), call.dtype)

    return convert


def _vander(call: Call, x: Value, N: int | None = None, increasing: bool = False) -> Value:
    g = call.g
    count = call.shape[-1]
    powers = g.iota((count,), 0, INT64)
    if not increasing:
        powers = g.flip(powers, 0)
    base = g.expand_dims(g.cast(x, call.dtype), x.ndim)
    return g.reshape(g.pow(base, g.cast(powers, call.dtype)), call.shape)


def _linalg_vander(call: Call, x: Value, *, N: int | None = None) -> Value:
    return _vander(call, x, N, increasing=True)


def _window(weights: Any) -> Converter:
    """A window of signal processing; a periodic one is the longer one without its last element."""

    def convert(call: Call, window_length: int, *args: Any, **_: Any) -> Value:
        count = call.known(window_length, "length")
        periodic = args[0] if args and isinstance(args[0], bool) else True
        rest = args[1:] if args and isinstance(args[0], bool) else args
        if count < 2:
            return call.g.constant(np.ones(count, np.float32), call.dtype)
        angles = 2 * math.pi * np.arange(count) / (count if periodic else count - 1)
        return call.g.constant(convert_array(weights(angles, *rest), call.dtype), call.dtype)

    return convert


def _hamming(angles: Any, alpha: float = 0.54, beta: float = 0.46) -> Any:
    return alpha - beta * np.cos(angles)


def _hann(angles: Any) -> Any:
    return 0.5 - 0.5 * np.cos(angles)


def _blackman(angles: Any) -> Any:
    return 0.42 - 0.5 * np.cos(angles) + 0.08 * np.cos(2 * angles)


def _bartlett(angles: Any) -> Any:
    return 1 - np.abs(angles / math.pi - 1)


_ZEROS = (
    "zeros",
    "zeros_like",
    "new_zeros",
    "zero",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _constant(0) for name in _ZEROS},
    **{f"aten.{name}": _constant(1) for name in ("ones", "ones_like", "new_ones")},
    "aten.full": _full,
    "aten.full_like": _full_like,
    "aten.new_full": _full_of,
    "aten.fill": _fill,
    "aten.scalar_tensor": _scalar_tensor,
    "aten.arange.default": _range_to,
    "aten.arange": _range,
    "aten.linspace": _linspace,
    "aten.logspace": _logspace,
    "aten.eye": _eye,
    "aten.tril_indices": _triangle_indices(lower=True),
    "aten.triu_indices": _triangle_indices(lower=False),
    "aten.vander": _vander,
    "aten.linalg_vander": _linalg_vander,
    "aten.hann_window": _window(_hann),
    "aten.hamming_window": _window(_hamming),
    "aten.blackman_window": _window(_blackman),
    "aten.bartlett_window": _window(_bartlett),
}

"""Converters of ops that make tensors out of numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.dtypes import FLOAT64, INT64
from ostinato.frontends.torch.call import Complex
from ostinato.variables import Expr

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _filled(call: Call, fill: Any) -> Any:
    """A tensor of the result's type with one number everywhere."""
    g, shape = call.g, call.shape
    if call.is_complex:
        number = complex(call.known(fill, "value"))
        parts = g.constant(np.array([number.real, number.imag]), call.dtype)
        return Complex(g.broadcast_to(parts, (*shape, 2)))
    if call.dtype.is_bool and isinstance(fill, int | float):
        fill = bool(fill)
    elif call.dtype.is_integer and isinstance(fill, float):
        fill = int(fill)
    return g.broadcast_to(call.value(fill, call.dtype), shape)


def _full(call: Call, size: Any, fill_value: Any, **kwargs: Any) -> Any:
    return _filled(call, fill_value)


def _full_like(call: Call, self: Any, fill_value: Any, **kwargs: Any) -> Any:
    return _filled(call, fill_value)


def _new_full(call: Call, self: Any, size: Any, fill_value: Any, **kwargs: Any) -> Any:
    return _filled(call, fill_value)


def _fill(call: Call, self: Any, value: Any) -> Any:
    return _filled(call, value)


def _constant(fill: int) -> Converter:
    """A tensor of zeros or ones. Memory that PyTorch leaves as it is holds zeros, too."""

    def convert(call: Call, *args: Any, **kwargs: Any) -> Any:
        return _filled(call, fill)

    return convert


def _scalar_tensor(call: Call, s: Any, **kwargs: Any) -> Any:
    return _filled(call, s)


def _arange(call: Call, *bounds: Any, **kwargs: Any) -> Value:
    start, step = 0, 1
    if len(bounds) == 1:
        (end,) = bounds
    else:
        start, end = bounds[:2]
        step = bounds[2] if len(bounds) > 2 else kwargs.get("step", 1)
    g, (count,) = call.g, call.shape
    if all(isinstance(number, int) for number in (start, end, step)):
        line = g.iota((count,))
        line = line if step == 1 else g.multiply(line, step)
        return g.cast(line if start == 0 else g.add(line, start), call.dtype)
    if any(isinstance(number, Expr) for number in (start, end, step)):
        line = g.multiply(g.iota((count,)), call.value(step, INT64))
        return g.cast(g.add(line, call.value(start, INT64)), call.dtype)
    if not isinstance(count, int):
        wide = g.multiply(g.iota((count,), dtype=FLOAT64), call.value(step, FLOAT64))
        return g.cast(g.add(wide, call.value(start, FLOAT64)), call.dtype)
    first, stride = call.known(start, "start"), call.known(step, "step")
    return g.constant(first + stride * np.arange(count, dtype=np.float64), call.dtype)


def _linspace(
    call: Call, start: Any, end: Any, steps: Any, base: float | None = None, **kwargs: Any
) -> Value:
    """Numbers at equal distances, from both ends to the middle, as PyTorch computes them."""
    g, (count,) = call.g, call.shape
    if not isinstance(count, int):
        call.unsupported("its number of steps is not known before a run")
    dtype = call.dtype
    whole = dtype.is_integer
    wide: Any = np.float64 if whole or dtype == FLOAT64 or base is not None else np.float32
    first, last = (wide(call.known(bound, "bounds")) for bound in (start, end))
    steps_ = np.arange(count, dtype=wide)
    stride = (last - first) / wide(max(count - 1, 1))
    line: Any = np.where(
        steps_ < count // 2, first + stride * steps_, last - stride * (count - 1 - steps_)
    )
    line = np.full(count, first) if count == 1 else line
    if base is not None:
        line = np.power(wide(base), line)
    return g.constant(np.trunc(line) if whole else line, dtype)


def _logspace(
    call: Call, start: Any, end: Any, steps: Any, base: float = 10.0, **kwargs: Any
) -> Value:
    return _linspace(call, start, end, steps, base)


def _eye(call: Call, n: Any, m: Any = None, **kwargs: Any) -> Value:
    g, shape = call.g, call.shape
    rows, columns = g.iota(shape, 0), g.iota(shape, 1)
    return g.cast(g.equal(rows, columns), call.dtype)


def _triangle(upper: bool) -> Converter:
    """The indices of the elements of a triangle of a matrix, row by row."""

    def convert(call: Call, row: Any, col: Any, offset: int = 0, **kwargs: Any) -> Value:
        rows, columns = call.known(row, "rows"), call.known(col, "columns")
        find = np.triu_indices if upper else np.tril_indices
        return call.g.constant(np.stack(find(rows, offset, columns)), call.dtype)

    return convert


def _window(name: str) -> Converter:
    """A window of signal processing: a constant, since its length is known."""

    def convert(
        call: Call, window_length: int, periodic: bool = True, *more: float, **kwargs: Any
    ) -> Value:
        length = call.known(window_length, "length")
        if length <= 1:
            return call.g.constant(np.ones(length), call.dtype)
        steps = 2 * math.pi * np.arange(length) / (length if periodic else length - 1)
        match name:
            case "hann":
                window = 0.5 - 0.5 * np.cos(steps)
            case "hamming":
                alpha, beta = (*more, *(0.54, 0.46)[len(more) :])
                window = alpha - beta * np.cos(steps)
            case "blackman":
                window = 0.42 - 0.5 * np.cos(steps) + 0.08 * np.cos(2 * steps)
            case _:
                window = 1 - np.abs(steps / math.pi - 1)
        return call.g.constant(window, call.dtype)

    return convert


CONVERTERS: dict[str, Converter] = {
    "aten.full": _full,
    "aten.full_like": _full_like,
    "aten.new_full": _new_full,
    "aten.fill": _fill,
    "aten.scalar_tensor": _scalar_tensor,
    "aten.arange": _arange,
    "aten.linspace": _linspace,
    "aten.logspace": _logspace,
    "aten.eye": _eye,
    "aten.tril_indices": _triangle(upper=False),
    "aten.triu_indices": _triangle(upper=True),
    **{
        f"aten.{name}": _constant(0)
        for name in (
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
    },
    **{f"aten.{name}": _constant(1) for name in ("ones", "ones_like", "new_ones")},
    **{
        f"aten.{name}_window": _window(name) for name in ("hann", "hamming", "blackman", "bartlett")
    },
}

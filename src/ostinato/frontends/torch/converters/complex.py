"""Converters of ops with complex operands or results: pairs of real numbers.

A node with a complex operand or result has its converter here and nowhere else, so that the other
families see real tensors alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.frontends.torch.call import Complex
from ostinato.ir.graph import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


def _parts(call: Call, operand: Any) -> tuple[Value, Value]:
    """Real and imaginary parts of a tensor or a number, in the dtype of the result's parts."""
    g, dtype = call.g, call.dtype
    if isinstance(operand, Complex):
        pairs = g.cast(operand.pairs, dtype)
        return g.getitem(pairs, (..., 0)), g.getitem(pairs, (..., 1))
    if isinstance(operand, complex):
        return call.value(operand.real, dtype), call.value(operand.imag, dtype)
    real = call.value(operand, dtype)
    return real, g.zeros_like(real)


def _joined(call: Call, real: Value, imaginary: Value) -> Complex:
    """Two parts, which broadcast to the result's shape, as a tensor of complex numbers."""
    g, shape = call.g, call.shape
    parts = [g.cast(g.broadcast_to(part, shape), call.dtype) for part in (real, imaginary)]
    return Complex(g.stack(parts, axis=-1))


# -- conversions ------------------------------------------------------------------------------


def _cast(call: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A conversion to the result's dtype; of complex numbers to real ones, the real parts."""
    g, dtype = call.g, call.dtype
    if isinstance(self, Complex):
        pairs = g.cast(self.pairs, dtype)
        return Complex(pairs) if call.is_complex else g.getitem(pairs, (..., 0))
    return _joined(call, *_parts(call, self))


def _same(call: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
    """The operand: memory formats, devices and gradients have no part in a graph."""
    return self


def _copy(call: Call, self: Any, src: Any, non_blocking: bool = False) -> Any:
    """The elements of ``src`` in the shape and dtype of ``self``."""
    if not call.is_complex:
        return call.g.broadcast_to(_cast(call, src), call.shape)
    return _joined(call, *_parts(call, src))


def _view_as_real(call: Call, self: Complex) -> Value:
    return self.pairs


def _view_as_complex(call: Call, self: Value) -> Complex:
    return Complex(self)


def _real(call: Call, self: Complex) -> Value:
    return call.g.getitem(self.pairs, (..., 0))


def _imaginary(call: Call, self: Complex) -> Value:
    return call.g.getitem(self.pairs, (..., 1))


def _complex(call: Call, real: Value, imag: Value) -> Complex:
    return _joined(call, *call.promoted(real, imag))


def _polar(call: Call, abs: Value, angle: Value) -> Complex:
    g = call.g
    length, turned = call.promoted(abs, angle)
    return _joined(call, g.multiply(length, g.cos(turned)), g.multiply(length, g.sin(turned)))


def _filled(call: Call, fill: Any) -> Complex:
    """A tensor of the result's type with one number everywhere."""
    number = complex(call.known(fill, "value"))
    parts = call.g.constant(np.array([number.real, number.imag]), call.dtype)
    return Complex(call.g.broadcast_to(parts, (*call.shape, 2)))


def _full(call: Call, size: Any, fill_value: Any, **kwargs: Any) -> Complex:
    return _filled(call, fill_value)


def _full_of(call: Call, self: Any, size: Any, fill_value: Any, **kwargs: Any) -> Complex:
    return _filled(call, fill_value)


def _constant(fill: int) -> Converter:
    def convert(call: Call, *args: Any, **kwargs: Any) -> Complex:
        return _filled(call, fill)

    return convert


# -- arithmetic -------------------------------------------------------------------------------


def _conjugate(call: Call, self: Complex) -> Complex:
    real, imaginary = _parts(call, self)
    return _joined(call, real, call.g.neg(imaginary))


def _negated(call: Call, self: Complex) -> Complex:
    return Complex(call.g.neg(self.pairs))


def _sum_of_two(method: str) -> Converter:
    def convert(call: Call, self: Any, other: Any, alpha: Any = 1) -> Complex:
        g = call.g
        left, right = _parts(call, self), _parts(call, other)
        if alpha != 1:
            right = _product(call, right, _parts(call, alpha))
        pairs = zip(left, right, strict=True)
        return _joined(call, *(getattr(g, method)(a, b) for a, b in pairs))

    return convert


def _product(call: Call, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    g = call.g
    real = g.subtract(g.multiply(a[0], b[0]), g.multiply(a[1], b[1]))
    return real, g.add(g.multiply(a[0], b[1]), g.multiply(a[1], b[0]))


def _multiply(call: Call, self: Any, other: Any) -> Complex:
    return _joined(call, *_product(call, _parts(call, self), _parts(call, other)))


def _divide(call: Call, self: Any, other: Any) -> Complex:
    """A quotient, scaled by the greater part of the divisor, so that no square overflows."""
    g = call.g
    (a, b), (c, d) = _parts(call, self), _parts(call, other)
    wide = g.greater_equal(g.abs(c), g.abs(d))
    # With r the lesser part over the greater one: (a + b r, b - a r) or (a r + b, b r - a).
    ratio = g.where(wide, g.divide(d, c), g.divide(c, d))
    under = g.where(wide, g.add(c, g.multiply(d, ratio)), g.add(d, g.multiply(c, ratio)))
    upper = g.where(wide, g.add(a, g.multiply(b, ratio)), g.add(g.multiply(a, ratio), b))
    lower = g.where(wide, g.subtract(b, g.multiply(a, ratio)), g.subtract(g.multiply(b, ratio), a))
    return _joined(call, g.divide(upper, under), g.divide(lower, under))


def _magnitude(call: Call, self: Complex) -> Value:
    return call.g.hypot(*_parts(call, self))


def _sign(call: Call, self: Complex) -> Complex:
    """A number over its magnitude; 0 of 0."""
    g = call.g
    real, imaginary = _parts(call, self)
    length = g.hypot(real, imaginary)
    over = g.where(g.equal(length, 0), 1, length)
    return _joined(call, g.divide(real, over), g.divide(imaginary, over))


def _angle(call: Call, self: Complex) -> Value:
    real, imaginary = _parts(call, self)
    return call.g.atan2(imaginary, real)


def _exponential(call: Call, self: Complex) -> Complex:
    g = call.g
    real, imaginary = _parts(call, self)
    length = g.exp(real)
    return _joined(call, g.multiply(length, g.cos(imaginary)), g.multiply(length, g.sin(imaginary)))


def _comparison(method: str, combined: str) -> Converter:
    """Whether both parts are equal, or either differs."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        g = call.g
        found = []
        for index in (0, 1):
            sides = [
                g.getitem(x.pairs, (..., index))
                if isinstance(x, Complex)
                else call.value((x.real, x.imag)[index])
                if isinstance(x, bool | int | float | complex)
                else (x if index == 0 else g.zeros_like(x))
                for x in (self, other)
            ]
            found.append(getattr(g, method)(*sides))
        result: Value = getattr(g, combined)(*found)
        return result

    return convert


def _matmul(call: Call, self: Any, other: Any) -> Complex:
    g = call.g
    (a, b), (c, d) = _parts(call, self), _parts(call, other)
    real = g.subtract(g.matmul(a, c), g.matmul(b, d))
    return _joined(call, real, g.add(g.matmul(a, d), g.matmul(b, c)))


# -- reductions -------------------------------------------------------------------------------


def _reduced(method: str) -> Converter:
    def convert(
        call: Call, self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Complex:
        g = call.g
        pairs = Complex(g.stack(_parts(call, self), axis=-1))
        axes = call.axes(dim, pairs.ndim)
        if not axes:
            return pairs
        return Complex(getattr(g, method)(pairs.pairs, axis=axes, keepdims=keepdim))

    return convert


def _norm(
    call: Call,
    self: Complex,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Value:
    g = call.g
    size = _magnitude(call, self)
    axes = call.axes(dim, size.ndim)
    order = 2.0 if ord is None else float(call.known(ord, "order"))
    if not axes:
        return size if order else g.cast(g.not_equal(size, 0), size.dtype)
    if order == 0:
        return g.sum(g.cast(g.not_equal(size, 0), size.dtype), axis=axes, keepdims=keepdim)
    return g.norm(size, order, axis=axes, keepdims=keepdim)


# -- arrangement ------------------------------------------------------------------------------


def _reshaped(call: Call, self: Complex, *_: Any) -> Complex:
    return Complex(call.g.reshape(self.pairs, (*call.shape, 2)))


def _arranged(
    arrange: Callable[..., Value],
) -> Converter:
    """An op that moves elements along axes which it names; the parts stay in the last axis."""

    def convert(call: Call, self: Complex, *args: Any, **kwargs: Any) -> Complex:
        return Complex(arrange(call, self, *args, **kwargs))

    return convert


def _permuted(call: Call, x: Complex, dims: tuple[int, ...]) -> Value:
    order = tuple(call.axis(dim, x.ndim) for dim in dims)
    return call.g.permute_dims(x.pairs, (*order, x.ndim))


def _transposed(call: Call, x: Complex, dim0: int = -2, dim1: int = -1) -> Value:
    if x.ndim < 2:
        return x.pairs
    return call.g.swapaxes(x.pairs, call.axis(dim0, x.ndim), call.axis(dim1, x.ndim))


def _expanded(call: Call, x: Complex, *_: Any, **__: Any) -> Value:
    shape: tuple[Dim, ...] = (*call.shape, 2)
    return call.g.broadcast_to(x.pairs, shape)


def _flipped(call: Call, x: Complex, dims: tuple[int, ...]) -> Value:
    axes = tuple(call.axis(dim, x.ndim) for dim in dims)
    return call.g.flip(x.pairs, axes) if axes and x.ndim else x.pairs


def _sliced(
    call: Call, x: Complex, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    return call.g.slice(x.pairs, [start], [end], [step], axes=[call.axis(dim, x.ndim)])


def _selected(call: Call, x: Complex, dim: int, index: Any) -> Value:
    axis = call.axis(dim, x.ndim)
    if isinstance(index, Value):
        return call.g.take(x.pairs, index, axis=axis)
    return call.g.getitem(x.pairs, (*(slice(None),) * axis, index))


def _index_selected(call: Call, x: Complex, dim: int, index: Value) -> Value:
    line = index if index.ndim else call.g.reshape(index, (1,))
    return call.g.take(x.pairs, line, axis=call.axis(dim, x.ndim))


def _concatenated(call: Call, tensors: tuple[Any, ...], dim: int = 0) -> Complex:
    g = call.g
    rank = len(call.meta().shape)
    parts = [g.stack(_parts(call, x), axis=-1) for x in tensors]
    kept = [part for part in parts if part.ndim == rank + 1]
    return Complex(g.concat(kept, call.axis(dim, rank)))


def _stacked(call: Call, tensors: tuple[Any, ...], dim: int = 0) -> Complex:
    g = call.g
    parts = [g.stack(_parts(call, x), axis=-1) for x in tensors]
    return Complex(g.stack(parts, call.axis(dim, len(call.meta().shape))))


def _padded(call: Call, self: Complex, pad: tuple[int, ...], value: Any = 0) -> Complex:
    """A border of one number; ``pad`` has pairs of widths from the last axis on."""
    g = call.g
    rank = self.ndim
    widths = [(0, 0)] * rank
    for index in range(len(pad) // 2):
        widths[rank - 1 - index] = (pad[2 * index], pad[2 * index + 1])
    number = complex(call.known(value, "value"))
    parts = [
        g.pad(part, widths, value=fill)
        for part, fill in zip(_parts(call, self), (number.real, number.imag), strict=True)
    ]
    return Complex(g.stack(parts, axis=-1))


def _rolled(call: Call, x: Complex, shifts: Any, dims: Any = ()) -> Value:
    moves = shifts if isinstance(shifts, tuple) else (shifts,)
    axes = dims if isinstance(dims, tuple) else (dims,)
    if not axes:
        call.unsupported("a roll of all elements")
    pairs = x.pairs
    for shift, axis in zip(moves, axes, strict=True):
        pairs = call.g.roll(pairs, shift, call.axis(axis, x.ndim))
    return pairs


def _windows(call: Call, x: Complex, dimension: int, size: int, step: int) -> Value:
    return call.g.moveaxis(call.g.unfold(x.pairs, call.axis(dimension, x.ndim), size, step), -1, -2)


def _power(call: Call, self: Any, exponent: Any) -> Complex:
    """Whole powers, by products; others by way of the logarithm."""
    g = call.g
    base = _parts(call, self)
    if isinstance(exponent, int) and 1 <= exponent <= 8:
        result = base
        for _ in range(exponent - 1):
            result = _product(call, result, base)
        return _joined(call, *result)
    real, imaginary = base
    logarithm = (g.log(g.hypot(real, imaginary)), g.atan2(imaginary, real))
    power, turned = _product(call, logarithm, _parts(call, exponent))
    length = g.exp(power)
    return _joined(call, g.multiply(length, g.cos(turned)), g.multiply(length, g.sin(turned)))


def _where(call: Call, condition: Value, self: Any, other: Any) -> Complex:
    a, b = _parts(call, self), _parts(call, other)
    pairs = zip(a, b, strict=True)
    return _joined(call, *(call.g.where(condition, x, y) for x, y in pairs))


_CASTS = ("_to_copy", "to", "type_as")

_COPIES = (
    "alias",
    "alias_copy",
    "clone",
    "contiguous",
    "detach",
    "detach_copy",
    "lift_fresh_copy",
    "positive",
    "resolve_conj",
    "resolve_neg",
)

_RESHAPES = (
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "view_as",
    "reshape_as",
    "ravel",
)

_ZEROS = ("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty")

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _cast for name in _CASTS},
    **{f"aten.{name}": _same for name in _COPIES},
    **{f"aten.{name}": _reshaped for name in _RESHAPES},
    **{f"aten.{name}": _constant(0) for name in _ZEROS},
    **{f"aten.{name}": _constant(1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}": _conjugate for name in ("conj", "_conj", "_conj_physical", "conj_physical")},
    "prims.convert_element_type": _cast,
    "aten.copy": _copy,
    "aten.complex": _complex,
    "aten.polar": _polar,
    "aten.imag": _imaginary,
    "aten.real": _real,
    "aten.view_as_complex": _view_as_complex,
    "aten.view_as_complex_copy": _view_as_complex,
    "aten.view_as_real": _view_as_real,
    "aten.view_as_real_copy": _view_as_real,
    "aten.full": _full,
    "aten.full_like": _full,
    "aten.new_full": _full_of,
    "aten.neg": _negated,
    "aten.add": _sum_of_two("add"),
    "aten.sub": _sum_of_two("subtract"),
    "aten.mul": _multiply,
    "aten.div": _divide,
    "aten.abs": _magnitude,
    "aten.angle": _angle,
    "aten.exp": _exponential,
    "aten.eq": _comparison("equal", "logical_and"),
    "aten.ne": _comparison("not_equal", "logical_or"),
    "aten.matmul": _matmul,
    "aten.mm": _matmul,
    "aten.bmm": _matmul,
    "aten.sum": _reduced("sum"),
    "aten.mean": _reduced("mean"),
    "aten.linalg_vector_norm": _norm,
    "aten.permute": _arranged(_permuted),
    "aten.transpose": _arranged(_transposed),
    "aten.t": _arranged(_transposed),
    "aten.mT": _arranged(_transposed),
    "aten.expand": _arranged(_expanded),
    "aten.expand_as": _arranged(_expanded),
    "aten.broadcast_to": _arranged(_expanded),
    "aten.flip": _arranged(_flipped),
    "aten.slice": _arranged(_sliced),
    "aten.select": _arranged(_selected),
    "aten.index_select": _arranged(_index_selected),
    "aten.cat": _concatenated,
    "aten.stack": _stacked,
    "aten.constant_pad_nd": _padded,
    "aten.roll": _arranged(_rolled),
    "aten.unfold": _arranged(_windows),
    "aten.pow": _power,
    "aten.sgn": _sign,
    "aten.where": _where,
}

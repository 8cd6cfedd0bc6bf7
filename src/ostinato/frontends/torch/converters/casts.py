"""Converters of conversions between element types, and of ops that copy or do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.call import Complex

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _cast(call: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A conversion to the result's dtype; of complex numbers to real ones, the real parts."""
    g, dtype = call.g, call.dtype
    if isinstance(self, Complex):
        pairs = g.cast(self.pairs, dtype)
        return Complex(pairs) if call.is_complex else g.getitem(pairs, (..., 0))
    real = call.value(self, dtype)
    if not call.is_complex:
        return real
    return Complex(g.stack([real, g.zeros_like(real)], axis=-1))


def _same(call: Call, self: Any, *args: Any, **kwargs: Any) -> Any:
    """The operand: memory formats, devices and gradients have no part in a graph."""
    return self


def _conjugate(call: Call, self: Any) -> Any:
    if not isinstance(self, Complex):
        return self
    g = call.g
    real, imaginary = g.getitem(self.pairs, (..., 0)), g.getitem(self.pairs, (..., 1))
    return Complex(g.stack([real, g.neg(imaginary)], axis=-1))


def _copy(call: Call, self: Any, src: Any, non_blocking: bool = False) -> Any:
    """The elements of ``src`` in the shape and dtype of ``self``."""
    converted = _cast(call, src)
    if isinstance(converted, Complex):
        return Complex(call.g.broadcast_to(converted.pairs, (*call.shape, 2)))
    return call.g.broadcast_to(converted, call.shape)


def _view_as_real(call: Call, self: Complex) -> Value:
    return self.pairs


def _view_as_complex(call: Call, self: Value) -> Complex:
    return Complex(self)


def _real(call: Call, self: Any) -> Any:
    return call.g.getitem(self.pairs, (..., 0)) if isinstance(self, Complex) else self


def _imaginary(call: Call, self: Complex) -> Value:
    return call.g.getitem(self.pairs, (..., 1))


def _complex(call: Call, real: Value, imag: Value) -> Complex:
    g, shape = call.g, call.shape
    parts = [g.broadcast_to(part, shape) for part in call.promoted(real, imag)]
    return Complex(g.stack(parts, axis=-1))


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(
        (
            "aten._to_copy",
            "aten.to",
            "aten.type_as",
            "prims.convert_element_type",
        ),
        _cast,
    ),
    **dict.fromkeys(
        (
            "aten.alias",
            "aten.alias_copy",
            "aten.clone",
            "aten.contiguous",
            "aten.detach",
            "aten.detach_copy",
            "aten.lift",
            "aten.lift_fresh",
            "aten.lift_fresh_copy",
            "aten.positive",
            "aten.resolve_conj",
            "aten.resolve_neg",
            "aten.pin_memory",
        ),
        _same,
    ),
    "aten.copy": _copy,
    "aten.complex": _complex,
    "aten.conj": _conjugate,
    "aten._conj": _conjugate,
    "aten._conj_physical": _conjugate,
    "aten.conj_physical": _conjugate,
    "aten.imag": _imaginary,
    "aten.real": _real,
    "aten.view_as_complex": _view_as_complex,
    "aten.view_as_complex_copy": _view_as_complex,
    "aten.view_as_real": _view_as_real,
    "aten.view_as_real_copy": _view_as_real,
}

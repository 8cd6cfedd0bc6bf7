"""Converters of conversions between element types, and of ops that only copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT32

if TYPE_CHECKING:
    from ostinato.dtypes import DType
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS", "converted"]


def converted(call: Call, x: Value, dtype: DType) -> Value:
    """``x`` in another dtype; floats that become integers of 8 or 16 bits wrap, as PyTorch's do."""
    if x.dtype.is_float and dtype.is_integer and dtype.itemsize < 4:
        x = call.g.cast(x, INT32)
    return call.g.cast(x, dtype)


def _converted(call: Call, self: Value, *_: Any, **__: Any) -> Value:
    """``self`` in the result's dtype; devices and layouts of memory have no meaning here."""
    return converted(call, self, call.dtype)


def _same(call: Call, self: Value, *_: Any, **__: Any) -> Value:
    return self


def _conjugate(call: Call, self: Value) -> Value:
    """A real number is its own conjugate, and its own real part."""
    return call.value(self)


def _copied(call: Call, self: Value, src: Value, non_blocking: bool = False) -> Value:
    """``src`` in the shape and dtype of ``self``."""
    return call.g.broadcast_to(converted(call, src, self.dtype), self.shape)


_CONVERSIONS = ("to", "_to_copy", "type_as", "_autocast_to_full_precision", "_cast_Float")

_COPIES = (
    "clone",
    "contiguous",
    "alias",
    "alias_copy",
    "detach",
    "detach_copy",
    "lift",
    "lift_fresh",
    "lift_fresh_copy",
    "positive",
    "cpu",
    "pin_memory",
    "_to_cpu",
)

_CONJUGATES = (
    "conj",
    "_conj",
    "_conj_physical",
    "conj_physical",
    "resolve_conj",
    "resolve_neg",
    "real",
)

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _converted for name in _CONVERSIONS},
    **{f"aten.{name}": _same for name in _COPIES},
    **{f"aten.{name}": _conjugate for name in _CONJUGATES},
    "aten.copy": _copied,
    "prims.convert_element_type": _converted,
}

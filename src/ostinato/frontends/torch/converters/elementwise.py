"""Converters of arithmetic, comparisons and functions of one element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.frontends.torch.call import Complex

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _unary(method: str) -> Converter:
    """A function of one operand, computed in the result's dtype."""

    def convert(call: Call, self: Any) -> Value:
        (x,) = call.promoted(self)
        return getattr(call.g, method)(x)  # type: ignore[no-any-return]

    return convert


def _binary(method: str) -> Converter:
    """A function of two operands, computed in the result's dtype."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        a, b = call.promoted(self, other)
        return getattr(call.g, method)(a, b)  # type: ignore[no-any-return]

    return convert


def _comparison(method: str) -> Converter:
    """A comparison, in the dtype that both operands promote to."""

    def convert(call: Call, self: Any, other: Any) -> Value:
        a, b = call.compared(self, other)
        return getattr(call.g, method)(a, b)  # type: ignore[no-any-return]

    return convert


def _add(call: Call, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    if call.is_complex:
        call.unsupported("complex operands")
    a, b = call.promoted(self, other)
    return call.g.add(a, b if alpha == 1 else call.g.multiply(b, call.value(alpha, call.dtype)))


def _subtract(call: Call, self: Any, other: Any, *, alpha: Any = 1) -> Value:
    a, b = call.promoted(self, other)
    scaled = b if alpha == 1 else call.g.multiply(b, call.value(alpha, call.dtype))
    return call.g.subtract(a, scaled)


def _divide(call: Call, self: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    a, b = call.promoted(self, other)
    if rounding_mode == "floor":
        return call.g.floor_divide(a, b)
    quotient = call.g.divide(a, b)
    return quotient if rounding_mode is None else call.g.trunc(quotient)


def _where(call: Call, condition: Any, self: Any, other: Any) -> Value:
    a, b = call.promoted(self, other)
    return call.g.where(condition, a, b)


def _relu(call: Call, self: Any) -> Any:
    if isinstance(self, Complex):
        call.unsupported("complex operands")
    return call.g.relu(self)


def _gelu(call: Call, self: Value, *, approximate: str = "none") -> Value:
    return call.g.gelu(self, approximate=approximate == "tanh")


CONVERTERS: dict[str, Converter] = {
    "aten.add": _add,
    "aten.sub": _subtract,
    "aten.div": _divide,
    "aten.where": _where,
    "aten.relu": _relu,
    "aten.gelu": _gelu,
    "aten.mul": _binary("multiply"),
    **{
        f"aten.{name}": _unary(method)
        for name, method in {
            "abs": "abs",
            "exp": "exp",
            "neg": "neg",
            "rsqrt": "rsqrt",
            "sigmoid": "sigmoid",
            "tanh": "tanh",
        }.items()
    },
    **{
        f"aten.{name}": _comparison(method)
        for name, method in {
            "eq": "equal",
            "ne": "not_equal",
            "lt": "less",
            "le": "less_equal",
            "gt": "greater",
            "ge": "greater_equal",
        }.items()
    },
}

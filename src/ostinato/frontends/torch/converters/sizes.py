"""Converters of numbers that are no tensors: sizes, arithmetic with them, and checks of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _scalar(call: Call, *args: Any) -> Any:
    """A number that PyTorch has traced: its expression is known."""
    return call.scalar


def _item(call: Call, self: Any, index: int) -> Any:
    return self[index]


def _size(call: Call, self: Any, dim: int) -> Any:
    return self.shape[call.axis(dim, self.ndim)]


def _count(call: Call, self: Value) -> Any:
    return self.type.size


def _metadata(call: Call, a: Value, *_: Any, **__: Any) -> None:
    """A check of a tensor's type, which the import knows already."""


_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "mod",
    "neg",
    "truediv",
    "pow",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and_",
    "or_",
    "not_",
)

_FUNCTIONS = (
    "sym_max",
    "sym_min",
    "sym_int",
    "sym_float",
    "sym_not",
    "sym_ite",
    "sym_sum",
    "_sym_sqrt",
)

CONVERTERS: dict[str, Converter] = {
    "_operator.getitem": _item,
    "aten.sym_size": _size,
    "aten.sym_numel": _count,
    **{f"_operator.{name}": _scalar for name in _ARITHMETIC},
    **{f"torch.{name}": _scalar for name in _FUNCTIONS},
    "math.trunc": _scalar,
    "math.floor": _scalar,
    "math.ceil": _scalar,
    "aten._assert_tensor_metadata": _metadata,
}

"""Converters of arithmetic with sizes, none of which becomes an op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter

__all__ = ["CONVERTERS"]


def _scalar(call: Call, *args: Any) -> Any:
    """A number that PyTorch has traced: its expression is known."""
    return call.scalar


def _item(call: Call, self: Any, index: int) -> Any:
    return self[index]


def _size(call: Call, self: Any, dim: int) -> Any:
    return self.shape[call.axis(dim, self.ndim)]


CONVERTERS: dict[str, Converter] = {
    "_operator.getitem": _item,
    "aten.sym_size.int": _size,
    **{f"_operator.{name}": _scalar for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
}

"""Converters of ops that arrange elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _view(call: Call, self: Value, size: Any) -> Value:
    return call.g.reshape(self, call.shape)


def _permute(call: Call, self: Value, dims: tuple[int, ...]) -> Value:
    return call.g.permute_dims(self, call.axes(dims, self.ndim))


def _transpose(call: Call, self: Value, dim0: int, dim1: int) -> Value:
    if not self.ndim:
        return self
    return call.g.swapaxes(self, call.axis(dim0, self.ndim), call.axis(dim1, self.ndim))


CONVERTERS: dict[str, Converter] = {
    "aten.view.default": _view,
    "aten.reshape": _view,
    "aten._unsafe_view": _view,
    "aten.permute": _permute,
    "aten.transpose": _transpose,
}

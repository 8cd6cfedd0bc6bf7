"""Converters of ops that are random in training and the identity in inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.dtypes import BOOL

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _dropout(call: Call, input: Value, p: float, train: bool) -> Value:
    if not train or p == 0:
        return input
    if p != 1:
        call.unsupported("random numbers: export the model in eval mode")
    return call.g.multiply(input, 0)


def _native_dropout(call: Call, input: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    """The result, and the mask of what is kept."""
    return _dropout(call, input, p, train is not False), call.g.full(input.shape, True, BOOL)


_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _dropout for name in _DROPOUTS},
    "aten.native_dropout": _native_dropout,
}

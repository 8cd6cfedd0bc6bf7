"""Converters of matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _matmul(call: Call, self: Value, other: Value) -> Value:
    return call.g.matmul(self, other)


def _linear(call: Call, input: Value, weight: Value, bias: Value | None = None) -> Value:
    product = call.g.matmul(input, call.g.matrix_transpose(weight) if weight.ndim > 1 else weight)
    return product if bias is None else call.g.add(product, bias)


CONVERTERS: dict[str, Converter] = {
    "aten.matmul": _matmul,
    "aten.mm": _matmul,
    "aten.bmm": _matmul,
    "aten.linear": _linear,
}

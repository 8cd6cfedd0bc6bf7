"""Converters of spellings that AOTAutograd gives to composite ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _t(call: Call, self: Value) -> Value:
    return self if self.ndim < 2 else call.g.matrix_transpose(self)


def _addmm(
    call: Call, self: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    product = call.g.matmul(mat1, mat2)
    if alpha != 1:
        product = call.g.multiply(product, call.value(alpha, call.dtype))
    if beta == 0:
        return product
    added = self if beta == 1 else call.g.multiply(self, call.value(beta, call.dtype))
    return call.g.add(product, added)


def _flash_attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> Any:
    """Attention; its second result, for the backward pass, has no equivalent."""
    if dropout_p:
        call.unsupported("dropout")
    result = call.g.attention(query, key, value, mask=attn_mask, causal=is_causal, scale=scale)
    return result, None


CONVERTERS: dict[str, Converter] = {
    "aten.t": _t,
    "aten.addmm": _addmm,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_attention,
}

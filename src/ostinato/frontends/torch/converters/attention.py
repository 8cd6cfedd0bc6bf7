"""Converters of scaled dot-product attention, in all of PyTorch's spellings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.errors import GraphError
from ostinato.ops.base import broadcast_shapes
from ostinato.variables import prod

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS", "attention_operands"]


def _attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p:
        call.unsupported("dropout within attention")
    dtypes = {str(x.dtype): None for x in (query, key, value)}
    if len(dtypes) > 1:
        raise GraphError(f"PyTorch takes operands of one dtype here, got {', '.join(dtypes)}")
    g = call.g
    lead = broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    q, k, v = (_four_dims(call, x, lead) for x in (query, key, value))
    mask, causal = attention_operands(call, q, k, attn_mask, is_causal)
    result = g.attention(q, k, v, mask=mask, causal=causal, scale=call.known(scale, "scale"))
    return g.reshape(result, call.shape)


def _four_dims(call: Call, x: Value, lead: tuple[Dim, ...]) -> Value:
    """``x`` as ``[batch, heads, length, features]``; ``lead`` has the dims of all batches."""
    g = call.g
    if x.ndim < 4:
        x = g.reshape(x, (*(1,) * (4 - x.ndim), *x.shape))
    if not lead:
        return x
    x = g.broadcast_to(x, (*lead, *x.shape[-3:]))
    return g.reshape(x, (prod(lead), *x.shape[-3:]))


def _mask(call: Call, mask: Value | None, q: Value, k: Value, is_causal: bool) -> Value | None:
    """The mask as the vocabulary takes it.

    PyTorch counts causal positions from the first query and key, the vocabulary from the last: of
    different lengths, such a mask is written out.
    """
    g = call.g
    queries, keys = q.shape[2], k.shape[2]
    if mask is not None:
        if not mask.dtype.is_bool:
            mask = g.cast(mask, q.dtype)
        if mask.ndim > 4:
            *lead, heads = call.shape[:-2]
            mask = g.broadcast_to(mask, (*lead, heads, *mask.shape[-2:]))
            mask = g.reshape(mask, (prod(lead), heads, *mask.shape[-2:]))
        return mask
    if is_causal and queries != keys:
        return g.less_equal(g.iota((1, keys), 1), g.iota((queries, 1), 0))
    return None


def attention_operands(
    call: Call, query: Value, key: Value, attn_mask: Value | None, is_causal: bool
) -> tuple[Value | None, bool]:
    """The mask as the vocabulary takes it, and whether queries attend to no later key."""
    mask = _mask(call, attn_mask, query, key, is_causal)
    return mask, is_causal and mask is None


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
) -> tuple[Value, Value]:
    """The result, and the logarithm of each query's sum of exponentials."""
    if dropout_p:
        call.unsupported("dropout within attention")
    mask, causal = attention_operands(call, query, key, attn_mask, is_causal)
    result, sums = call.g.attention(
        query,
        key,
        value,
        mask=mask,
        causal=causal,
        scale=call.known(scale, "scale"),
        return_logsumexp=True,
    )
    return result, call.g.cast(sums, call.element_type(call.meta(1).dtype))


CONVERTERS: dict[str, Converter] = {
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_attention,
}

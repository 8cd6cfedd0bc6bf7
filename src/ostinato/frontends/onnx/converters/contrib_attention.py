"""Attention of the domain ``com.microsoft``: what ONNX Runtime's optimisers and exporters write."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.dtypes import INT32, INT64
from ostinato.variables import provably_less

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["EXTENSIONS"]


# -- heads -----------------------------------------------------------------------------------------


def _split_heads(call: Call, x: Value, heads: int) -> Value:
    """``[batch, length, heads * depth]`` as ``[batch, heads, length, depth]``."""
    g, (batch, length, features) = call.g, x.shape
    if not isinstance(features, int) or heads < 1 or features % heads:
        call.malformed(f"{x.type} does not divide into {heads} heads")
    split = g.reshape(x, (batch, length, heads, features // heads))
    return g.permute_dims(split, (0, 2, 1, 3))


def _joined_heads(call: Call, x: Value) -> Value:
    """``[batch, heads, length, depth]`` as ``[batch, length, heads * depth]``."""
    g, (batch, heads, length, depth) = call.g, x.shape
    return g.reshape(g.permute_dims(x, (0, 2, 1, 3)), (batch, length, heads * depth))


def _heads(call: Call) -> int:
    return call.required("num_heads")


def _projected(call: Call) -> list[Value]:
    """Queries, keys and values ``[.., features]`` of ``Attention``: one matmul, three parts."""
    g = call.g
    joined = g.matmul(call.value(0), call.value(1))
    if call.has(2):
        joined = g.add(joined, call.value(2))
    total = joined.shape[-1]
    if not isinstance(total, int):
        call.malformed(f"its weights are {call.type(1)}")
    sizes = call.integer_list("qkv_hidden_sizes", (total // 3,) * 3)
    if len(sizes) != 3 or sum(sizes) != total:
        call.malformed(f"{list(sizes)} features of queries, keys and values of {total}")
    starts = (0, sizes[0], sizes[0] + sizes[1])
    return [
        g.slice(joined, [start], [start + size], axes=[-1])
        for start, size in zip(starts, sizes, strict=True)
    ]


def _scale(call: Call) -> float | None:
    """The factor of the scores; zero stands for the usual one."""
    return call.real("scale", 0.0) or None


# -- masks -----------------------------------------------------------------------------------------


def _sum_of(call: Call, masks: Sequence[Value | None]) -> Value | None:
    total: Value | None = None
    for mask in masks:
        if mask is not None:
            total = mask if total is None else call.g.add(total, mask)
    return total


def _padding_mask(call: Call, index: int, queries: Dim, keys: Dim, like: Value) -> Value | None:
    """A mask operand as numbers that are added to the scores: the filter where keys are masked.

    Its forms: lengths ``[B]``, ends and starts ``[2 * B]``, keys ``[B, T]``, queries and keys
    ``[B, S, T]``, and a square ``[B, 1, M, M]``, whose last rows and first columns count.
    """
    if not call.has(index):
        return None
    g, mask, batch = call.g, call.value(index), like.shape[0]
    column = g.iota((1, keys), 1, INT64)
    if mask.ndim == 1:
        lengths = g.cast(mask, INT64)
        ends = g.reshape(g.slice(lengths, [0], [batch], axes=[0]), (batch, 1))
        kept = g.less(column, ends)
        if mask.shape[0] == 2 * batch and mask.shape[0] != batch:
            starts = g.slice(lengths, [batch], [2 * batch], axes=[0])
            from_start = g.greater_equal(column, g.reshape(starts, (batch, 1)))
            kept = g.logical_and(kept, from_start)
        elif mask.shape[0] != batch:
            call.unsupported(f"its mask {mask.type} holds cumulative lengths")
        kept = g.reshape(kept, (batch, 1, 1, keys))
    elif mask.ndim == 2:
        kept = g.reshape(g.not_equal(mask, 0), (*mask.shape[:1], 1, 1, mask.shape[1]))
    elif mask.ndim == 3:
        kept = g.expand_dims(g.not_equal(mask, 0), 1)
    elif mask.ndim == 4:
        rows = g.slice(mask, [keys - queries, 0], [keys, keys], axes=[2, 3])
        kept = g.not_equal(rows, 0)
    else:
        call.malformed(f"an unknown form of mask: {mask.type}")
    unseen = call.real("mask_filter_value", -10000.0)
    return g.where(kept, g.constant(0.0, like.dtype), g.constant(unseen, like.dtype))


def _known_length(call: Call, index: int) -> None:
    """Refuse a cache that is longer than what it holds."""
    if call.has(index):
        call.unsupported("its cache is shared between past and present (past_sequence_length)")


# -- Attention, MultiHeadAttention -----------------------------------------------------------------


def convert_attention(call: Call) -> Result:
    g, heads = call.g, _heads(call)
    _known_length(call, 6)
    if call.flag("do_rotary", 0):
        call.unsupported("it turns queries and keys by angles of its own (do_rotary=1)")
    if call.rank(0) != 3 or call.rank(1) != 2:
        call.malformed(f"expected [B,S,D] and a matrix, got {call.type(0)} and {call.type(1)}")
    q, k, v = (_split_heads(call, part, heads) for part in _projected(call))
    if call.has(4):
        past = call.value(4)  # [2, B, N, P, H]
        k, v = (
            g.concat([g.reshape(g.slice(past, [i], [i + 1], axes=[0]), past.shape[1:]), x], axis=2)
            for i, x in enumerate((k, v))
        )
    bias = call.optional(5)
    mask = _sum_of(call, [bias, _padding_mask(call, 3, q.shape[2], k.shape[2], q)])
    causal = call.flag("unidirectional", 0)
    result = g.attention(q, k, v, mask=mask, causal=causal, scale=_scale(call))
    output = _joined_heads(call, result)
    return [output, g.stack([k, v], axis=0)] if call.wants(1) else output


def convert_multi_head_attention(call: Call) -> Result:
    g, heads = call.g, _heads(call)
    _known_length(call, 8)
    q, k, v = _given_heads(call, heads)
    if call.has(6) and call.has(7):
        k = g.concat([call.value(6), k], axis=2)
        v = g.concat([call.value(7), v], axis=2)
    bias = call.optional(5)
    mask = _sum_of(call, [bias, _padding_mask(call, 4, q.shape[2], k.shape[2], q)])
    causal = call.flag("unidirectional", 0)
    result = g.attention(q, k, v, mask=mask, causal=causal, scale=_scale(call))
    return [_joined_heads(call, result), k, v]


def _given_heads(call: Call, heads: int) -> list[Value]:
    """Queries, keys and values by heads, whichever way they are packed, with their biases."""
    g, q = call.g, call.value(0)
    if q.ndim == 5:  # [B, S, N, 3, H]
        parts = [_part(call, q, i) for i in range(3)]
    elif not call.has(1):
        call.malformed("its keys are missing")
    elif call.rank(1) == 5:  # [B, L, N, 2, H]
        parts = [_split_heads(call, q, heads), *(_part(call, call.value(1), i) for i in range(2))]
    else:
        parts = [q, call.value(1), call.value(2)]
        parts = [_split_heads(call, part, heads) if part.ndim == 3 else part for part in parts]
    if not call.has(3):
        return parts
    bias, start, biased = call.value(3), 0, []
    for part in parts:
        depth = part.shape[-1]
        if not isinstance(depth, int):
            call.malformed(f"its heads are {part.type}")
        own = g.slice(bias, [start], [start + heads * depth], axes=[0])
        start += heads * depth
        biased.append(g.add(part, g.reshape(own, (1, heads, 1, depth))))
    return biased


def _part(call: Call, packed: Value, index: int) -> Value:
    """One of the tensors in ``[B, S, N, parts, H]``, by heads."""
    batch, length, heads, _, depth = packed.shape
    part = call.g.slice(packed, [index], [index + 1], axes=[3])
    return call.g.permute_dims(call.g.reshape(part, (batch, length, heads, depth)), (0, 2, 1, 3))


def convert_packed_attention(call: Call) -> Result:
    """Convert ``PackedAttention``: tokens without padding attend within their own sequence."""
    g, heads = call.g, _heads(call)
    q, k, v = (_split_heads(call, g.expand_dims(part, 0), heads) for part in _projected(call))
    if call.has(5):
        call.unsupported("its scores have a bias of padded sequences (attention_bias)")
    return _packed(call, q, k, v, call.value(4))


def convert_packed_multi_head_attention(call: Call) -> Result:
    """Convert ``PackedMultiHeadAttention``, whose tokens are ``[T, D]`` or ``[T, N, 3, H]``."""
    g, heads, q = call.g, _heads(call), call.value(0)
    if q.ndim == 4:
        parts = [_part(call, g.expand_dims(q, 0), i) for i in range(3)]
    else:
        rows = (call.value(index) for index in range(3))
        parts = [_split_heads(call, g.expand_dims(row, 0), heads) for row in rows]
    if call.has(3) or call.has(6):
        call.unsupported("it has biases (bias, attention_bias)")
    return _packed(call, parts[0], parts[1], parts[2], call.value(5))


def _packed(call: Call, q: Value, k: Value, v: Value, ends: Value) -> Value:
    """Attention of tokens ``[1, N, T, H]`` of several sequences: ``[T, features]``."""
    g, tokens = call.g, q.shape[2]
    place = g.iota((tokens, 1), 0, ends.dtype)
    number = g.sum(g.cast(g.greater_equal(place, ends), INT32), axis=1)  # of each token's sequence
    same = g.equal(g.expand_dims(number, 1), g.expand_dims(number, 0))
    result = _joined_heads(call, g.attention(q, k, v, mask=same, scale=_scale(call)))
    return g.reshape(result, result.shape[1:])


# -- GroupQueryAttention ---------------------------------------------------------------------------


def convert_group_query_attention(call: Call) -> Result:
    """Convert ``GroupQueryAttention``: a causal window over a cache of each sequence's own length.

    New keys stand after those that a sequence has: its length, by ``seqlens_k``, less the new ones.
    """
    g, heads, groups = call.g, _heads(call), call.required("kv_num_heads")
    for index, name in ((12, "k_scale"), (13, "v_scale")):
        if call.has(index):
            call.unsupported(f"it takes {name}")
    for name, usual in (("smooth_softmax", 0), ("qk_output", 0), ("causal", 1)):
        if call.integer(name, usual) not in (usual, -1):
            call.unsupported(f"{name}={call.integer(name, usual)}")
    q, k, v = _grouped_heads(call, heads, groups)
    if call.has(14) and call.has(15):
        eps = call.real("qk_norm_epsilon", 1e-6)
        q, k = (g.rms_norm(x, call.value(i), eps=eps) for x, i in ((q, 14), (k, 15)))
    batch, length = q.shape[0], q.shape[2]
    held = g.cast(g.reshape(call.value(5), (batch, 1)), INT64)
    before = g.maximum(g.subtract(g.add(held, 1), g.dim_value(length)), 0)  # [B, 1]
    position = g.add(before, g.iota((1, length), 1, INT64))  # [B, S]
    if call.flag("do_rotary", 0):
        at = g.cast(call.value(9), INT64) if call.has(9) else position
        cos, sin = (g.expand_dims(g.take(call.value(i), at, axis=0), 1) for i in (7, 8))
        interleaved = call.flag("rotary_interleaved", 0)
        q, k = (g.rope(x, cos, sin, interleaved=interleaved) for x in (q, k))
    k, v = _cached(call, k, v, position)
    column = g.iota((1, 1, 1, k.shape[2]), 3, INT64)
    row = g.reshape(position, (batch, 1, length, 1))
    seen = g.less_equal(column, row)
    window = call.integer("local_window_size", -1)
    if window > 0:
        seen = g.logical_and(seen, g.less(g.subtract(row, column), window))
    mask = seen
    if call.has(10):
        bias = call.value(10)
        if provably_less(bias.shape[-1], k.shape[2]):
            missing = k.shape[2] - bias.shape[-1]
            if not isinstance(missing, int):
                call.unsupported(f"its attention_bias lacks {missing} keys; fix sizes with dims=")
            bias = g.pad(bias, [(0, 0)] * 3 + [(0, missing)])
        mask = g.where(seen, bias, -math.inf)
    softcap = call.real("softcap", 0.0) or None
    sinks = g.cast(call.value(11), q.dtype) if call.has(11) else None
    result = g.attention(q, k, v, mask=mask, sinks=sinks, scale=_scale(call), softcap=softcap)
    return [_joined_heads(call, result), k, v]


def _grouped_heads(call: Call, heads: int, groups: int) -> list[Value]:
    """Queries, keys and values by heads, from three operands or from one."""
    g, q = call.g, call.value(0)
    if call.has(1) and call.has(2):
        counts = (heads, groups, groups)
        return [_split_heads(call, call.value(i), n) for i, n in enumerate(counts)]
    joined = _split_heads(call, q, heads + 2 * groups)
    ends = (0, heads, heads + groups, heads + 2 * groups)
    return [g.slice(joined, [ends[i]], [ends[i + 1]], axes=[1]) for i in range(3)]


def _cached(call: Call, k: Value, v: Value, position: Value) -> list[Value]:
    """Keys and values with those of the cache, as many as the longest sequence has."""
    g = call.g
    total = call.dims(6, "total sequence length")[0]
    batch, groups, length, _ = k.shape
    past = call.shape(3)[2] if call.has(3) else 0
    size = past if provably_less(total, past + 1) else total
    if past == 0 and size == length:
        return [k, v]
    index = g.reshape(position, (batch, 1, length, 1))
    results = []
    for new, operand in ((k, 3), (v, 4)):
        missing = size - past
        blank = g.zeros((batch, groups, missing, new.shape[3]), new.dtype)
        if past == 0:
            buffer = blank
        else:
            cache = call.value(operand)
            buffer = cache if missing == 0 else g.concat([cache, blank], axis=2)
        at = g.broadcast_to(index, new.shape)
        results.append(g.scatter(buffer, at, new, axis=2))
    return results


# -- RotaryEmbedding -------------------------------------------------------------------------------


def convert_rotary_embedding(call: Call) -> Result:
    g, x = call.g, call.value(0)
    if call.flag("is_packed_batching", 0):
        call.unsupported("its batches are packed (is_packed_batching=1)")
    cos, sin = call.value(2), call.value(3)
    features = call.integer("rotary_embedding_dim", 0)
    if x.ndim == 3:
        heads = call.integer("num_heads", 0)
        size = x.shape[2]
        depth = features if features and not heads else 2 * cos.shape[1]
        if not heads:
            if not isinstance(size, int) or not isinstance(depth, int) or size % depth:
                call.malformed(f"{x.type} does not divide into heads of {depth}")
            heads = size // depth
        by_heads = _split_heads(call, x, heads)
    elif x.ndim == 4:
        by_heads = x
    else:
        call.malformed(f"expected [B,S,D] or [B,N,S,H], got {x.type}")
    batch, _, length, _ = by_heads.shape
    position = g.cast(call.value(1), INT64)
    if position.ndim == 1:
        position = g.add(g.reshape(position, (1, 1)), g.iota((1, length), 1, INT64))
        position = g.broadcast_to(position, (batch, length))
    angles = (g.expand_dims(g.take(table, position, axis=0), 1) for table in (cos, sin))
    turned = g.rope(by_heads, *angles, interleaved=call.flag("interleaved", 0))
    scale = call.real("scale", 1.0)
    turned = turned if scale == 1.0 else g.multiply(turned, scale)
    return _joined_heads(call, turned) if x.ndim == 3 else turned


#: Ops of the ``com.microsoft`` domain.
EXTENSIONS: Mapping[str, Converter] = {
    "Attention": convert_attention,
    "GroupQueryAttention": convert_group_query_attention,
    "MultiHeadAttention": convert_multi_head_attention,
    "PackedAttention": convert_packed_attention,
    "PackedMultiHeadAttention": convert_packed_multi_head_attention,
    "RotaryEmbedding": convert_rotary_embedding,
}

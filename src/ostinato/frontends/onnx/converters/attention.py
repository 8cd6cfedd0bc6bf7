"""Attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.dtypes import BOOL, INT64
from ostinato.records import dataclass
from ostinato.variables import provably_less

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.frontends.onnx.call import Call, Converter, Result
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["CONVERTERS"]


def convert_attention(call: Call) -> Result:
    """Operator set 23's ``Attention``, with 24's padded caches and 25's windows."""
    g = call.g
    q = _by_heads(call, 0, "q_num_heads")
    k = _by_heads(call, 1, "kv_num_heads")
    v = _by_heads(call, 2, "kv_num_heads")
    past: Dim = 0
    if call.has(4) and call.has(5):
        past = call.shape(4)[2]
        k = g.concat([call.value(4), k], axis=2)
        v = g.concat([call.value(5), v], axis=2)
    rules = _Rules(call, q.shape[2], k.shape[2], past)
    scale, softcap = call.real("scale", None), call.real("softcap", 0.0) or None
    mask = rules.mask()
    result = g.attention(
        q, k, v, mask=mask, causal=rules.causal, window=rules.window, scale=scale, softcap=softcap
    )
    if call.rank(0) == 3:
        moved = g.permute_dims(result, (0, 2, 1, 3))
        result = g.reshape(moved, (*moved.shape[:2], moved.shape[2] * moved.shape[3]))
    if not call.wants(3):
        return [result, k, v]
    return [result, k, v, _scores(call, q, k, rules, scale, softcap)]


def _by_heads(call: Call, index: int, attribute: str) -> Value:
    """An operand as ``[batch, heads, length, head_dim]``."""
    g, x = call.g, call.value(index)
    if x.ndim == 4:
        return x
    heads = call.required(attribute)
    if x.ndim != 3 or heads < 1 or not isinstance(x.shape[2], int) or x.shape[2] % heads:
        call.malformed(f"{x.type} does not divide into {heads} heads")
    batch, length, features = x.shape
    return g.permute_dims(g.reshape(x, (batch, length, heads, features // heads)), (0, 2, 1, 3))


@dataclass
class _Rules:
    """The keys that each query attends to.

    Query ``i`` stands at position ``i + offset`` of the keys. Where that makes the last query
    stand at the last key, the vocabulary's own ``causal`` and ``window`` say it; everything else
    is spelled out as a mask.
    """

    call: Call
    queries: Dim
    keys: Dim
    past: Dim

    @property
    def _aligned(self) -> bool:
        return not self.call.has(6) and self.keys - self.queries == self.past

    @property
    def _left(self) -> int:
        return self.call.integer("left_window_size", -1)

    @property
    def _right(self) -> int:
        return self.call.integer("right_window_size", -1)

    @property
    def causal(self) -> bool:
        return self._aligned and self.call.flag("is_causal", 0)

    @property
    def window(self) -> int | None:
        return self._left + 1 if self._aligned and self._left >= 0 else None

    def mask(self, *, complete: bool = False) -> Value | None:
        """The mask that ``causal`` and ``window`` do not express; with ``complete``, all of it."""
        g = self.call.g
        allowed = self._allowed(spell_out=complete or not self._aligned)
        given = self._given()
        if given is None or not allowed:
            return _all_of(self.call, allowed) if given is None else given
        if given.dtype == BOOL:
            return _all_of(self.call, [given, *allowed])
        condition = _all_of(self.call, allowed)
        return g.where(condition, given, -math.inf)

    def _given(self) -> Value | None:
        """The mask operand; keys that it does not reach are not attended to."""
        mask = self.call.optional(3)
        if mask is not None and not (mask.dtype.is_float or mask.dtype == BOOL):
            self.call.malformed(f"its mask is {mask.type}, expected bools or floats")
        if mask is None or not provably_less(mask.shape[-1], self.keys) or mask.shape[-1] == 1:
            return mask
        missing = self.keys - mask.shape[-1]
        if not isinstance(missing, int):
            self.call.unsupported(f"its mask lacks {missing} keys; fix the sizes with dims=")
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        return self.call.g.pad(mask, widths, value=False if mask.dtype == BOOL else -math.inf)

    def _allowed(self, *, spell_out: bool) -> list[Value]:
        call, g = self.call, self.call.g
        column = g.iota((1, self.keys), 1, INT64)
        allowed: list[Value] = []
        offset = g.dim_value(self.past)
        if call.has(6):
            live = g.cast(g.reshape(call.value(6), (call.shape(6)[0], 1, 1, 1)), INT64)
            allowed.append(g.less(column, live))
            offset = g.subtract(live, g.dim_value(self.queries))
        # How far a query stands after a key.
        distance = g.subtract(g.add(g.iota((self.queries, 1), 0, INT64), offset), column)
        if spell_out and call.flag("is_causal", 0):
            allowed.append(g.greater_equal(distance, 0))
        if spell_out and self._left >= 0:
            allowed.append(g.less_equal(distance, self._left))
        if self._right >= 0:
            allowed.append(g.greater_equal(distance, -self._right))
        return allowed


def _all_of(call: Call, conditions: list[Value]) -> Value | None:
    if not conditions:
        return None
    result = conditions[0]
    for condition in conditions[1:]:
        result = call.g.logical_and(result, condition)
    return result


def _scores(
    call: Call, q: Value, k: Value, rules: _Rules, scale: float | None, softcap: float | None
) -> Value:
    """The fourth output, a look inside, at the stage that ``qk_matmul_output_mode`` names."""
    g, mode = call.g, call.integer("qk_matmul_output_mode", 0)
    if mode not in range(4):
        call.malformed(f"qk_matmul_output_mode should be 0, 1, 2 or 3, got {mode}")
    batch, heads, length, depth = q.shape
    groups, keys = k.shape[1], k.shape[2]
    if not isinstance(heads, int) or not isinstance(groups, int) or not isinstance(depth, int):
        call.malformed("heads and head dimensions are fixed sizes")
    rows = g.reshape(q, (batch, groups, length * (heads // groups), depth))
    products = g.matmul(rows, g.permute_dims(k, (0, 1, 3, 2)))
    scores = g.reshape(products, (batch, heads, length, keys))
    scores = g.multiply(scores, 1 / math.sqrt(depth) if scale is None else scale)
    if mode >= 1 and softcap is not None:
        scores = g.multiply(g.tanh(g.divide(scores, softcap)), softcap)
    mask = rules.mask(complete=True)
    if mode >= 2 and mask is not None:
        scores = g.where(mask, scores, -math.inf) if mask.dtype == BOOL else g.add(scores, mask)
    if mode < 3:
        return scores
    empty = g.equal(g.max(scores, axis=-1, keepdims=True), -math.inf)
    return g.where(empty, 0.0, g.softmax(g.where(empty, 0.0, scores), axis=-1))


def convert_rotary_embedding(call: Call) -> Result:
    """Convert ``RotaryEmbedding``, positions before heads, so that all heads share the angles."""
    g, x = call.g, call.value(0)
    if x.ndim == 4:
        by_position = g.permute_dims(x, (0, 2, 1, 3))
    else:
        heads = call.required("num_heads")
        if x.ndim != 3 or heads < 1 or not isinstance(x.shape[2], int) or x.shape[2] % heads:
            call.malformed(f"{x.type} does not divide into {heads} heads")
        by_position = g.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
    cos, sin = (_angles(call, index, by_position) for index in (1, 2))
    interleaved = call.flag("interleaved", 0)
    rotated = g.rope(by_position, cos, sin, interleaved=interleaved)
    return g.permute_dims(rotated, (0, 2, 1, 3)) if x.ndim == 4 else g.reshape(rotated, x.shape)


def _angles(call: Call, index: int, x: Value) -> Value:
    """Cosines or sines as ``[batch, length, 1, pairs]``."""
    g, cache = call.g, call.value(index)
    features = call.integer("rotary_embedding_dim", 0) or x.shape[-1]
    if cache.shape[-1] * 2 != features:
        call.malformed(f"{cache.type} does not hold an angle for each pair of {features} features")
    rows = g.take(cache, call.value(3), axis=0) if call.has(3) else cache
    if rows.ndim != 3:
        call.malformed(f"{rows.type} does not hold rows of angles by batch and position")
    return g.reshape(rows, (*rows.shape[:2], 1, rows.shape[2]))


CONVERTERS: Mapping[str, Converter] = {
    "Attention": convert_attention,
    "RotaryEmbedding": convert_rotary_embedding,
}

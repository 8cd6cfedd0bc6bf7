"""Scaled dot-product attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64, DType
from ostinato.ir.types import TensorType
from ostinato.ops.base import Composite, broadcast_shapes
from ostinato.ops.normalization import FloatOp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.op import Attr, Op
    from ostinato.variables import Dim

__all__ = [
    "ATTENTION",
    "FAMILY",
    "ROPE",
    "SINK_ATTENTION",
    "Attention",
    "Rope",
    "SinkAttention",
    "expect_options",
    "expect_sinks",
    "masked",
]


class Attention(Composite):
    """``softmax(scale * q @ k^T, masked) @ v`` for every head.

    ``q [B, H, Lq, D]``, ``k [B, Hk, Lk, D]``, ``v [B, Hk, Lk, Dv]`` give ``[B, H, Lq, Dv]``. ``Hk``
    divides ``H``: query head ``h`` reads key head ``h // (H / Hk)``. In the order of application:

    - ``scale``: a factor on the scores, ``None`` for ``1 / sqrt(D)``;
    - ``softcap``: scores become ``softcap * tanh(scores / softcap)``;
    - ``mask``, an optional fourth operand that broadcasts to ``[B, H, Lq, Lk]``: bool, true where a
      query attends to a key, or a float that is added to the scores;
    - ``causal``: no query attends to a key after it. The queries are the last ``Lq`` of the ``Lk``
      positions, so query ``i`` stands at ``i + Lk - Lq``;
    - ``window``: a query attends to no key that is ``window`` or more positions before it. With
      ``causal``, these are the ``window`` most recent positions, its own included.

    A query that attends to nothing gives zeros (as do all when ``Lk`` is 0), never NaN.
    """

    name = "attention"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 3, 4)
        return self._result(operands, attrs)

    def _result(
        self, operands: Sequence[TensorType], attrs: dict[str, Attr]
    ) -> tuple[TensorType, ...]:
        """The type of the result, after checking queries, keys, values and the mask, if any."""
        q, k, v = operands[:3]
        for name, t in zip("qkv", operands, strict=False):
            self.expect(t.ndim == 4, f"{name} is [batch, heads, length, head_dim], got {t}")
            self.expect(t.dtype.is_float, f"{name} is {t.dtype}, not a float; cast it first")
            self.expect(t.dtype == q.dtype, f"q is {q.dtype} and {name} {t.dtype}; cast one")
        batch, heads, length, depth = q.shape
        self.expect(k.shape[0] == batch == v.shape[0], "the batch sizes of q, k and v differ")
        self.expect(k.shape[1:3] == v.shape[1:3], "heads or lengths of k and v differ")
        self.expect(
            k.shape[3] == depth, f"head dimensions {depth} of q and {k.shape[3]} of k differ"
        )
        self.expect(isinstance(depth, int) and depth > 0, f"head dimension {depth} is no size")
        features = v.shape[3]
        self.expect(isinstance(features, int), f"the features {features} of v are no size")
        self.expect(
            k.shape[1] != 0 and heads % k.shape[1] == 0,
            f"{heads} query heads are no multiple of {k.shape[1]} key heads",
        )
        if len(operands) == 4:
            self._check_mask(operands[3], (batch, heads, length, k.shape[2]))
        expect_options(self, attrs)
        return (TensorType(q.dtype, (*q.shape[:3], v.shape[3])),)

    def _check_mask(self, mask: TensorType, scores: tuple[Dim, ...]) -> None:
        kind = mask.dtype.is_bool or mask.dtype.is_float
        self.expect(kind, f"the mask is bool or a float, got {mask.dtype}")
        self.expect(
            broadcast_shapes(mask.shape, scores) == scores,
            f"the mask {mask} does not broadcast to [{','.join(map(str, scores))}]",
        )

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        q, k, v, *mask = operands
        return _attend(xp, q, k, v, mask, None, attrs)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        q, k, v = operands[:3]
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        return scores * (2 * q.shape[3] + 2 * v.shape[3] + 5)


class SinkAttention(Attention):
    """``attention`` whose softmax counts one more score for each head, which has no value.

    Operands: those of ``attention`` with ``sinks [H]``, floats, after the values. The score
    ``sinks[h]`` is neither scaled, nor limited, nor masked. (ONNX Runtime's ``head_sink``.)
    """

    name = "sink_attention"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 4, 5)
        q, k, v, sinks, *mask = operands
        result = self._result((q, k, v, *mask), attrs)
        expect_sinks(self, sinks, q.shape[1])
        return result

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        q, k, v, sinks, *mask = operands
        return _attend(xp, q, k, v, mask, sinks, attrs)


def expect_sinks(op: Op, sinks: TensorType, heads: Dim) -> None:
    """Refuse operands that are not a score for each of ``heads`` heads."""
    op.expect(
        sinks.dtype.is_float and sinks.shape == (heads,),
        f"sinks are floats [{heads}], one for each query head, got {sinks}",
    )


def expect_options(op: Op, attrs: dict[str, Attr]) -> None:
    """Refuse a ``scale``, ``softcap`` or ``window`` that makes no sense."""
    for key in ("scale", "softcap"):
        value = attrs[key]
        fits = value is None or (isinstance(value, int | float) and math.isfinite(value))
        op.expect(fits, f"{key} is a finite number or None, got {value!r}")
    op.expect(attrs["softcap"] is None or attrs["softcap"] > 0, "softcap must be positive")
    window = attrs["window"]
    fits = window is None or (isinstance(window, int) and window >= 1)
    op.expect(fits, f"window is an int >= 1 or None, got {window!r}")


def _attend(
    xp: Any, q: Any, k: Any, v: Any, mask: Sequence[Any], sinks: Any, attrs: dict[str, Attr]
) -> Any:
    """The rule of attention, with or without ``sinks``."""
    batch, heads, length, depth = q.shape
    groups, keys = k.shape[1:3]
    if keys == 0:
        return xp.full((*q.shape[:3], v.shape[3]), 0.0, DType.parse(q.dtype))
    # Query heads that share a key head stand one below the other: one matmul for all of them.
    stacked = (batch, groups, heads // groups * length)
    scale = 1.0 / math.sqrt(depth) if attrs["scale"] is None else float(attrs["scale"])
    products = xp.matmul(xp.reshape(q, (*stacked, depth)), xp.permute_dims(k, (0, 1, 3, 2)))
    scores = xp.reshape(products, (batch, heads, length, keys)) * scale
    if attrs["softcap"] is not None:
        scores = xp.tanh(scores / float(attrs["softcap"])) * float(attrs["softcap"])
    weights = _weights(xp, masked(xp, scores, mask, attrs), sinks)
    result = xp.matmul(xp.reshape(weights, (*stacked, keys)), v)
    return xp.reshape(result, (batch, heads, length, v.shape[3]))


def masked(xp: Any, scores: Any, mask: Sequence[Any], attrs: dict[str, Attr]) -> Any:
    """``scores`` with minus infinity wherever a query does not attend to a key."""
    if mask and _is_bool(mask[0]):
        scores = xp.where(mask[0], scores, -math.inf)
    elif mask:
        scores = scores + mask[0]
    if not attrs["causal"] and attrs["window"] is None:
        return scores
    # Both count from the last position, where queries and keys are aligned: no length is needed.
    query = xp.flip(xp.iota((scores.shape[2], 1), 0, INT64), 0)
    key = xp.flip(xp.iota((1, scores.shape[3]), 1, INT64), 1)
    if attrs["causal"]:
        scores = xp.where(key >= query, scores, -math.inf)
    if attrs["window"] is not None:
        scores = xp.where(key - query < attrs["window"], scores, -math.inf)
    return scores


def _is_bool(mask: Any) -> bool:
    return str(mask.dtype) == "bool"


def _weights(xp: Any, scores: Any, sinks: Any) -> Any:
    """Softmax over the keys and the sink; rows of nothing but minus infinity give zeros."""
    greatest = xp.max(scores, axis=3, keepdims=True)
    if sinks is not None:
        sinks = xp.reshape(sinks, (1, sinks.shape[0], 1, 1))
        greatest = xp.maximum(greatest, sinks)
    shift = xp.where(xp.equal(greatest, -math.inf), 0.0, greatest)
    exponential = xp.exp(scores - shift)
    total = xp.sum(exponential, axis=3, keepdims=True)
    if sinks is not None:
        total = total + xp.exp(sinks - shift)
    return exponential / xp.where(xp.equal(total, 0.0), 1.0, total)


class Rope(FloatOp):
    """Rotary position embedding of ``x [..., L, D]`` by the angles of ``cos, sin [..., R / 2]``.

    The first ``R <= D`` features of every position rotate in pairs, the others pass through. Pair
    ``i`` is features ``(i, i + R / 2)``, or ``(2 i, 2 i + 1)`` when ``interleaved``. The leading
    dims of ``cos`` and ``sin`` broadcast to those of ``x``: ``[L, R / 2]`` serves all heads.
    """

    name = "rope"
    cost = 3
    operand_names = ("x", "cos", "sin")

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        x = self.check_operands(operands, required=3)
        cos, sin = operands[1:]
        self.expect(x.ndim >= 1 and cos.ndim >= 1, f"x and cos are vectors at least, got {x}")
        self.expect(cos.shape == sin.shape, f"cos is {cos} and sin {sin}; their shapes differ")
        features, pairs = x.shape[-1], cos.shape[-1]
        self.expect(
            isinstance(features, int) and isinstance(pairs, int) and 2 * pairs <= features,
            f"cos has {pairs} pairs for {features} features; it holds one angle per pair, so half "
            "of the features that rotate",
        )
        self.expect(
            broadcast_shapes(cos.shape[:-1], x.shape[:-1]) == x.shape[:-1],
            f"cos {cos} does not broadcast along {x}",
        )
        return (x,)

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        x, cos, sin = operands
        features, pairs = x.shape[-1], cos.shape[-1]
        rotating = x[..., : 2 * pairs]
        if attrs["interleaved"]:
            paired = xp.reshape(rotating, (*x.shape[:-1], pairs, 2))
            turned = _rotate(paired[..., 0], paired[..., 1], cos, sin)
            apart = [xp.reshape(t, (*t.shape, 1)) for t in turned]
            rotated = xp.reshape(xp.concat(apart, axis=-1), (*x.shape[:-1], 2 * pairs))
        else:
            turned = _rotate(rotating[..., :pairs], rotating[..., pairs:], cos, sin)
            rotated = xp.concat(turned, axis=-1)
        if features == 2 * pairs:
            return rotated
        return xp.concat([rotated, x[..., 2 * pairs :]], axis=-1)


def _rotate(first: Any, second: Any, cos: Any, sin: Any) -> list[Any]:
    return [first * cos - second * sin, second * cos + first * sin]


ATTENTION, SINK_ATTENTION, ROPE = Attention(), SinkAttention(), Rope()
FAMILY: tuple[Op, ...] = (ATTENTION, SINK_ATTENTION, ROPE)

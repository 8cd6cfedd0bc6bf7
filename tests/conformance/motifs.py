"""Compositions that the compiler looks for: as exporters spell them, and near misses of them."""

from __future__ import annotations

import math
from typing import Any

from ostinato.dtypes import DType
from ostinato.ir.graph import Value

from .draw import FLOATS, Draw, Recipe


def _rows(d: Draw, dtype: str, low: int = 2) -> Value:
    return d.tensor(dtype, low, 4, nonempty=True)


def _softmax(d: Draw, dtype: str) -> Value:
    """exp(x - max) / sum, along an axis that need not be the last."""
    g, x = d.g, _rows(d, dtype)
    axis = d.axis(x)
    e = g.exp(x - g.max(x, axis=axis, keepdims=True))
    return e / g.sum(e, axis=axis, keepdims=True)


def _layer_norm(d: Draw, dtype: str) -> Value:
    g, x = d.g, _rows(d, dtype)
    center = x - g.mean(x, axis=-1, keepdims=True)
    square = d.choice((lambda v: v * v, g.square, lambda v: v**2))(center)
    eps = 1e-5 if dtype in ("float32", "float64") else 1e-2
    y = center / g.sqrt(g.mean(square, axis=-1, keepdims=True) + eps)
    y = y * d.of(x.shape[-1:], dtype)
    return y + d.of(x.shape[-1:], dtype) if d.chance() else y


def _rms_norm(d: Draw, dtype: str) -> Value:
    g, x = d.g, _rows(d, dtype)
    eps = 1e-6 if dtype in ("float32", "float64") else 1e-2
    scale = g.rsqrt(g.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * d.of(x.shape[-1:], dtype)


def _gelu(d: Draw, dtype: str) -> Value:
    g, x = d.g, d.tensor(dtype)
    if d.chance():
        inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + g.tanh(inner))
    half = g.erf(x / math.sqrt(2.0)) + 1.0
    return x * half * 0.5 if d.chance() else 0.5 * (x * half)


def _sigmoids(d: Draw, dtype: str) -> Value:
    g, x = d.g, d.tensor(dtype)
    y = g.reciprocal(1.0 + g.exp(-x)) if d.chance() else 1.0 / (g.exp(-x) + 1.0)
    return x * y if d.chance() else y


def _dense(d: Draw, dtype: str) -> Value:
    """A matmul with a possible epilogue."""
    g, x = d.g, _rows(d, dtype)
    k, n = int(x.shape[-1]), d.size()
    y = g.matmul(x, d.of((k, n), dtype, -0.5, 0.5)) + d.of((n,), dtype)
    y = d.choice((g.relu, g.gelu, g.tanh, lambda v: v, lambda v: g.clip(v, -2, 2)))(y)
    if d.chance():
        y = y + d.of(y.shape, dtype)
    return g.softmax(y, -1) if d.chance(0.2) and n else y


def _attention(d: Draw, dtype: str) -> Value:
    """Heads split from one projection by reshape, slice and transpose; scores; values; merged."""
    g = d.g
    batch, length, heads, size = d.integer(1, 2), d.choice((1, 5, 17)), d.integer(1, 3), 8
    x = d.of((batch, length, 3 * heads * size), dtype, -1, 1)
    if d.chance():
        parts = g.split(x, 3, -1)
        q, k, v = (_heads(d, part, heads, size) for part in parts)
    else:
        packed = g.permute_dims(g.reshape(x, (batch, length, 3, heads, size)), (2, 0, 3, 1, 4))
        q, k, v = (packed[i] for i in range(3))
    scores = g.matmul(q, g.permute_dims(k, (0, 1, 3, 2))) * (1 / math.sqrt(size))
    if d.chance():
        mask = d.of((batch, 1, 1, length), "bool")
        scores = g.where(mask, scores, g.constant(-1e4, dtype))
    y = g.matmul(g.softmax(scores, -1), v)
    return g.reshape(g.permute_dims(y, (0, 2, 1, 3)), (batch, length, heads * size))


def _heads(d: Draw, x: Value, heads: int, size: int) -> Value:
    g, (batch, length, _) = d.g, x.shape
    return g.permute_dims(g.reshape(x, (batch, length, heads, size)), (0, 2, 1, 3))


def _standardised(d: Draw, dtype: str) -> Value:
    """Two statistics of the same rows, one read by the other, and both by what follows."""
    g, x = d.g, _rows(d, dtype)
    top, low = (f(x, axis=-1, keepdims=d.chance()) for f in (g.max, g.min))
    span = g.reshape(top, (*x.shape[:-1], 1)) - g.reshape(low, (*x.shape[:-1], 1))
    return (x - g.reshape(low, (*x.shape[:-1], 1))) / (span + 1.0)


def _residual(d: Draw, dtype: str) -> Value:
    """One value read at its own positions, at others, and by a reduction."""
    g, x = d.g, _rows(d, dtype)
    y = d.choice((g.tanh, g.sigmoid, g.relu))(x)
    z = g.permute_dims(y, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])
    flat = g.reshape(z, x.shape)
    return flat + y + g.sum(y, axis=d.axis(x), keepdims=True)


def _updates(d: Draw, dtype: str) -> Value:
    """Writes into what was computed, and reads of what was written."""
    g, x = d.g, _rows(d, dtype)
    y = g.tanh(x)
    update = d.of([d.integer(1, int(s)) for s in x.shape], dtype)
    z = g.dynamic_update_slice(y, update, [d.integer(0, int(s)) for s in x.shape])
    return z + y if d.chance() else g.concat([z, y], d.axis(x))


def _converted(d: Draw, dtype: str) -> Value:
    """Through another float dtype and back, with work there."""
    g, x = d.g, d.tensor(dtype)
    other = d.choice([f for f in FLOATS if DType.parse(f).name != dtype])
    return g.cast(g.tanh(g.cast(x, other)) + 1, dtype)


#: By name, a recipe and the dtypes that it takes.
MOTIFS: dict[str, tuple[Recipe, Any]] = {
    f"motif_{recipe.__name__.strip('_')}": (recipe, FLOATS)
    for recipe in (
        _softmax, _layer_norm, _rms_norm, _gelu, _sigmoids, _dense, _attention, _standardised,
        _residual, _updates, _converted,
    )
}  # fmt: skip

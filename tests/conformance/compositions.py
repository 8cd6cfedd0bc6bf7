"""Recipes of vocabulary methods that are made of several ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ostinato.ir.graph import Value

from .draw import FLOATS, SIZES, Draw, Recipe

#: The name of a composition, its recipe, and its dtypes.
COMPOSITIONS: dict[str, tuple[Recipe, Sequence[str]]] = {}


def composition(*dtypes: str) -> Callable[[Recipe], Recipe]:
    def register(recipe: Recipe) -> Recipe:
        COMPOSITIONS[recipe.__name__.strip("_")] = (recipe, dtypes)
        return recipe

    return register


def _image(d: Draw, dtype: str, ndim: int, least: int = 1) -> Value:
    sizes = [d.integer(least, 9) for _ in range(ndim)]
    return d.of((d.integer(1, 2), d.integer(1, 3), *sizes), dtype)


# -- images ----------------------------------------------------------------------------------------


@composition("float32", "int8")
def _resize_nearest(d: Draw, dtype: str) -> Any:
    x = _image(d, dtype, d.integer(1, 3))
    sizes = [d.integer(1, 12) for _ in x.shape[2:]]
    return [d.g.resize(x, sizes, mode=mode) for mode in ("nearest", "nearest-exact")]


@composition("float32", "bfloat16", "float64")
def _resize_smooth(d: Draw, dtype: str) -> Any:
    x = _image(d, dtype, 2)
    align = d.chance()
    return [
        d.g.resize(x, (d.integer(1, 12), d.integer(1, 12)), mode="bicubic", align_corners=align),
        d.g.resize(x, (4, 5), mode="bilinear", antialias=True),
        d.g.resize(x, scales=1.5, mode="bilinear", align_corners=align),
    ]


@composition("float32", "float16")
def _grid_sample(d: Draw, dtype: str) -> Any:
    ndim = d.integer(2, 3)
    x = _image(d, dtype, ndim)
    grid = d.of((x.shape[0], *(d.integer(1, 5) for _ in range(ndim)), ndim), "float32", -2, 2)
    padding = d.choice(("zeros", "border", "reflection"))
    return [d.g.grid_sample(x, grid, mode, padding, d.chance()) for mode in ("bilinear", "bicubic")]


@composition("float32")
def _affine_grid(d: Draw, dtype: str) -> Any:
    theta = d.of((2, 2, 3), dtype)
    return [d.g.affine_grid(theta, (2, 3, 5, 1), align) for align in (False, True)]


# -- complex numbers -------------------------------------------------------------------------------


@composition("float32", "float64", "bfloat16")
def _transforms(d: Draw, dtype: str) -> Any:
    g, axis = d.g, d.integer(0, 1)
    x = d.of((d.choice((1, 6, 66)), d.choice((5, 64, 77)), 2), dtype)
    y = d.of(x.shape, dtype)
    return [
        g.fft(g.complex_multiply(x, y), axis=axis, norm="ortho"),
        g.irfft(g.rfft(g.complex_abs(x), axis=axis), x.shape[axis], axis),
        g.angle(x),
    ]


# -- parts of floats -------------------------------------------------------------------------------


@composition(*FLOATS)
def _parts_of_floats(d: Draw, dtype: str) -> Any:
    g, x = d.g, d.tensor(dtype, 1, 2)
    y = d.of(x.shape, dtype)
    return [
        g.nextafter(x, y),
        g.ldexp(x, d.of(x.shape, "int32", -20, 12)),
        *g.frexp(x),
        g.fmax(x, y),
        g.fmin(g.sqrt(x), y),
        g.nan_to_num(g.log(x)),
        g.heaviside(g.trunc(x), y),
        g.isneginf(g.log(g.relu(x))),
        g.deg2rad(x),
    ]


# -- pools -----------------------------------------------------------------------------------------


@composition("float32", "float16", "int8")
def _max_pool_positions(d: Draw, dtype: str) -> Any:
    x = _image(d, dtype, 2, 4)
    stride, dilation, ceil = d.integer(1, 3), d.integer(1, 2), d.chance()
    best, places = d.g.max_pool(x, 2, stride, 1, dilation, ceil, return_indices=True)
    return [best, places, d.g.max_unpool(best, places, x.shape[2:])]


@composition("float32", "bfloat16")
def _odd_pools(d: Draw, dtype: str) -> Any:
    x = _image(d, dtype, 2, 4)
    return [
        d.g.avg_pool(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
        d.g.lp_pool(x, (2, 3), 2, ceil_mode=True, p=d.choice((1.0, 2.0, 3.0))),
    ]


@composition(*FLOATS)
def _adaptive_pools(d: Draw, dtype: str) -> Any:
    x = _image(d, dtype, d.integer(1, 3))
    bins = [d.integer(1, 7) for _ in x.shape[2:]]
    return [
        d.g.adaptive_avg_pool(x, bins),
        d.g.adaptive_max_pool(x, bins),
        *d.g.adaptive_max_pool(x, bins, return_indices=True),
    ]


# -- training --------------------------------------------------------------------------------------


@composition("float32", "float16")
def _window_gradients(d: Draw, dtype: str) -> Any:
    g, x = d.g, d.of((2, 4, d.integer(5, 9), d.integer(5, 9)), dtype)
    w, size = d.of((6, 2, 3, 2), dtype, -1, 1), x.shape[2:]
    result = g.conv(x, w, None, 2, 1, groups=2)
    means = g.avg_pool(x, 3, 2, 1, ceil_mode=True)
    best, places = g.max_pool(x, 2, return_indices=True)
    return [
        *g.conv_backward(result, x, w, 2, 1, groups=2),
        g.avg_pool_backward(means, size, 3, 2, 1, ceil_mode=True),
        g.max_pool_backward(best, places, size),
    ]


@composition("float32", "bfloat16")
def _norms_and_gradients(d: Draw, dtype: str) -> Any:
    g, x = d.g, d.of((d.integer(1, 3), 6, d.integer(2, 9)), dtype)
    w, grad = d.of((6,), dtype), d.of(x.shape, dtype)
    layer = g.native_layer_norm(x)
    group = g.native_group_norm(x, 3, w)
    batch = g.batch_norm_training(x, w, w)
    return [
        *layer,
        *group,
        *batch,
        *g.layer_norm_backward(grad, x, *layer[1:]),
        *g.group_norm_backward(grad, x, *group[1:], 3, w),
        *g.batch_norm_backward(grad, x, *batch[1:], w),
    ]


@composition("float32", "float16")
def _attention_gradients(d: Draw, dtype: str) -> Any:
    g, length = d.g, d.integer(1, 17)
    q, grad = (d.of((2, 4, length, 8), dtype) for _ in range(2))
    k, v = (d.of((2, 2, length, 8), dtype) for _ in range(2))
    causal = d.chance()
    results = g.attention(q, k, v, causal=causal, return_logsumexp=True)
    return [*results, *g.attention_backward(grad, q, k, v, *results, causal=causal)]


@composition(*FLOATS)
def _masked_tokens(d: Draw, dtype: str) -> Any:
    rows, vocabulary = d.size(), d.choice((*SIZES, 64, 130))
    logits = d.of((rows, vocabulary), dtype)
    bits = d.rng.integers(0, 2**32, (rows, -(-vocabulary // 32)), dtype=np.uint32)
    return d.g.mask_tokens(logits, d.holding(bits))


@composition("float32", "bfloat16")
def _activation_gradients(d: Draw, dtype: str) -> Any:
    g, x = d.g, d.tensor(dtype, 1, 3, nonempty=True)
    grad = d.of(x.shape, dtype)
    return [
        g.gelu_backward(grad, x),
        g.gelu_backward(grad, x, True),
        g.silu_backward(grad, x),
        g.softmax_backward(grad, g.softmax(x)),
        g.log_softmax_backward(grad, g.log_softmax(x)),
    ]


@composition("float32", "float16")
def _losses(d: Draw, dtype: str) -> Any:
    g, x = d.g, d.of((d.integer(1, 9), 5, 3), dtype)
    y, target = d.of(x.shape, dtype), d.of((x.shape[0], 3), "int64", 0, 4)
    weight = d.of((5,), dtype, 0.5, 2)
    return [
        g.cross_entropy(x, target, weight, ignore_index=2, label_smoothing=0.1),
        g.cross_entropy(x, g.softmax(y, axis=1), reduction="sum"),
        g.smooth_l1_loss(x, y, "none", 0.5),
        g.huber_loss(x, y),
        g.binary_cross_entropy_with_logits(x, g.sigmoid(y)),
        g.binary_cross_entropy(g.sigmoid(x), g.sigmoid(y), reduction="sum"),
        g.kl_div(g.log_softmax(x), g.softmax(y), "batchmean"),
        g.cosine_similarity(x, y),
        g.embedding_backward(y, d.of(x.shape[:2], "int32", 0, 6), 7, 3),
    ]

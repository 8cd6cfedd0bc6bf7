"""JAX: compiled functions of weights and inputs, both on the device already."""

from __future__ import annotations

import math
from functools import partial, singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench.compare.networks import Layer, Network
from bench.compare.peers import Prepared
from bench.compare.workloads import (
    BATCH_NORM_EPS,
    LAYER_NORM_EPS,
    RMS_NORM_EPS,
    ConvSpec,
    Decode,
    Encoder,
    Mlp,
    Moe,
    ResNet50,
    Rowwise,
    Tiny,
    Workload,
)

Weights = dict[str, jax.Array]


def prepare(workload: Workload, threads: int) -> Prepared:
    """Prepare a workload. XLA uses all cores of the process, so ``threads`` has no effect."""
    weights, inputs = (
        {name: jax.device_put(array) for name, array in arrays.items()}
        for arrays in (workload.weights, workload.inputs)
    )
    results: list[Any] = []
    if isinstance(workload, Decode):
        call = _decoding(workload, weights, inputs, results)
    else:
        compiled = jax.jit(partial(build, workload)).lower(weights, **inputs).compile()

        def call() -> None:
            results[:] = [compiled(weights, **inputs).block_until_ready()]

    return Prepared(call, lambda: [np.asarray(result) for result in results])


@singledispatch
def build(workload: Workload, w: Weights, x: jax.Array) -> jax.Array:
    """The result of ``workload`` with weights ``w``."""
    raise NotImplementedError(workload)


@build.register
def _(workload: Tiny, w: Weights, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ w["w"] + w["b"], approximate=False)


@build.register
def _(workload: Mlp, w: Weights, x: jax.Array) -> jax.Array:
    for i in range(len(workload.layers)):
        x = _linear(w, str(i), jax.nn.relu(x) if i else x)
    return x


@build.register
def _(workload: Encoder, w: Weights, x: jax.Array) -> jax.Array:
    shape = (workload.batch, workload.length, workload.heads, workload.head_dim)
    for i in range(workload.layers):
        q, k, v = (_linear(w, f"{i}.{name}", x).reshape(shape) for name in "qkv")
        found = jax.nn.dot_product_attention(q, k, v).reshape(x.shape)
        x = _layer_norm(w, f"{i}.norm1", x + _linear(w, f"{i}.o", found))
        inner = jax.nn.gelu(_linear(w, f"{i}.up", x), approximate=False)
        x = _layer_norm(w, f"{i}.norm2", x + _linear(w, f"{i}.down", inner))
    return x


@build.register
def _(workload: ResNet50, w: Weights, x: jax.Array) -> jax.Array:
    def conv(spec: ConvSpec, x: jax.Array) -> jax.Array:
        pad, strides = spec.size // 2, (spec.stride, spec.stride)
        x = jax.lax.conv_general_dilated(x, w[f"{spec.name}.w"], strides, [(pad, pad)] * 2)
        mean, var, scale, shift = (
            w[f"{spec.name}.{part}"][:, None, None] for part in ("mean", "var", "g", "b")
        )
        factor = scale * jax.lax.rsqrt(var + BATCH_NORM_EPS)
        return x * factor + (shift - mean * factor)

    x = jax.nn.relu(conv(workload.stem, x))
    padding = ((0, 0), (0, 0), (1, 1), (1, 1))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)
    for block in workload.blocks:
        first, second, third = block.convs
        inner = jax.nn.relu(conv(second, jax.nn.relu(conv(first, x))))
        x = jax.nn.relu(conv(third, inner) + (conv(block.shortcut, x) if block.shortcut else x))
    return _linear(w, "fc", x.mean((2, 3)))


@build.register
def _(workload: Network, w: Weights, x: jax.Array) -> jax.Array:
    values = {"x": x}
    for layer in workload.layers:
        values[layer.name] = _layer(layer, w, *(values[name] for name in layer.inputs))
    return values[workload.layers[-1].name]


_FUNCTIONS = {
    "add": jnp.add,
    "multiply": jnp.multiply,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "hard_swish": jax.nn.hard_swish,
    "hard_sigmoid": jax.nn.hard_sigmoid,
}


def _layer(layer: Layer, w: Weights, x: jax.Array, *others: jax.Array) -> jax.Array:
    """The result of one layer of a convolution network."""
    weights = [f"{layer.name}.w", f"{layer.name}.b"]
    pads = [(p, p) for p in layer.padding]
    window = (1, 1, *layer.size), (1, 1, *layer.stride), ((0, 0), (0, 0), *pads)
    match layer.op:
        case "conv":
            kernel, shift = (w[name] for name in weights)
            x = jax.lax.conv_general_dilated(
                x, kernel, layer.stride, pads, feature_group_count=layer.groups
            )
            return x + shift[:, None, None]
        case "linear":
            return _linear(w, layer.name, x)
        case "affine":
            factor, shift = (w[name][:, None, None] for name in weights)
            return x * factor + shift
        case "max_pool":
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *window)
        case "avg_pool":
            return jax.lax.reduce_window(x, 0.0, jax.lax.add, *window) / math.prod(layer.size)
        case "global_pool":
            return x.mean((2, 3), keepdims=True)
        case "concat":
            return jnp.concatenate([x, *others], layer.axis)
        case "slice":
            return x[:, layer.start : layer.start + layer.shape[1]]
        case "upsample":
            return x.repeat(2, 2).repeat(2, 3)
        case "shuffle":
            _, channels, *sides = layer.shape
            apart = x.reshape(1, layer.groups, channels // layer.groups, *sides)
            return apart.swapaxes(1, 2).reshape(layer.shape)
        case "flatten" | "vector":
            return x.reshape(layer.shape)
        case "columns":
            return x.squeeze(2).swapaxes(1, 2)
        case "softmax":
            return jax.nn.softmax(x)
        case "expect":
            shares = jax.nn.softmax(x.reshape(1, layer.shape[1], -1, layer.shape[2]), 2)
            return (shares * jnp.arange(shares.shape[2])[:, None]).sum(2)
    return _FUNCTIONS[layer.op](x, *others)


@build.register
def _(workload: Rowwise, w: Weights, x: jax.Array) -> jax.Array:
    inner = jax.nn.gelu(x * w["a"] + w["b"], approximate=False)
    return _layer_norm(w, "norm", jax.nn.softmax(inner))


@build.register
def _(workload: Moe, w: Weights, x: jax.Array) -> jax.Array:
    logits, chosen = jax.lax.top_k(x @ w["router.w"], workload.top)
    shares = jax.nn.softmax(logits)
    spread = (jax.nn.one_hot(chosen, workload.experts) * shares[..., None]).sum(1)

    def expert(e: int) -> jax.Array:
        inner = jax.nn.silu(x @ w["gate.w"][e]) * (x @ w["up.w"][e])
        return spread[:, e, None] * (inner @ w["down.w"][e])

    # Each expert that is needed, for all tokens: XLA for CPUs takes longer for gathered matrices
    # and for ragged_dot.
    total = jnp.zeros_like(x)
    for e in range(workload.experts):
        total += jax.lax.cond((chosen == e).any(), partial(expert, e), lambda: jnp.zeros_like(x))
    return total


def _decoding(
    workload: Decode, weights: Weights, inputs: dict[str, jax.Array], results: list[Any]
) -> Any:
    """Donate the caches, so that XLA writes the new rows in place."""
    room = np.zeros((1, workload.kv_heads, 1, workload.head_dim), np.float32)
    caches = {n: jnp.asarray(np.concatenate([a, room], 2)) for n, a in workload.cache.items()}
    step = jax.jit(partial(_decode, workload), donate_argnums=1)

    def call() -> None:
        nonlocal caches
        logits, caches = step(weights, caches, **inputs)
        results[:] = [logits.block_until_ready()]

    return call


def _decode(
    workload: Decode, w: Weights, caches: Weights, x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, Weights]:
    last, dim = workload.context - 1, workload.head_dim
    groups = workload.heads // workload.kv_heads
    caches, x = dict(caches), x[0]

    def turned(projected: jax.Array) -> jax.Array:
        low, high = jnp.split(projected.reshape(-1, dim), 2, axis=1)
        return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)

    for i in range(workload.layers):
        normed = _rms_norm(x, w[f"{i}.norm1.g"])
        q = turned(normed @ w[f"{i}.q.w"]).reshape(workload.kv_heads, groups, dim)
        k, v = turned(normed @ w[f"{i}.k.w"]), normed @ w[f"{i}.v.w"]
        for name, new in ((f"k{i}", k), (f"v{i}", v)):
            caches[name] = caches[name].at[0, :, last].set(new.reshape(-1, dim))
        keys, values = caches[f"k{i}"][0], caches[f"v{i}"][0]
        scores = jax.nn.softmax(jnp.einsum("hgd,hnd->hgn", q, keys) / dim**0.5)
        x = x + jnp.einsum("hgn,hnd->hgd", scores, values).reshape(1, -1) @ w[f"{i}.o.w"]
        normed = _rms_norm(x, w[f"{i}.norm2.g"])
        inner = jax.nn.silu(normed @ w[f"{i}.gate.w"]) * (normed @ w[f"{i}.up.w"])
        x = x + inner @ w[f"{i}.down.w"]
    return _rms_norm(x, w["norm.g"]) @ w["head.w"], caches


def _linear(w: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ w[f"{name}.w"] + w[f"{name}.b"]


def _layer_norm(w: Weights, name: str, x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + LAYER_NORM_EPS) * w[f"{name}.g"] + w[f"{name}.b"]


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + RMS_NORM_EPS) * scale

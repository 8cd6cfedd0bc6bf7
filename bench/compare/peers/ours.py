"""Ostinato: graphs by hand, called through :meth:`~ostinato.CompiledGraph.bind`."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

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

import ostinato as ost

Get = Callable[[str], ost.Value]


def prepare(workload: Workload, threads: int, *, recover_stolen_cores: bool = False) -> Prepared:
    g = ost.Graph(type(workload).__name__)
    inputs = {name: g.input(name, array.shape) for name, array in workload.inputs.items()}
    weights: dict[str, ost.Value] = {}

    def weight(name: str) -> ost.Value:
        if name not in weights:
            array = workload.weights[name]
            weights[name] = g.param(name, array.shape, value=array)
        return weights[name]

    g.set_outputs([build(workload, g, weight, **inputs)])
    session = ost.Session("cpu", threads=threads, recover_stolen_cores=recover_stolen_cores)
    compiled = session.compile(g)
    if isinstance(workload, Decode):
        _fill_cache(workload, compiled)
    outputs = [np.empty(shape, np.float32) for shape in workload.output_shapes]
    return Prepared(compiled.bind(workload.inputs, outputs), lambda: outputs)


@singledispatch
def build(workload: Workload, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    """The result of ``workload`` in graph ``g``; ``w`` gives its params."""
    raise NotImplementedError(workload)


@build.register
def _(workload: Tiny, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    return g.gelu(g.matmul(x, w("w")) + w("b"))


@build.register
def _(workload: Mlp, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    for i in range(len(workload.layers)):
        x = _linear(g, w, str(i), g.relu(x) if i else x)
    return x


@build.register
def _(workload: Encoder, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    shape = (workload.batch, workload.length, workload.heads, workload.head_dim)

    def heads(name: str) -> ost.Value:
        return g.permute_dims(g.reshape(_linear(g, w, name, x), shape), (0, 2, 1, 3))

    for i in range(workload.layers):
        found = g.attention(heads(f"{i}.q"), heads(f"{i}.k"), heads(f"{i}.v"))
        found = g.reshape(g.permute_dims(found, (0, 2, 1, 3)), x.shape)
        x = _layer_norm(g, w, f"{i}.norm1", x + _linear(g, w, f"{i}.o", found))
        inner = g.gelu(_linear(g, w, f"{i}.up", x))
        x = _layer_norm(g, w, f"{i}.norm2", x + _linear(g, w, f"{i}.down", inner))
    return x


@build.register
def _(workload: ResNet50, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    def conv(spec: ConvSpec, x: ost.Value) -> ost.Value:
        x = g.conv(x, w(f"{spec.name}.w"), stride=spec.stride, padding=spec.size // 2)
        mean, var, scale, shift = (w(f"{spec.name}.{part}") for part in ("mean", "var", "g", "b"))
        return g.batch_norm(x, mean, var, scale, shift, eps=BATCH_NORM_EPS)

    x = g.max_pool(g.relu(conv(workload.stem, x)), 3, 2, 1)
    for block in workload.blocks:
        first, second, third = block.convs
        inner = conv(third, g.relu(conv(second, g.relu(conv(first, x)))))
        x = g.relu(inner + (conv(block.shortcut, x) if block.shortcut else x))
    return _linear(g, w, "fc", g.mean(x, axis=(2, 3)))


@build.register
def _(
    workload: Decode, g: ost.Graph, w: Get, x: ost.Value, cos: ost.Value, sin: ost.Value
) -> ost.Value:
    last = workload.context - 1

    def heads(name: str, count: int, x: ost.Value) -> ost.Value:
        shape = (1, count, 1, workload.head_dim)  # one token: no axes to swap
        return g.reshape(g.matmul(x, w(f"{name}.w")), shape)

    def cached(name: str, new: ost.Value) -> ost.Value:
        shape = (1, workload.kv_heads, workload.context, workload.head_dim)
        state = g.state(name, shape)
        whole = g.dynamic_update_slice(state, new, (0, 0, last, 0))
        g.assign(state, whole)
        return whole

    for i in range(workload.layers):
        normed = g.rms_norm(x, w(f"{i}.norm1.g"), RMS_NORM_EPS)
        q = g.rope(heads(f"{i}.q", workload.heads, normed), cos, sin)
        k = g.rope(heads(f"{i}.k", workload.kv_heads, normed), cos, sin)
        v = heads(f"{i}.v", workload.kv_heads, normed)
        found = g.attention(q, cached(f"k{i}", k), cached(f"v{i}", v))
        x = x + g.matmul(g.reshape(found, x.shape), w(f"{i}.o.w"))
        normed = g.rms_norm(x, w(f"{i}.norm2.g"), RMS_NORM_EPS)
        inner = g.silu(g.matmul(normed, w(f"{i}.gate.w"))) * g.matmul(normed, w(f"{i}.up.w"))
        x = x + g.matmul(inner, w(f"{i}.down.w"))
    logits = g.matmul(g.rms_norm(x, w("norm.g"), RMS_NORM_EPS), w("head.w"))
    return g.reshape(logits, (1, workload.vocabulary))


@build.register
def _(workload: Rowwise, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    return _layer_norm(g, w, "norm", g.softmax(g.gelu(x * w("a") + w("b"))))


@build.register
def _(workload: Moe, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    matrices = (w(f"{name}.w") for name in ("router", "gate", "up", "down"))
    return g.moe(x, *matrices, k=workload.top, route="topk_softmax")


@build.register
def _(workload: Network, g: ost.Graph, w: Get, x: ost.Value) -> ost.Value:
    values = {"x": x}
    for layer in workload.layers:
        operands = [values[name] for name in layer.inputs]
        values[layer.name] = _layer(layer, g, w, *operands)
    return values[workload.layers[-1].name]


def _layer(layer: Layer, g: ost.Graph, w: Get, x: ost.Value, *others: ost.Value) -> ost.Value:
    """The result of one layer of a convolution network."""
    window = {"stride": layer.stride, "padding": layer.padding}
    weights = [f"{layer.name}.w", f"{layer.name}.b"]
    match layer.op:
        case "conv":
            return g.conv(x, *map(w, weights), groups=layer.groups, **window)
        case "linear":
            return _linear(g, w, layer.name, x)
        case "affine":
            factor, shift = (g.reshape(w(name), (-1, 1, 1)) for name in weights)
            return x * factor + shift
        case "max_pool" | "avg_pool":
            return getattr(g, layer.op)(x, layer.size, **window)
        case "global_pool":
            return g.global_avg_pool(x)
        case "concat":
            return g.concat([x, *others], layer.axis)
        case "slice":
            end = layer.start + layer.shape[1]
            return g.slice(x, (layer.start,), (end,), axes=(1,))
        case "upsample":
            return g.repeat(g.repeat(x, 2, 2), 2, 3)
        case "shuffle":
            _, channels, *sides = layer.shape
            apart = g.reshape(x, (1, layer.groups, channels // layer.groups, *sides))
            return g.reshape(g.swapaxes(apart, 1, 2), layer.shape)
        case "flatten" | "vector":
            return g.reshape(x, layer.shape)
        case "columns":
            return g.swapaxes(g.squeeze(x, 2), 1, 2)
        case "expect":
            _, groups, positions = layer.shape
            shares = g.softmax(g.reshape(x, (1, groups, -1, positions)), 2)
            bins = g.arange(shares.shape[2], dtype="float32")
            return g.sum(shares * g.reshape(bins, (-1, 1)), axis=2)
    return getattr(g, layer.op)(x, *others)


def _linear(g: ost.Graph, w: Get, name: str, x: ost.Value) -> ost.Value:
    return g.matmul(x, w(f"{name}.w")) + w(f"{name}.b")


def _layer_norm(g: ost.Graph, w: Get, name: str, x: ost.Value) -> ost.Value:
    return g.layer_norm(x, w(f"{name}.g"), w(f"{name}.b"), LAYER_NORM_EPS)


def _fill_cache(workload: Decode, compiled: ost.CompiledGraph) -> None:
    room = np.zeros((1, workload.kv_heads, 1, workload.head_dim), np.float32)
    for name, past in workload.cache.items():
        compiled.bind_handle(name, np.concatenate([past, room], axis=2))

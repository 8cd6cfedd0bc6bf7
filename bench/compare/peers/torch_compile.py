"""PyTorch: ``torch.compile`` with frozen weights, which Inductor prepacks."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch
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
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.nn import functional as F  # noqa: N812


class Model(nn.Module):
    """A workload with its weights as parameters; matrices become ``[..., out, in]``."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.run = run.dispatch(type(workload))
        for name, array in workload.weights.items():
            tensor = torch.from_numpy(array)
            if name.endswith("w") and tensor.ndim in (2, 3):
                tensor = tensor.mT.contiguous()
            elif tensor.ndim == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            self.register_parameter(_legal(name), nn.Parameter(tensor, requires_grad=False))
        if isinstance(workload, Decode):
            room = np.zeros((1, workload.kv_heads, 1, workload.head_dim), np.float32)
            for name, past in workload.cache.items():
                self.register_buffer(name, torch.from_numpy(np.concatenate([past, room], 2)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self.workload, self, *inputs)

    def __getitem__(self, name: str) -> Tensor:
        return getattr(self, _legal(name))

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[f"{name}.w"], self[f"{name}.b"])

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self[f"{name}.g"], self[f"{name}.b"], LAYER_NORM_EPS)

    def rms_norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self[f"{name}.g"], RMS_NORM_EPS)


def _legal(name: str) -> str:
    return "_" + name.replace(".", "_") if "." in name else name


def prepare(workload: Workload, threads: int) -> Prepared:
    torch.set_num_threads(threads)
    inductor.freezing = True
    inputs = [torch.from_numpy(array) for array in workload.inputs.values()]
    compiled = torch.compile(Model(workload).eval())
    results: list[Tensor] = []

    # Entered once and for all: frozen weights need it, and entering would be part of each call.
    torch.inference_mode().__enter__()

    def call() -> None:
        results[:] = [compiled(*inputs)]

    return Prepared(call, lambda: [result.numpy() for result in results])


@singledispatch
def run(workload: Workload, m: Model, x: Tensor) -> Tensor:
    """The result of ``workload`` with the weights of ``m``."""
    raise NotImplementedError(workload)


@run.register
def _(workload: Tiny, m: Model, x: Tensor) -> Tensor:
    return F.gelu(F.linear(x, m["w"], m["b"]))


@run.register
def _(workload: Mlp, m: Model, x: Tensor) -> Tensor:
    for i in range(len(workload.layers)):
        x = m.linear(str(i), F.relu(x) if i else x)
    return x


@run.register
def _(workload: Encoder, m: Model, x: Tensor) -> Tensor:
    shape = (workload.batch, workload.length, workload.heads, workload.head_dim)
    for i in range(workload.layers):
        q, k, v = (m.linear(f"{i}.{name}", x).view(shape).transpose(1, 2) for name in "qkv")
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = m.layer_norm(f"{i}.norm1", x + m.linear(f"{i}.o", found))
        inner = F.gelu(m.linear(f"{i}.up", x))
        x = m.layer_norm(f"{i}.norm2", x + m.linear(f"{i}.down", inner))
    return x


@run.register
def _(workload: ResNet50, m: Model, x: Tensor) -> Tensor:
    def conv(spec: ConvSpec, x: Tensor) -> Tensor:
        x = F.conv2d(x, m[f"{spec.name}.w"], stride=spec.stride, padding=spec.size // 2)
        mean, var, scale, shift = (m[f"{spec.name}.{part}"] for part in ("mean", "var", "g", "b"))
        return F.batch_norm(x, mean, var, scale, shift, eps=BATCH_NORM_EPS)

    x = F.max_pool2d(F.relu(conv(workload.stem, x)), 3, 2, 1)
    for block in workload.blocks:
        first, second, third = block.convs
        inner = conv(third, F.relu(conv(second, F.relu(conv(first, x)))))
        x = F.relu(inner + (conv(block.shortcut, x) if block.shortcut else x))
    return m.linear("fc", x.mean((2, 3)))


@run.register
def _(workload: Network, m: Model, x: Tensor) -> Tensor:
    values = {"x": x}
    for layer in workload.layers:
        values[layer.name] = _layer(layer, m, *(values[name] for name in layer.inputs))
    return values[workload.layers[-1].name]


_FUNCTIONS = {
    "add": torch.add,
    "multiply": torch.mul,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "hard_swish": F.hardswish,
    "hard_sigmoid": F.hardsigmoid,
}


def _layer(layer: Layer, m: Model, x: Tensor, *others: Tensor) -> Tensor:
    """The result of one layer of a convolution network."""
    weights = [f"{layer.name}.w", f"{layer.name}.b"]
    match layer.op:
        case "conv":
            w, b = (m[name] for name in weights)
            return F.conv2d(x, w, b, layer.stride, layer.padding, groups=layer.groups)
        case "linear":
            return m.linear(layer.name, x)
        case "affine":
            factor, shift = (m[name][:, None, None] for name in weights)
            return x * factor + shift
        case "max_pool":
            return F.max_pool2d(x, layer.size, layer.stride, layer.padding)
        case "avg_pool":
            return F.avg_pool2d(x, layer.size, layer.stride, layer.padding)
        case "global_pool":
            return F.adaptive_avg_pool2d(x, 1)
        case "concat":
            return torch.cat([x, *others], layer.axis)
        case "slice":
            return x[:, layer.start : layer.start + layer.shape[1]]
        case "upsample":
            return F.interpolate(x, scale_factor=2.0, mode="nearest")
        case "shuffle":
            apart = x.unflatten(1, (layer.groups, -1))
            return apart.transpose(1, 2).flatten(1, 2)
        case "flatten" | "vector":
            return x.reshape(layer.shape)
        case "columns":
            return x.squeeze(2).transpose(1, 2)
        case "softmax":
            return F.softmax(x, -1)
        case "expect":
            shares = F.softmax(x.unflatten(1, (layer.shape[1], -1)), 2)
            bins = torch.arange(shares.shape[2], dtype=torch.float32)
            return (shares * bins[:, None]).sum(2)
    return _FUNCTIONS[layer.op](x, *others)


@run.register
def _(workload: Decode, m: Model, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    last, dim = workload.context - 1, workload.head_dim

    def turned(heads: Tensor) -> Tensor:
        low, high = heads.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def heads(name: str, x: Tensor) -> Tensor:
        return F.linear(x, m[f"{name}.w"]).view(1, 1, -1, dim).transpose(1, 2)

    def cached(name: str, new: Tensor) -> Tensor:
        cache = m[name]
        cache[:, :, last : last + 1] = new
        return cache

    for i in range(workload.layers):
        normed = m.rms_norm(f"{i}.norm1", x)
        q = turned(heads(f"{i}.q", normed))
        k = cached(f"k{i}", turned(heads(f"{i}.k", normed)))
        v = cached(f"v{i}", heads(f"{i}.v", normed))
        found = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + F.linear(found.transpose(1, 2).reshape(x.shape), m[f"{i}.o.w"])
        normed = m.rms_norm(f"{i}.norm2", x)
        inner = F.silu(F.linear(normed, m[f"{i}.gate.w"])) * F.linear(normed, m[f"{i}.up.w"])
        x = x + F.linear(inner, m[f"{i}.down.w"])
    return F.linear(m.rms_norm("norm", x), m["head.w"])[0]


@run.register
def _(workload: Rowwise, m: Model, x: Tensor) -> Tensor:
    return m.layer_norm("norm", F.softmax(F.gelu(x * m["a"] + m["b"]), -1))


@run.register
def _(workload: Moe, m: Model, x: Tensor) -> Tensor:
    logits, chosen = F.linear(x, m["router.w"]).topk(workload.top)
    shares = F.softmax(logits, -1)
    if workload.tokens == 1:  # products and sums, so that the gathers fuse with them
        gate, up, down = (m[f"{name}.w"][chosen[0]] for name in ("gate", "up", "down"))
        inner = F.silu((gate * x).sum(-1)) * (up * x).sum(-1)
        return shares @ (down * inner[:, None]).sum(-1)
    # Shapes depend on the data: the compiled graph breaks there, and is still quicker than one
    # that runs all experts for all tokens.
    total = torch.zeros_like(x)
    for e in range(workload.experts):
        rows, slots = torch.where(chosen == e)
        gate, up, down = (m[f"{name}.w"][e] for name in ("gate", "up", "down"))
        taken = x[rows]
        found = F.linear(F.silu(F.linear(taken, gate)) * F.linear(taken, up), down)
        total = total.index_add(0, rows, found * shares[rows, slots, None])
    return total

"""The workloads as ONNX models, for the runtimes that read those.

Standard operators of opset 20, but for two places where ONNX Runtime has operators of its own and
``contrib`` asks for them: grouped attention on a cache in place, and mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from bench.compare.networks import Layer, Network
from bench.compare.workloads import (
    BATCH_NORM_EPS,
    LAYER_NORM_EPS,
    RMS_NORM_EPS,
    Array,
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
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"


class Model:
    """An ONNX graph under construction. Values are names."""

    def __init__(self, workload: Workload, *, contrib: bool = False) -> None:
        self.workload, self.contrib = workload, contrib
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}
        self.inputs = {name: array.shape for name, array in workload.inputs.items()}
        self.outputs: dict[str, Sequence[int]] = {}
        result = build(workload, self, *self.inputs)
        self.outputs = {result: workload.output_shapes[0], **self.outputs}

    def node(self, op: str, *operands: str, count: int = 1, domain: str = "", **attrs: Any) -> Any:
        """Append a node; the name of its result, or names if there are several."""
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op, operands, names, domain=domain, **attrs))
        return names[0] if count == 1 else names

    def weight(self, name: str) -> str:
        return self.tensor(name, self.workload.weights[name])

    def tensor(self, name: str, array: Array) -> str:
        if name not in self.tensors:
            self.tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def ints(self, *values: int) -> str:
        return self.tensor(f"ints_{values}", np.array(values, np.int64))

    def full(self, size: int, value: float) -> str:
        return self.tensor(f"full_{size}_{value}", np.full(size, value, np.float32))

    def number(self, value: float) -> str:
        return self.tensor(f"number_{value}", np.array(value, np.float32))

    def reshape(self, x: str, *shape: int) -> str:
        return self.node("Reshape", x, self.ints(*shape))

    def linear(self, name: str, x: str) -> str:
        product = self.node("MatMul", x, self.weight(f"{name}.w"))
        return self.node("Add", product, self.weight(f"{name}.b"))

    def layer_norm(self, name: str, x: str) -> str:
        affine = self.weight(f"{name}.g"), self.weight(f"{name}.b")
        return self.node("LayerNormalization", x, *affine, axis=-1, epsilon=LAYER_NORM_EPS)

    def rms_norm(self, name: str, x: str) -> str:
        square = self.node("Pow", x, self.number(2.0))
        mean = self.node("ReduceMean", square, self.ints(-1), keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.number(RMS_NORM_EPS)))
        return self.node("Mul", self.node("Div", x, root), self.weight(f"{name}.g"))

    def silu(self, x: str) -> str:
        return self.node("Mul", x, self.node("Sigmoid", x))

    def serialized(self) -> bytes:
        def values(shapes: dict[str, Any]) -> list[Any]:
            types = {"seqlens_k": TensorProto.INT32, "total": TensorProto.INT32}
            return [
                helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
                for name, shape in shapes.items()
            ]

        graph = helper.make_graph(
            self.nodes,
            type(self.workload).__name__,
            values(self.inputs),
            values(self.outputs),
            list(self.tensors.values()),
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return bytes(model.SerializeToString())


@singledispatch
def build(workload: Workload, m: Model, *inputs: str) -> str:
    """Build ``workload``; returns its first output, further ones are in ``m.outputs``."""
    raise NotImplementedError(workload)


@build.register
def _(workload: Tiny, m: Model, x: str) -> str:
    return m.node("Gelu", m.node("Add", m.node("MatMul", x, m.weight("w")), m.weight("b")))


@build.register
def _(workload: Mlp, m: Model, x: str) -> str:
    for i in range(len(workload.layers)):
        x = m.node("Relu", x) if i else x
        x = m.node("Gemm", x, m.weight(f"{i}.w"), m.weight(f"{i}.b"))
    return x


@build.register
def _(workload: Encoder, m: Model, x: str) -> str:
    batch, length, dim = workload.batch, workload.length, workload.head_dim

    def heads(name: str, perm: Sequence[int]) -> str:
        split = m.reshape(m.linear(name, x), batch, length, workload.heads, dim)
        return m.node("Transpose", split, perm=perm)

    for i in range(workload.layers):
        q, k, v = (
            heads(f"{i}.{name}", perm)
            for name, perm in [("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))]
        )
        scores = m.node("Div", m.node("MatMul", q, k), m.number(dim**0.5))
        found = m.node("MatMul", m.node("Softmax", scores, axis=-1), v)
        found = m.node("Transpose", found, perm=(0, 2, 1, 3))
        found = m.linear(f"{i}.o", m.reshape(found, batch, length, workload.hidden))
        x = m.layer_norm(f"{i}.norm1", m.node("Add", found, x))
        inner = m.node("Gelu", m.linear(f"{i}.up", x))
        x = m.layer_norm(f"{i}.norm2", m.node("Add", m.linear(f"{i}.down", inner), x))
    return x


@build.register
def _(workload: ResNet50, m: Model, x: str) -> str:
    def conv(spec: ConvSpec, x: str) -> str:
        pad, stride = spec.size // 2, spec.stride
        x = m.node("Conv", x, m.weight(f"{spec.name}.w"), pads=[pad] * 4, strides=[stride, stride])
        affine = (m.weight(f"{spec.name}.{part}") for part in ("g", "b", "mean", "var"))
        return m.node("BatchNormalization", x, *affine, epsilon=BATCH_NORM_EPS)

    x = m.node("Relu", conv(workload.stem, x))
    x = m.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for block in workload.blocks:
        first, second, third = block.convs
        inner = m.node("Relu", conv(second, m.node("Relu", conv(first, x))))
        shortcut = conv(block.shortcut, x) if block.shortcut else x
        x = m.node("Relu", m.node("Add", conv(third, inner), shortcut))
    pooled = m.node("Flatten", m.node("GlobalAveragePool", x))
    return m.node("Gemm", pooled, m.weight("fc.w"), m.weight("fc.b"))


@build.register
def _(workload: Network, m: Model, x: str) -> str:
    values = {"x": x}
    for layer in workload.layers:
        values[layer.name] = _layer(layer, m, *(values[name] for name in layer.inputs))
    return values[workload.layers[-1].name]


_FUNCTIONS = {
    "add": "Add",
    "multiply": "Mul",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "hard_swish": "HardSwish",
    "softmax": "Softmax",
    "global_pool": "GlobalAveragePool",
    "vector": "Flatten",
}


def _layer(layer: Layer, m: Model, x: str, *others: str) -> str:
    """The result of one layer of a convolution network, as exporters of PyTorch write it."""
    pads = {"strides": layer.stride, "pads": layer.padding * 2}
    result: str
    match layer.op:
        case "conv":
            weights = (m.weight(f"{layer.name}.{part}") for part in "wb")
            result = m.node("Conv", x, *weights, group=layer.groups, **pads)
        case "linear":
            result = m.linear(layer.name, x)
        case "affine":
            mean, var = (m.full(layer.shape[1], number) for number in (0.0, 1.0))
            weights = (m.weight(f"{layer.name}.{part}") for part in "wb")
            result = m.node("BatchNormalization", x, *weights, mean, var, epsilon=0.0)
        case "max_pool":
            result = m.node("MaxPool", x, kernel_shape=layer.size, **pads)
        case "avg_pool":
            result = m.node("AveragePool", x, kernel_shape=layer.size, count_include_pad=1, **pads)
        case "concat":
            result = m.node("Concat", x, *others, axis=layer.axis)
        case "slice":
            start, end = layer.start, layer.start + layer.shape[1]
            result = m.node("Slice", x, m.ints(start), m.ints(end), m.ints(1))
        case "upsample":
            scales = m.tensor("scales", np.array([1, 1, 2, 2], np.float32))
            modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
            result = m.node("Resize", x, "", scales, nearest_mode="floor", **modes)
        case "shuffle":
            _, channels, *sides = layer.shape
            apart = m.reshape(x, 1, layer.groups, channels // layer.groups, *sides)
            result = m.reshape(m.node("Transpose", apart, perm=(0, 2, 1, 3, 4)), *layer.shape)
        case "flatten":
            result = m.reshape(x, *layer.shape)
        case "columns":
            result = m.node("Transpose", m.node("Squeeze", x, m.ints(2)), perm=(0, 2, 1))
        case "expect":
            result = _expected(layer, m, x)
        case "silu":
            result = m.silu(x)
        case "relu6":
            result = m.node("Clip", x, m.number(0.0), m.number(6.0))
        case "hard_sigmoid":
            result = m.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)
        case _:
            result = m.node(_FUNCTIONS[layer.op], x, *others)
    return result


def _expected(layer: Layer, m: Model, x: str) -> str:
    """A softmax over the bins of each group, and a convolution with their numbers."""
    _, groups, positions = layer.shape
    apart = m.node("Transpose", m.reshape(x, 1, groups, -1, positions), perm=(0, 2, 1, 3))
    bins = m.tensor("bins", np.arange(16, dtype=np.float32).reshape(1, -1, 1, 1))
    mean = m.node("Conv", m.node("Softmax", apart, axis=1), bins)
    return m.reshape(mean, *layer.shape)


@build.register
def _(workload: Decode, m: Model, x: str, cos: str, sin: str) -> str:
    hidden, dim = workload.hidden, workload.head_dim
    attend = _contrib_attention if m.contrib else _attention

    def matmul(x: str, name: str) -> str:
        return m.node("MatMul", x, m.weight(f"{name}.w"))

    def turned(name: str, x: str, count: int) -> str:
        heads = m.reshape(matmul(x, name), 1, count, 1, dim)
        low, high = m.node("Split", heads, axis=-1, num_outputs=2, count=2)
        mul = [m.node("Mul", half, angle) for half in (low, high) for angle in (cos, sin)]
        return m.node(
            "Concat", m.node("Sub", mul[0], mul[3]), m.node("Add", mul[2], mul[1]), axis=-1
        )

    for i in range(workload.layers):
        normed = m.rms_norm(f"{i}.norm1", x)
        q = turned(f"{i}.q", normed, workload.heads)
        k = turned(f"{i}.k", normed, workload.kv_heads)
        v = m.reshape(matmul(normed, f"{i}.v"), 1, workload.kv_heads, 1, dim)
        found = m.reshape(attend(workload, m, i, q, k, v), 1, 1, hidden)
        x = m.node("Add", x, matmul(found, f"{i}.o"))
        normed = m.rms_norm(f"{i}.norm2", x)
        inner = m.node("Mul", m.silu(matmul(normed, f"{i}.gate")), matmul(normed, f"{i}.up"))
        x = m.node("Add", x, matmul(inner, f"{i}.down"))
    return m.reshape(matmul(m.rms_norm("norm", x), "head"), 1, workload.vocabulary)


def _attention(workload: Decode, m: Model, layer: int, q: str, k: str, v: str) -> str:
    """Attention with caches as inputs without the new token and as outputs with it."""
    heads, groups = workload.kv_heads, workload.heads // workload.kv_heads
    whole = []
    for name, new in ((f"k{layer}", k), (f"v{layer}", v)):
        m.inputs[name] = workload.cache[name].shape
        joined = m.node("Concat", name, new, axis=2)
        m.outputs[joined] = (1, heads, workload.context, workload.head_dim)
        whole.append(joined)
    q = m.reshape(q, 1, heads, groups, workload.head_dim)
    keys = m.node("Transpose", whole[0], perm=(0, 1, 3, 2))
    scores = m.node("Div", m.node("MatMul", q, keys), m.number(workload.head_dim**0.5))
    return m.node("MatMul", m.node("Softmax", scores, axis=-1), whole[1])


def _contrib_attention(workload: Decode, m: Model, layer: int, q: str, k: str, v: str) -> str:
    """Attention with full-length caches as inputs and outputs, to be bound to the same memory."""
    shape = (1, workload.kv_heads, workload.context, workload.head_dim)
    caches = [f"k{layer}", f"v{layer}"]
    m.inputs |= {**dict.fromkeys(caches, shape), "seqlens_k": (1,), "total": ()}
    flat = [m.reshape(value, 1, 1, -1) for value in (q, k, v)]
    found, *present = m.node(
        "GroupQueryAttention",
        *(*flat, *caches, "seqlens_k", "total"),
        domain=CONTRIB,
        count=3,
        num_heads=workload.heads,
        kv_num_heads=workload.kv_heads,
    )
    m.outputs |= dict.fromkeys(present, shape)
    return str(found)


@build.register
def _(workload: Rowwise, m: Model, x: str) -> str:
    inner = m.node("Gelu", m.node("Add", m.node("Mul", x, m.weight("a")), m.weight("b")))
    return m.layer_norm("norm", m.node("Softmax", inner, axis=-1))


@build.register
def _(workload: Moe, m: Model, x: str) -> str:
    logits = m.node("MatMul", x, m.weight("router.w"))
    if m.contrib:
        return _contrib_moe(workload, m, x, logits)
    values, chosen = m.node("TopK", logits, m.ints(workload.top), axis=-1, count=2)
    shares = m.node("Softmax", values, axis=-1)
    return _experts_in_turn(workload, m, x, chosen, shares)


def _contrib_moe(workload: Moe, m: Model, x: str, logits: str) -> str:
    gate, up, down = (workload.weights[f"{n}.w"].transpose(0, 2, 1) for n in ("gate", "up", "down"))
    pairs = np.stack([gate, up], axis=2).reshape(workload.experts, -1, workload.hidden)
    operands = [x, logits, m.tensor("pairs", pairs), "", m.tensor("down", down)]
    return str(
        m.node(
            "MoE",
            *operands,
            domain=CONTRIB,
            k=workload.top,
            activation_type="swiglu",
            swiglu_fusion=1,
            activation_alpha=1.0,
            activation_beta=0.0,
            normalize_routing_weights=1,
        )
    )


def _experts_in_turn(workload: Moe, m: Model, x: str, chosen: str, shares: str) -> str:
    """Experts one after another, each with its tokens, maybe none, as Transformers exports them."""
    total = m.tensor("zeros", np.zeros((workload.tokens, workload.hidden), np.float32))
    for e in range(workload.experts):
        hits = m.node("NonZero", m.node("Equal", chosen, m.ints(e)))
        rows, _ = m.node("Split", hits, axis=0, num_outputs=2, count=2)
        rows = m.reshape(rows, -1)
        share = m.node("GatherND", shares, m.node("Transpose", hits, perm=(1, 0)))
        gate, up, down = (
            m.tensor(f"{name}.{e}", workload.weights[f"{name}.w"][e])
            for name in ("gate", "up", "down")
        )
        taken = m.node("Gather", x, rows, axis=0)
        inner = m.node("Mul", m.silu(m.node("MatMul", taken, gate)), m.node("MatMul", taken, up))
        found = m.node("Mul", m.node("MatMul", inner, down), m.reshape(share, -1, 1))
        where = m.node("Unsqueeze", rows, m.ints(1))
        total = m.node("ScatterND", total, where, found, reduction="add")
    return total

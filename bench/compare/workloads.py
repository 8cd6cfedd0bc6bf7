"""The workloads by name, and those that are not lists of layers: models by their sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from bench.compare.networks import NETWORKS
from bench.compare.workload import (
    Array,
    Shape,
    Weight,
    Workload,
    bias,
    gain,
    kernel,
    matrix,
    uniform,
)

LAYER_NORM_EPS = 1e-5
RMS_NORM_EPS = 1e-6
BATCH_NORM_EPS = 1e-5


class Tiny(Workload):
    """``gelu(x[2,4] · w[4,3] + b)``: what a call costs."""

    output_shapes = ((2, 3),)
    flops = 2 * 2 * 4 * 3
    tolerance = 1e-5

    def weight_specs(self) -> dict[str, Weight]:
        return {"w": matrix(4, 3), "b": bias(3)}

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (2, 4)}


class Mlp(Workload):
    """Three linear layers with relu between them, from an image of 28x28 to ten classes."""

    widths = (784, 512, 512, 10)
    tolerance = 1e-4

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.output_shapes = ((batch, self.widths[-1]),)
        self.flops = 2 * batch * sum(k * n for k, n in self.layers)

    @property
    def layers(self) -> list[tuple[int, int]]:
        return list(zip(self.widths, self.widths[1:], strict=False))

    def weight_specs(self) -> dict[str, Weight]:
        specs = {}
        for i, (k, n) in enumerate(self.layers):
            specs[f"{i}.w"] = matrix(k, n, gain=math.sqrt(2))
            specs[f"{i}.b"] = bias(n)
        return specs

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (self.batch, self.widths[0])}


class Encoder(Workload):
    """A BERT encoder, from embedded tokens to hidden states: norms after the residual additions."""

    def __init__(self, layers: int, hidden: int, heads: int, ff: int, batch: int, length: int):
        self.layers, self.hidden, self.heads, self.ff = layers, hidden, heads, ff
        self.batch, self.length = batch, length
        self.head_dim = hidden // heads
        self.output_shapes = ((batch, length, hidden),)
        products = 4 * hidden * hidden + 2 * hidden * ff + 2 * length * hidden
        self.flops = 2 * layers * batch * length * products

    def weight_specs(self) -> dict[str, Weight]:
        specs = {}
        for i in range(self.layers):
            for name, k, n in [
                *((name, self.hidden, self.hidden) for name in "qkvo"),
                ("up", self.hidden, self.ff),
                ("down", self.ff, self.hidden),
            ]:
                specs[f"{i}.{name}.w"], specs[f"{i}.{name}.b"] = matrix(k, n), bias(n)
            for norm in ("norm1", "norm2"):
                specs[f"{i}.{norm}.g"] = gain(self.hidden)
                specs[f"{i}.{norm}.b"] = bias(self.hidden)
        return specs

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (self.batch, self.length, self.hidden)}


@dataclass(frozen=True)
class ConvSpec:
    """A convolution with batch norm: ``size/2`` of padding on every side."""

    name: str
    into: int
    out: int
    size: int
    stride: int = 1


@dataclass(frozen=True)
class Bottleneck:
    """A residual block of ResNet-50; ``shortcut`` is ``None`` where the input is added as it is."""

    convs: tuple[ConvSpec, ConvSpec, ConvSpec]
    shortcut: ConvSpec | None


class ResNet50(Workload):
    """ResNet-50 (version 1.5: strides in the 3x3 convolutions), one image."""

    output_shapes = ((1, 1000),)
    stem = ConvSpec("stem", 3, 64, 7, 2)

    @cached_property
    def blocks(self) -> list[Bottleneck]:
        blocks, channels = [], self.stem.out
        for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                name, out = f"{stage}.{i}", 4 * width
                convs = (
                    ConvSpec(f"{name}.1", channels, width, 1),
                    ConvSpec(f"{name}.2", width, width, 3, stride),
                    ConvSpec(f"{name}.3", width, out, 1),
                )
                fits = channels == out
                shortcut = None if fits else ConvSpec(f"{name}.s", channels, out, 1, stride)
                blocks.append(Bottleneck(convs, shortcut))
                channels = out
        return blocks

    @cached_property
    def convs(self) -> list[ConvSpec]:
        found = [self.stem]
        for block in self.blocks:
            found += [*block.convs, *([block.shortcut] if block.shortcut else [])]
        return found

    def weight_specs(self) -> dict[str, Weight]:
        specs = {}
        for conv in self.convs:
            specs[f"{conv.name}.w"] = kernel(conv.out, conv.into, conv.size)
            # Small gains before the additions keep the sums of 16 blocks in bounds.
            specs[f"{conv.name}.g"] = gain(conv.out, 0.3 if conv.name.endswith(".3") else 1.0)
            specs[f"{conv.name}.b"] = specs[f"{conv.name}.mean"] = bias(conv.out)
            specs[f"{conv.name}.var"] = gain(conv.out)
        specs["fc.w"], specs["fc.b"] = matrix(2048, 1000), bias(1000)
        return specs

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (1, 3, 224, 224)}

    @cached_property
    def flops(self) -> int:  # type: ignore[override]
        def per_pixel(conv: ConvSpec) -> int:
            return 2 * conv.out * conv.into * conv.size * conv.size

        side, total = 112, 112 * 112 * per_pixel(self.stem)
        side //= 2
        for block in self.blocks:
            total += side * side * per_pixel(block.convs[0])
            side //= block.convs[1].stride
            rest = [*block.convs[1:], *([block.shortcut] if block.shortcut else [])]
            total += side * side * sum(map(per_pixel, rest))
        return total + 2 * 2048 * 1000


class Decode(Workload):
    """One token through a Llama-like model: from its embedding to logits, with a KV cache.

    ``context - 1`` positions are cached; the new token is the last. Its rotary angles are inputs.
    Every runtime keeps the cache the way that suits it, so ``k<i>`` and ``v<i>`` are apart from
    the inputs; the results compared are the logits.
    """

    layers, hidden, heads, kv_heads, ff, vocabulary = 12, 1024, 16, 8, 2816, 32000
    context = 256
    head_dim = hidden // heads
    output_shapes = ((1, vocabulary),)

    def weight_specs(self) -> dict[str, Weight]:
        kv, specs = self.kv_heads * self.head_dim, {}
        for i in range(self.layers):
            for name, k, n in [
                ("q", self.hidden, self.hidden),
                ("k", self.hidden, kv),
                ("v", self.hidden, kv),
                ("o", self.hidden, self.hidden),
                ("gate", self.hidden, self.ff),
                ("up", self.hidden, self.ff),
                ("down", self.ff, self.hidden),
            ]:
                specs[f"{i}.{name}.w"] = matrix(k, n)
            specs[f"{i}.norm1.g"] = specs[f"{i}.norm2.g"] = gain(self.hidden)
        return specs | {"norm.g": gain(self.hidden), "head.w": matrix(self.hidden, self.vocabulary)}

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (1, 1, self.hidden)}

    @cached_property
    def inputs(self) -> dict[str, Array]:
        pairs = np.arange(self.head_dim // 2)
        angles = (self.context - 1) * 10000.0 ** (-2 * pairs / self.head_dim)
        turned = {"cos": np.cos(angles), "sin": np.sin(angles)}
        return super().inputs | {n: v.astype(np.float32)[None] for n, v in turned.items()}

    @cached_property
    def cache(self) -> Mapping[str, Array]:
        """``[1, kv_heads, context - 1, head_dim]`` for ``k<i>`` and ``v<i>``, in that order."""
        shape = (1, self.kv_heads, self.context - 1, self.head_dim)
        names = [f"{kind}{i}" for i in range(self.layers) for kind in "kv"]
        return {name: uniform(name, shape) for name in names}

    @property
    def memory_read(self) -> int:
        cache = 2 * self.layers * self.kv_heads * self.context * self.head_dim
        return super().memory_read + 4 * cache

    @cached_property
    def flops(self) -> int:  # type: ignore[override]
        matrices = [spec.shape for spec in self.weight_specs().values() if len(spec.shape) == 2]
        attention = 2 * self.layers * self.heads * self.context * self.head_dim
        return 2 * (sum(map(math.prod, matrices)) + attention)


class Rowwise(Workload):
    """``layer_norm(softmax(gelu(x·a + b)))`` along the rows of a matrix too large for caches."""

    rows = columns = 4096
    output_shapes = ((rows, columns),)
    flops = 0

    def weight_specs(self) -> dict[str, Weight]:
        names = {"a": gain(self.columns), "b": bias(self.columns)}
        return names | {"norm.g": gain(self.columns), "norm.b": bias(self.columns)}

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (self.rows, self.columns)}


class Moe(Workload):
    """A layer of gated experts: each token goes to the two with the largest router logits.

    Their outputs are weighted with the softmax of those two logits.
    """

    hidden, ff, experts, top = 1024, 3584, 8, 2

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.output_shapes = ((tokens, self.hidden),)
        expert = 3 * self.hidden * self.ff
        self.flops = 2 * tokens * (self.top * expert + self.hidden * self.experts)

    def weight_specs(self) -> dict[str, Weight]:
        return {
            "router.w": matrix(self.hidden, self.experts),
            "gate.w": matrix(self.experts, self.hidden, self.ff),
            "up.w": matrix(self.experts, self.hidden, self.ff),
            "down.w": matrix(self.experts, self.ff, self.hidden),
        }

    def input_shapes(self) -> dict[str, Shape]:
        return {"x": (self.tokens, self.hidden)}

    @property
    def memory_read(self) -> int:
        """The bytes read, of experts those that some token goes to."""
        router = self.weight_specs()["router.w"].draw("router.w")
        logits = self.inputs["x"] @ router
        used = np.unique(np.argsort(-logits, axis=1)[:, : self.top]).size
        expert = 3 * self.hidden * self.ff
        return 4 * (used * expert + router.size + self.tokens * self.hidden)


WORKLOADS: Mapping[str, Workload] = {
    "tiny": Tiny(),
    "mlp_b1": Mlp(1),
    "mlp_b64": Mlp(64),
    "minilm_32": Encoder(6, 384, 12, 1536, batch=1, length=32),
    "bert_1x128": Encoder(12, 768, 12, 3072, batch=1, length=128),
    "bert_8x128": Encoder(12, 768, 12, 3072, batch=8, length=128),
    "resnet50": ResNet50(),
    "decode": Decode(),
    "rowwise": Rowwise(),
    "moe_1": Moe(1),
    "moe_64": Moe(64),
    **NETWORKS,
}

"""Convolution networks as lists of layers, for every runtime to build from.

They have the layers, sizes and connections of the published networks; batch norms are folded into
the convolutions before them, as exporters do. Weights are random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bench.compare.workload import Shape, Weight, Workload, bias, gain, matrix

__all__ = [
    "NETWORKS",
    "DenseNet121",
    "Layer",
    "MobileNetV2",
    "MobileNetV3Small",
    "Network",
    "Recogniser",
    "ShuffleNetV1",
    "ShuffleNetV2",
    "SqueezeNet",
    "YoloV8n",
]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """One operation.

    Attributes:
        op: ``conv``, ``linear``, ``affine`` (a factor and a shift for each channel), ``concat``,
            ``slice``, ``max_pool``, ``avg_pool``, ``global_pool``, ``upsample``, ``shuffle``,
            ``flatten`` (the positions of an image to one axis), ``expect`` (the mean of 0, 1, …
            weighted with a softmax over groups of that many channels), ``vector`` (without the axes
            of positions), ``columns`` (the channels of each column as a row), or an elementwise
            function of its operands: ``add``, ``multiply``, ``relu``, ``relu6``, ``silu``,
            ``sigmoid``, ``hard_swish``, ``hard_sigmoid``, ``softmax`` (along the last axis).
        name: of its result, and of its weights: ``<name>.w`` and ``<name>.b``.
        inputs: names of its operands.
        shape: of its result.
        size, stride, padding: of the window, by axis.
        groups: of a convolution or a shuffle.
        start: the first channel of a slice.
        axis: of a concatenation.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    shape: Shape
    size: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    groups: int = 1
    start: int = 0
    axis: int = 1


class Network(Workload):
    """A network for one image.

    Subclasses say its layers in :meth:`build`.

    Attributes:
        image: the shape of its input, ``x``.
        layers: in order; the last one gives the result.
    """

    image: ClassVar[Shape] = (1, 3, 224, 224)

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self._shapes: dict[str, Shape] = {"x": self.image}
        self._weights: dict[str, Weight] = {}
        self.flops = 0
        self.output_shapes = (self._shapes[self.build("x")],)

    def build(self, x: str) -> str:
        """Add all layers; returns the name of the last one's result."""
        raise NotImplementedError

    def weight_specs(self) -> dict[str, Weight]:
        return self._weights

    def input_shapes(self) -> Mapping[str, Shape]:  # type: ignore[override]
        return {"x": self.image}

    # -- layers ----------------------------------------------------------------------------------

    def channels(self, name: str) -> int:
        return self._shapes[name][1]

    def conv(
        self,
        x: str,
        out: int,
        size: int = 1,
        stride: int | Pair = 1,
        *,
        groups: int = 1,
        padding: int | None = None,
        then: str | None = "relu",
    ) -> str:
        """A convolution with a bias, by default padded by ``size // 2``, and a function of it."""
        into, area = self.channels(x) // groups, size * size
        steps = (stride, stride) if isinstance(stride, int) else stride
        pads = (size // 2 if padding is None else padding,) * 2
        shape = (1, out, *self._windows(x, (size, size), steps, pads))
        name = self._name("conv")
        spread = math.sqrt((6 if then else 3) / (into * area))
        self._weights[f"{name}.w"] = Weight((out, into, size, size), spread)
        self._weights[f"{name}.b"] = bias(out)
        self.flops += 2 * math.prod(shape) * into * area
        layer = Layer("conv", name, (x,), shape, (size, size), steps, pads, groups)
        result = self._add(layer)
        return self.map(then, result) if then else result

    def depthwise(
        self, x: str, size: int, stride: int | Pair = 1, *, then: str | None = None
    ) -> str:
        channels = self.channels(x)
        return self.conv(x, channels, size, stride, groups=channels, then=then)

    def linear(self, x: str, out: int, then: str | None = None) -> str:
        """A product with a matrix along the last axis, and a bias."""
        *lead, into = self._shapes[x]
        name = self._name("linear")
        self._weights |= {f"{name}.w": matrix(into, out), f"{name}.b": bias(out)}
        self.flops += 2 * math.prod(lead) * into * out
        result = self._add(Layer("linear", name, (x,), (*lead, out)))
        return self.map(then, result) if then else result

    def affine(self, x: str) -> str:
        """A batch norm that no convolution comes before."""
        name, channels = self._name("affine"), self.channels(x)
        self._weights |= {f"{name}.w": gain(channels), f"{name}.b": bias(channels)}
        return self._add(Layer("affine", name, (x,), self._shapes[x]))

    def map(self, op: str, *inputs: str) -> str:
        """An elementwise function, or a softmax along the last axis."""
        shape = max((self._shapes[x] for x in inputs), key=math.prod)
        return self._add(Layer(op, self._name(op), inputs, shape))

    def pool(self, op: str, x: str, size: int, stride: int, padding: int = 0) -> str:
        window, steps, pads = (size, size), (stride, stride), (padding, padding)
        shape = (1, self.channels(x), *self._windows(x, window, steps, pads))
        return self._add(Layer(op, self._name(op), (x,), shape, window, steps, pads))

    def global_pool(self, x: str) -> str:
        """The mean of each channel, ``[1, channels, 1, 1]``."""
        shape = (1, self.channels(x), 1, 1)
        return self._add(Layer("global_pool", self._name("global_pool"), (x,), shape))

    def concat(self, *inputs: str, axis: int = 1) -> str:
        shape = list(self._shapes[inputs[0]])
        shape[axis] = sum(self._shapes[x][axis] for x in inputs)
        return self._add(Layer("concat", self._name("concat"), inputs, tuple(shape), axis=axis))

    def split(self, x: str, first: int) -> tuple[str, str]:
        """The first ``first`` channels, and the others."""
        _, channels, *rest = self._shapes[x]
        shapes = (1, first, *rest), (1, channels - first, *rest)
        low, high = (
            self._add(Layer("slice", self._name("slice"), (x,), shape, start=start))
            for shape, start in zip(shapes, (0, first), strict=True)
        )
        return low, high

    def shuffle(self, x: str, groups: int) -> str:
        """Channel ``i * groups + g`` of the result is channel ``i`` of group ``g``."""
        name = self._name("shuffle")
        return self._add(Layer("shuffle", name, (x,), self._shapes[x], groups=groups))

    def upsample(self, x: str) -> str:
        """Each position twice along both axes."""
        _, channels, *sides = self._shapes[x]
        shape = (1, channels, *(2 * side for side in sides))
        return self._add(Layer("upsample", self._name("upsample"), (x,), shape))

    def flatten(self, x: str) -> str:
        """The positions of an image along one axis, ``[1, channels, positions]``."""
        _, channels, *sides = self._shapes[x]
        shape = (1, channels, math.prod(sides))
        return self._add(Layer("flatten", self._name("flatten"), (x,), shape))

    def expect(self, x: str, bins: int) -> str:
        """``[1, groups * bins, n]`` to the expected bin of each group, ``[1, groups, n]``."""
        _, channels, positions = self._shapes[x]
        shape = (1, channels // bins, positions)
        return self._add(Layer("expect", self._name("expect"), (x,), shape))

    def vector(self, x: str) -> str:
        """``[1, channels, 1, 1]`` as ``[1, channels]``."""
        shape = (1, self.channels(x))
        return self._add(Layer("vector", self._name("vector"), (x,), shape))

    def head(self, x: str, *widths: int, then: str | None = None) -> str:
        """Linear layers on the mean of each channel; ``then`` is between them."""
        x = self.vector(self.global_pool(x))
        for width in widths[:-1]:
            x = self.linear(x, width, then)
        return self.linear(x, widths[-1])

    def _windows(self, x: str, size: Pair, stride: Pair, padding: Pair) -> tuple[int, ...]:
        sides = self._shapes[x][2:]
        return tuple(
            (side + 2 * p - k) // s + 1
            for side, k, s, p in zip(sides, size, stride, padding, strict=True)
        )

    def _name(self, op: str) -> str:
        return f"{op}{len(self.layers)}"

    def _add(self, layer: Layer) -> str:
        self.layers.append(layer)
        self._shapes[layer.name] = layer.shape
        return layer.name


class SqueezeNet(Network):
    """SqueezeNet 1.1: fire modules, each the concatenation of a 1x1 and a 3x3 convolution."""

    def build(self, x: str) -> str:
        x = self.conv(x, 64, 3, 2, padding=0)
        for number, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
            if number in (0, 2, 4):
                x = self.pool("max_pool", x, 3, 2)
            squeezed = self.conv(x, width)
            x = self.concat(self.conv(squeezed, 4 * width), self.conv(squeezed, 4 * width, 3))
        return self.vector(self.global_pool(self.conv(x, 1000)))


class ShuffleNetV1(Network):
    """ShuffleNet 1.0x of four groups: grouped 1x1 convolutions with exchanged channels."""

    groups = 4

    def build(self, x: str) -> str:
        x = self.pool("max_pool", self.conv(x, 24, 3, 2), 3, 2, 1)
        for stage, (out, count) in enumerate([(272, 4), (544, 8), (1088, 4)]):
            for i in range(count):
                x = self._block(x, out, first=stage == i == 0, strided=i == 0)
        return self.head(x, 1000)

    def _block(self, x: str, out: int, *, first: bool, strided: bool) -> str:
        width = out // 4
        inner = self.conv(x, width, groups=1 if first else self.groups)
        inner = self.depthwise(self.shuffle(inner, self.groups), 3, 2 if strided else 1)
        rest = out - self.channels(x) if strided else out
        inner = self.conv(inner, rest, groups=self.groups, then=None)
        if not strided:
            return self.map("relu", self.map("add", inner, x))
        return self.concat(self.pool("avg_pool", x, 3, 2, 1), self.map("relu", inner))


class ShuffleNetV2(Network):
    """ShuffleNet V2 1.0x: half of the channels pass a block unchanged."""

    def build(self, x: str) -> str:
        x = self.pool("max_pool", self.conv(x, 24, 3, 2), 3, 2, 1)
        for out, count in ((116, 4), (232, 8), (464, 4)):
            branches = self._short(x, out // 2), self._long(x, out // 2, 2)
            x = self.shuffle(self.concat(*branches), 2)
            for _ in range(count - 1):
                kept, changed = self.split(x, out // 2)
                x = self.shuffle(self.concat(kept, self._long(changed, out // 2, 1)), 2)
        return self.head(self.conv(x, 1024), 1000)

    def _short(self, x: str, out: int) -> str:
        return self.conv(self.depthwise(x, 3, 2), out)

    def _long(self, x: str, out: int, stride: int) -> str:
        return self.conv(self.depthwise(self.conv(x, out), 3, stride), out)


class MobileNetV2(Network):
    """MobileNet V2: inverted residuals."""

    def build(self, x: str) -> str:
        x = self.conv(x, 32, 3, 2, then="relu6")
        settings = [
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ]  # fmt: skip
        for expansion, out, count, stride in settings:
            for i in range(count):
                x = self._block(x, expansion, out, stride if i == 0 else 1)
        return self.head(self.conv(x, 1280, then="relu6"), 1000)

    def _block(self, x: str, expansion: int, out: int, stride: int) -> str:
        width = expansion * self.channels(x)
        inner = x if expansion == 1 else self.conv(x, width, then="relu6")
        inner = self.depthwise(inner, 3, stride, then="relu6")
        inner = self.conv(inner, out, then=None)
        kept = stride == 1 and self.channels(x) == out
        return self.map("add", x, inner) if kept else inner


class MobileNetV3Small(Network):
    """MobileNet V3 small: inverted residuals with squeeze-and-excitation."""

    def build(self, x: str) -> str:
        x = self.conv(x, 16, 3, 2, then="hard_swish")
        settings = [
            (3, 16, 16, 1, "relu", 2), (3, 72, 24, 0, "relu", 2), (3, 88, 24, 0, "relu", 1),
            (5, 96, 40, 1, "hard_swish", 2), (5, 240, 40, 1, "hard_swish", 1),
            (5, 240, 40, 1, "hard_swish", 1), (5, 120, 48, 1, "hard_swish", 1),
            (5, 144, 48, 1, "hard_swish", 1), (5, 288, 96, 1, "hard_swish", 2),
            (5, 576, 96, 1, "hard_swish", 1), (5, 576, 96, 1, "hard_swish", 1),
        ]  # fmt: skip
        for size, width, out, excited, function, stride in settings:
            inner = x if width == self.channels(x) else self.conv(x, width, then=function)
            inner = self.depthwise(inner, size, stride, then=function)
            if excited:
                inner = self.excite(inner, -(-width // 32) * 8)
            inner = self.conv(inner, out, then=None)
            kept = stride == 1 and self.channels(x) == out
            x = self.map("add", x, inner) if kept else inner
        return self.head(self.conv(x, 576, then="hard_swish"), 1024, 1000, then="hard_swish")

    def excite(self, x: str, width: int) -> str:
        """``x`` times a factor for each channel, which depends on the means of all."""
        means = self.conv(self.global_pool(x), width)
        return self.map("multiply", x, self.conv(means, self.channels(x), then="hard_sigmoid"))


class DenseNet121(Network):
    """DenseNet-121: every layer reads the results of all before it in its block."""

    growth = 32

    def build(self, x: str) -> str:
        x = self.pool("max_pool", self.conv(x, 64, 7, 2), 3, 2, 1)
        for number, count in enumerate((6, 12, 24, 16)):
            if number:
                x = self.conv(self._active(x), self.channels(x) // 2, then=None)
                x = self.pool("avg_pool", x, 2, 2)
            for _ in range(count):
                inner = self.conv(self._active(x), 4 * self.growth)
                x = self.concat(x, self.conv(inner, self.growth, 3, then=None))
        return self.head(self._active(x), 1000)

    def _active(self, x: str) -> str:
        return self.map("relu", self.affine(x))


class YoloV8n(Network):
    """YOLOv8n, from an image to each position's class scores and distances to box sides."""

    image = (1, 3, 640, 640)
    classes, bins = 80, 16

    def build(self, x: str) -> str:
        x = self._conv(self._conv(x, 16, 3, 2), 32, 3, 2)
        x = self._conv(self._stage(x, 32, 1), 64, 3, 2)
        fine = self._stage(x, 64, 2)
        middle = self._stage(self._conv(fine, 128, 3, 2), 128, 2)
        coarse = self._pyramid(self._stage(self._conv(middle, 256, 3, 2), 256, 1), 256)
        inner = self._stage(self.concat(self.upsample(coarse), middle), 128, 1, residual=False)
        fine = self._stage(self.concat(self.upsample(inner), fine), 64, 1, residual=False)
        down = self.concat(self._conv(fine, 64, 3, 2), inner)
        middle = self._stage(down, 128, 1, residual=False)
        down = self.concat(self._conv(middle, 128, 3, 2), coarse)
        coarse = self._stage(down, 256, 1, residual=False)
        found = [self._detect(level) for level in (fine, middle, coarse)]
        boxes, scores = self.split(self.concat(*found, axis=2), 4 * self.bins)
        return self.concat(self.expect(boxes, self.bins), self.map("sigmoid", scores))

    def _conv(self, x: str, out: int, size: int = 1, stride: int = 1) -> str:
        return self.conv(x, out, size, stride, then="silu")

    def _stage(self, x: str, out: int, count: int, *, residual: bool = True) -> str:
        parts = [*self.split(self._conv(x, out), out // 2)]
        for _ in range(count):
            inner = self._conv(self._conv(parts[-1], out // 2, 3), out // 2, 3)
            parts.append(self.map("add", parts[-1], inner) if residual else inner)
        return self._conv(self.concat(*parts), out)

    def _pyramid(self, x: str, out: int) -> str:
        parts = [self._conv(x, out // 2)]
        for _ in range(3):
            parts.append(self.pool("max_pool", parts[-1], 5, 1, 2))
        return self._conv(self.concat(*parts), out)

    def _detect(self, x: str) -> str:
        box = self._conv(self._conv(x, 64, 3), 64, 3)
        score = self._conv(self._conv(x, self.classes, 3), self.classes, 3)
        ends = (
            self.conv(box, 4 * self.bins, then=None),
            self.conv(score, self.classes, then=None),
        )
        return self.flatten(self.concat(*ends))


class Recogniser(MobileNetV3Small):
    """A recogniser of text lines as PP-OCR has: depthwise convolutions, then a row per column."""

    image = (1, 3, 48, 320)
    symbols = 6625

    def build(self, x: str) -> str:
        x = self.conv(x, 16, 3, 2, then="hard_swish")
        settings: list[tuple[int, int, int | Pair, bool]] = [
            (3, 32, 1, False), (3, 64, 1, False), (3, 64, 1, False), (3, 128, (2, 1), False),
            (3, 128, 1, False), (3, 256, (2, 1), False), *[(5, 256, 1, False)] * 5,
            (5, 512, (2, 1), True), (5, 512, (1, 2), True),
        ]  # fmt: skip
        for size, out, stride, excited in settings:
            x = self.depthwise(x, size, stride, then="hard_swish")
            if excited:
                x = self.excite(x, self.channels(x) // 4)
            x = self.conv(x, out, then="hard_swish")
        x = self.conv(self.pool("avg_pool", x, 2, 2), 120, then="silu")
        return self.map("softmax", self.linear(self.columns(x), self.symbols))

    def columns(self, x: str) -> str:
        """``[1, channels, 1, n]`` as ``[1, n, channels]``."""
        _, channels, _, columns = self._shapes[x]
        return self._add(Layer("columns", self._name("columns"), (x,), (1, columns, channels)))


NETWORKS: Mapping[str, Network] = {
    "squeezenet": SqueezeNet(),
    "shufflenet_v1": ShuffleNetV1(),
    "shufflenet_v2": ShuffleNetV2(),
    "mobilenet_v2": MobileNetV2(),
    "mobilenet_v3": MobileNetV3Small(),
    "densenet121": DenseNet121(),
    "yolov8n": YoloV8n(),
    "text_recogniser": Recogniser(),
}

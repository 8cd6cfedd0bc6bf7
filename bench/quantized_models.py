"""Networks in ONNX's format with random weights, as ONNX Runtime's own quantiser leaves them."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FORMS", "NETWORKS", "Network", "bert", "mobilenet", "quantized", "resnet"]

Array: TypeAlias = "np.ndarray[Any, Any]"

#: The forms that the quantiser gives: two static ones, and the one that quantises as it runs.
FORMS = ("qdq", "qoperator", "dynamic")


class Network:
    """A model under construction.

    Args:
        name: of the graph.
        shape: of its input.
        seed: of its weights.
    """

    def __init__(self, name: str, shape: Sequence[int], seed: int = 0) -> None:
        self.name = name
        self.shape = tuple(shape)
        self._rng = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        output = f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weight(self, array: Array) -> str:
        """Store an array; returns its name."""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape: int, fan_in: int) -> str:
        """Store random weights that keep the variance of what they multiply."""
        values = self._rng.standard_normal(shape) * np.sqrt(2 / fan_in)
        return self.weight(values.astype(np.float32))

    def conv(
        self, x: str, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        """Append a convolution with a bias, as batch norms leave it."""
        fan_in = channels // groups * kernel * kernel
        w = self.random(filters, channels // groups, kernel, kernel, fan_in=fan_in)
        bias = self.random(filters, fan_in=200)
        pads = [(kernel - 1) // 2] * 4
        return self.add("Conv", x, w, bias, strides=[stride] * 2, pads=pads, group=groups)

    def linear(self, x: str, inner: int, columns: int, op: str = "MatMul") -> str:
        """Append a matmul with a matrix, and a bias."""
        w, bias = self.random(inner, columns, fan_in=inner), self.random(columns, fan_in=200)
        if op == "Gemm":
            return self.add("Gemm", x, w, bias)
        return self.add("Add", self.add("MatMul", x, w), bias)

    def model(self, output: str) -> Any:
        """The model with this output."""
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [onnx.ValueInfoProto(name=output)],
            self._weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


def resnet(size: int = 224, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3)) -> Any:
    """A residual network of bottlenecks, by default of ResNet-50's shape."""
    net = Network("resnet", (1, 3, size, size))
    x = net.add("Relu", net.conv("x", 3, width, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, count in enumerate(blocks):
        inner = width << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = net.add("Relu", net.conv(x, channels, inner, 1))
            y = net.add("Relu", net.conv(y, inner, inner, 3, stride))
            y = net.conv(y, inner, 4 * inner, 1)
            beside = x if block else net.conv(x, channels, 4 * inner, 1, stride)
            x = net.add("Relu", net.add("Add", y, beside))
            channels = 4 * inner
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(net.linear(x, channels, 1000 if width >= 64 else 10, "Gemm"))


#: Of each stage of MobileNetV2: expansion, channels, blocks, stride.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
           (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def mobilenet(size: int = 224, stages: Sequence[tuple[int, int, int, int]] = _STAGES) -> Any:
    """A network of inverted residuals, by default of MobileNetV2's shape."""
    net = Network("mobilenet", (1, 3, size, size))
    limits = net.weight(np.float32(0)), net.weight(np.float32(6))
    x, channels = net.add("Clip", net.conv("x", 3, 32, 3, 2), *limits), 32
    for expansion, filters, count, first in stages:
        for block in range(count):
            stride, inner = (first if not block else 1), channels * expansion
            y = x
            if expansion > 1:
                y = net.add("Clip", net.conv(y, channels, inner, 1), *limits)
            y = net.add("Clip", net.conv(y, inner, inner, 3, stride, inner), *limits)
            y = net.conv(y, inner, filters, 1)
            x = net.add("Add", x, y) if stride == 1 and channels == filters else y
            channels = filters
    last = 1280 if size >= 224 else 64
    x = net.add("Clip", net.conv(x, channels, last, 1), *limits)
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(net.linear(x, last, 1000 if size >= 224 else 10, "Gemm"))


def bert(length: int = 128, hidden: int = 768, layers: int = 12, heads: int = 12) -> Any:
    """An encoder on embedded tokens, by default of BERT-base's shape."""
    net = Network("bert", (1, length, hidden))
    size = hidden // heads
    split = net.weight(np.array([1, length, heads, size], np.int64))
    joined = net.weight(np.array([1, length, hidden], np.int64))
    root = net.weight(np.float32(np.sqrt(size)))
    ones, zeros = (net.weight(np.full(hidden, v, np.float32)) for v in (1, 0))
    x = "x"
    for _ in range(layers):
        q, k, v = (net.add("Reshape", net.linear(x, hidden, hidden), split) for _ in range(3))
        q, v = (net.add("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 3, 1]))
        shares = net.add("Softmax", net.add("Div", scores, root), axis=-1)
        seen = net.add("Transpose", net.add("MatMul", shares, v), perm=[0, 2, 1, 3])
        y = net.linear(net.add("Reshape", seen, joined), hidden, hidden)
        x = net.add("LayerNormalization", net.add("Add", x, y), ones, zeros)
        y = net.linear(x, hidden, 4 * hidden)
        half, one = net.weight(np.float32(0.5)), net.weight(np.float32(1))
        curve = net.add("Erf", net.add("Div", y, net.weight(np.float32(np.sqrt(2)))))
        y = net.add("Mul", net.add("Mul", y, net.add("Add", curve, one)), half)
        y = net.linear(y, 4 * hidden, hidden)
        x = net.add("LayerNormalization", net.add("Add", x, y), ones, zeros)
    return net.model(x)


NETWORKS: dict[str, Callable[[], Any]] = {"resnet": resnet, "mobilenet": mobilenet, "bert": bert}


def quantized(
    model: Any, form: str, *, activations: str = "uint8", per_channel: bool = True
) -> bytes:
    """``model`` by ONNX Runtime's quantiser, calibrated on random inputs.

    Args:
        model: as the builders of this module give it.
        form: one of :data:`FORMS`.
        activations: ``"uint8"`` or ``"int8"``; int8 weights of ``qoperator`` go with either.
        per_channel: a scale for each filter or column.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """A few random inputs."""

        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self._left = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]

        def get_next(self) -> dict[str, Array] | None:
            return {"x": self._left.pop()} if self._left else None

    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        onnx.save(model, source)
        if form == "dynamic":
            quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=per_channel)
        else:
            quantize_static(
                source,
                target,
                Reader(),
                quant_format=QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator,
                activation_type=QuantType.QUInt8 if activations == "uint8" else QuantType.QInt8,
                weight_type=QuantType.QInt8,
                per_channel=per_channel,
            )
        return target.read_bytes()

"""ONNX files of the MLP and the encoders of the comparison, for runtimes that start from a file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from bench.compare.workloads import LAYER_NORM_EPS, WORKLOADS, Encoder, Mlp, Workload
from onnx import TensorProto, helper, numpy_helper

__all__ = ["write_model"]


def write_model(name: str, folder: Path) -> Path:
    """The file of a workload (``mlp_b1``, ``minilm_32``, ``bert_1x128``) in ``folder``."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        workload = WORKLOADS[name]
        writer = _Writer(workload)
        assert isinstance(workload, Mlp | Encoder)
        result = writer.mlp(workload) if isinstance(workload, Mlp) else writer.encoder(workload)
        onnx.save(writer.model(result), path)
    return path


class _Writer:
    """Collects nodes and weights; every method returns the name of its result."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def model(self, result: str) -> onnx.ModelProto:
        weights = [numpy_helper.from_array(a, n) for n, a in self.workload.weights.items()]
        kind = TensorProto.FLOAT
        inputs = [
            helper.make_tensor_value_info(name, kind, shape)
            for name, shape in self.workload.input_shapes().items()
        ]
        (shape,) = self.workload.output_shapes
        outputs = [helper.make_tensor_value_info(result, kind, shape)]
        graph = helper.make_graph(self.nodes, "model", inputs, outputs, [*weights, *self.constants])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def constant(self, value: object, dtype: type[np.generic]) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def linear(self, x: str, name: str) -> str:
        return self.node("Add", self.node("MatMul", x, f"{name}.w"), f"{name}.b")

    def mlp(self, mlp: Mlp) -> str:
        x = "x"
        for i in range(len(mlp.layers)):
            x = self.linear(x, str(i))
            if i < len(mlp.layers) - 1:
                x = self.node("Relu", x)
        return x

    def encoder(self, encoder: Encoder) -> str:
        x = "x"
        for i in range(encoder.layers):
            attended = self.linear(self.attention(x, encoder, i), f"{i}.o")
            x = self.norm(self.node("Add", x, attended), f"{i}.norm1")
            x = self.norm(self.node("Add", x, self.feed_forward(x, i)), f"{i}.norm2")
        return x

    def norm(self, x: str, name: str) -> str:
        attrs = {"axis": -1, "epsilon": LAYER_NORM_EPS}
        return self.node("LayerNormalization", x, f"{name}.g", f"{name}.b", **attrs)

    def feed_forward(self, x: str, layer: int) -> str:
        """``down(gelu(up(x)))``, gelu as exporters spell it at this opset."""
        up = self.linear(x, f"{layer}.up")
        root = self.constant(math.sqrt(2.0), np.float32)
        erf = self.node("Erf", self.node("Div", up, root))
        grown = self.node("Mul", up, self.node("Add", erf, self.constant(1.0, np.float32)))
        return self.linear(self.node("Mul", grown, self.constant(0.5, np.float32)), f"{layer}.down")

    def attention(self, x: str, encoder: Encoder, layer: int) -> str:
        split = (0, 0, encoder.heads, encoder.head_dim)

        def heads(kind: str, perm: list[int]) -> str:
            apart = self.node(
                "Reshape", self.linear(x, f"{layer}.{kind}"), self.constant(split, np.int64)
            )
            return self.node("Transpose", apart, perm=perm)

        scores = self.node("MatMul", heads("q", [0, 2, 1, 3]), heads("k", [0, 2, 3, 1]))
        scale = self.constant(encoder.head_dim**-0.5, np.float32)
        weights = self.node("Softmax", self.node("Mul", scores, scale), axis=-1)
        mixed = self.node("MatMul", weights, heads("v", [0, 2, 1, 3]))
        joined = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.node("Reshape", joined, self.constant((0, 0, encoder.hidden), np.int64))

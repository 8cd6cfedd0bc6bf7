"""Whole models on a GPU, next to PyTorch: a prefill, an encoder and a convolution network.

    python -m bench.cuda_models [--models prefill bert1 bert8 resnet1 resnet32] [--runs 30]

The prefill is 2,048 tokens of a Llama-3.2-1B-shaped model in bfloat16 up to the next token; the
encoder is BERT-base-shaped, 128 tokens, float16; the convolution network is ResNet-50 with its
batch norms folded into its convolutions, float16. Weights are random, the same on both sides.
PyTorch runs eagerly within a CUDA graph and, with ``--compile MODE``, by ``torch.compile`` within
one; the ResNet has its channels last. Times are medians of single runs on arrays of the GPU, by the
host's clock with a wait after each, all ways in turn. Errors are relative to PyTorch in float32.
``--profile`` adds the time of each kind of kernel. Prints a JSON line after the table, or writes
it to the file of ``--json``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from bench.cuda_decode import LLAMA_1B, as_array

import ostinato as ost

Weights = dict[str, torch.Tensor]
Network = Callable[[Weights, torch.Tensor], torch.Tensor]

_EPS = 1e-5


class Model(NamedTuple):
    """A model, for both sides.

    Attributes:
        dtype: of its weights and activations.
        weights: by name.
        x: its input.
        torch: computes it in PyTorch.
        graph: adds it to a graph, from its input and its params; returns its result.
        channels_last: whether PyTorch is to store images with their channels last.
    """

    dtype: str
    weights: Weights
    x: torch.Tensor
    torch: Network
    graph: Callable[[ost.Graph, dict[str, ost.Value], ost.Value], ost.Value]
    channels_last: bool = False


class _Maker:
    """Random weights on the GPU."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.weights: Weights = {}
        self.random = torch.Generator("cuda").manual_seed(0)

    def tensor(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        made = torch.randn(*shape, generator=self.random, device="cuda") * scale
        return made.to(getattr(torch, self.dtype))

    def matrix(self, name: str, rows: int, columns: int) -> None:
        self.weights[name] = self.tensor(rows, columns, scale=rows**-0.5)

    def gain(self, name: str, size: int) -> None:
        self.weights[name] = 1 + self.tensor(size, scale=0.1)

    def bias(self, name: str, size: int) -> None:
        self.weights[name] = self.tensor(size, scale=0.1)


# -- prefill ---------------------------------------------------------------------------------------


def prefill(layers: int = 16, length: int = 2048) -> Model:
    """The next token after a prompt, by a Llama-shaped model."""
    sizes: dict[str, Any] = LLAMA_1B
    width, hidden, depth = sizes["width"], sizes["hidden"], sizes["head_dim"]
    heads, key_heads = sizes["heads"], sizes["key_heads"]
    make = _Maker("bfloat16")
    make.weights["embedding"] = make.tensor(sizes["vocabulary"], width)
    pairs = torch.arange(depth // 2, device="cuda") / (depth // 2)
    angles = torch.arange(length, device="cuda")[:, None] * sizes["rope_base"] ** -pairs
    make.weights |= {"cos": angles.cos().bfloat16(), "sin": angles.sin().bfloat16()}
    make.gain("norm", width)
    for i in range(layers):
        make.gain(f"{i}.norm1", width)
        make.gain(f"{i}.norm2", width)
        for name, columns in (("q", heads * depth), ("k", key_heads * depth)):
            make.matrix(f"{i}.{name}", width, columns)
        make.matrix(f"{i}.v", width, key_heads * depth)
        make.matrix(f"{i}.o", heads * depth, width)
        make.matrix(f"{i}.gate", width, hidden)
        make.matrix(f"{i}.up", width, hidden)
        make.matrix(f"{i}.down", hidden, width)

    def in_torch(w: Weights, tokens: torch.Tensor) -> torch.Tensor:
        def turned(x: torch.Tensor) -> torch.Tensor:
            left, right = x.chunk(2, -1)
            cos, sin = w["cos"], w["sin"]
            return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

        def split(x: torch.Tensor, name: str, count: int) -> torch.Tensor:
            return (x @ w[name]).view(1, length, count, depth).transpose(1, 2)

        x = F.embedding(tokens, w["embedding"])
        for i in range(layers):
            h = F.rms_norm(x, (width,), w[f"{i}.norm1"], _EPS)
            q, k = turned(split(h, f"{i}.q", heads)), turned(split(h, f"{i}.k", key_heads))
            v = split(h, f"{i}.v", key_heads)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + mixed.transpose(1, 2).reshape(length, -1) @ w[f"{i}.o"]
            h = F.rms_norm(x, (width,), w[f"{i}.norm2"], _EPS)
            x = x + (F.silu(h @ w[f"{i}.gate"]) * (h @ w[f"{i}.up"])) @ w[f"{i}.down"]
        return F.rms_norm(x[-1:], (width,), w["norm"], _EPS) @ w["embedding"].T

    def in_graph(g: ost.Graph, w: dict[str, ost.Value], tokens: ost.Value) -> ost.Value:
        def split(x: ost.Value, name: str, count: int) -> ost.Value:
            shaped = g.reshape(g.matmul(x, w[name]), (1, length, count, depth))
            return g.permute_dims(shaped, (0, 2, 1, 3))

        x = g.embedding(tokens, w["embedding"])
        for i in range(layers):
            h = g.rms_norm(x, w[f"{i}.norm1"], eps=_EPS)
            q = g.rope(split(h, f"{i}.q", heads), w["cos"], w["sin"])
            k = g.rope(split(h, f"{i}.k", key_heads), w["cos"], w["sin"])
            mixed = g.attention(q, k, split(h, f"{i}.v", key_heads), causal=True)
            mixed = g.reshape(g.permute_dims(mixed, (0, 2, 1, 3)), (length, heads * depth))
            x = g.add(x, g.matmul(mixed, w[f"{i}.o"]))
            h = g.rms_norm(x, w[f"{i}.norm2"], eps=_EPS)
            gate, up = g.matmul(h, w[f"{i}.gate"]), g.matmul(h, w[f"{i}.up"])
            x = g.add(x, g.matmul(g.multiply(g.silu(gate), up), w[f"{i}.down"]))
        last = g.rms_norm(g.slice(x, (length - 1, 0), (length, width)), w["norm"], eps=_EPS)
        return g.matmul(last, g.permute_dims(w["embedding"], (1, 0)))

    tokens = torch.randint(sizes["vocabulary"], (length,), device="cuda", generator=make.random)
    return Model("bfloat16", make.weights, tokens, in_torch, in_graph)


# -- encoder ---------------------------------------------------------------------------------------


def bert(batch: int, length: int = 128, layers: int = 12) -> Model:
    """A BERT-base-shaped encoder, from embedded tokens on."""
    width, heads, hidden = 768, 12, 3072
    make = _Maker("float16")
    for i in range(layers):
        for name, rows, columns in (
            *((name, width, width) for name in "qkvo"),
            ("up", width, hidden),
            ("down", hidden, width),
        ):
            make.matrix(f"{i}.{name}", rows, columns)
            make.bias(f"{i}.{name}.b", columns)
        for name in ("norm1", "norm2"):
            make.gain(f"{i}.{name}", width)
            make.bias(f"{i}.{name}.b", width)
    shape = (batch, length, heads, width // heads)

    def in_torch(w: Weights, x: torch.Tensor) -> torch.Tensor:
        def linear(name: str, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, w[name].T, w[f"{name}.b"])

        def norm(name: str, x: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, (width,), w[name], w[f"{name}.b"], _EPS)

        for i in range(layers):
            q, k, v = (linear(f"{i}.{name}", x).view(shape).transpose(1, 2) for name in "qkv")
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = norm(f"{i}.norm1", x + linear(f"{i}.o", mixed))
            x = norm(f"{i}.norm2", x + linear(f"{i}.down", F.gelu(linear(f"{i}.up", x))))
        return x

    def in_graph(g: ost.Graph, w: dict[str, ost.Value], x: ost.Value) -> ost.Value:
        def linear(name: str, x: ost.Value) -> ost.Value:
            return g.add(g.matmul(x, w[name]), w[f"{name}.b"])

        def norm(name: str, x: ost.Value) -> ost.Value:
            return g.layer_norm(x, w[name], w[f"{name}.b"], eps=_EPS)

        for i in range(layers):
            q, k, v = (
                g.permute_dims(g.reshape(linear(f"{i}.{name}", x), shape), (0, 2, 1, 3))
                for name in "qkv"
            )
            mixed = g.reshape(g.permute_dims(g.attention(q, k, v), (0, 2, 1, 3)), x.shape)
            x = norm(f"{i}.norm1", g.add(x, linear(f"{i}.o", mixed)))
            inner = g.gelu(linear(f"{i}.up", x))
            x = norm(f"{i}.norm2", g.add(x, linear(f"{i}.down", inner)))
        return x

    return Model("float16", make.weights, make.tensor(batch, length, width), in_torch, in_graph)


# -- convolution network ---------------------------------------------------------------------------


def resnet(batch: int) -> Model:
    """ResNet-50 without its batch norms, which are part of its convolutions' weights."""
    make = _Maker("float16")
    blocks: list[tuple[str, int, bool]] = []

    def conv(name: str, into: int, out: int, size: int, gain: float = 2.0) -> None:
        scale = math.sqrt(gain / (into * size * size))
        make.weights[name] = make.tensor(out, into, size, size, scale=scale)
        make.bias(f"{name}.b", out)

    conv("stem", 3, 64, 7)
    channels = 64
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for i in range(count):
            name, first = f"{stage}.{i}", i == 0
            conv(f"{name}.1", channels, width, 1)
            conv(f"{name}.2", width, width, 3)
            conv(f"{name}.3", width, 4 * width, 1, 0.2)
            if first:
                conv(f"{name}.s", channels, 4 * width, 1)
            blocks.append((name, 2 if stage and first else 1, first))
            channels = 4 * width
    make.matrix("fc", 2048, 1000)
    make.bias("fc.b", 1000)

    def in_torch(w: Weights, x: torch.Tensor) -> torch.Tensor:
        def conv(name: str, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
            return F.conv2d(x, w[name], w[f"{name}.b"], stride, w[name].shape[-1] // 2)

        x = F.max_pool2d(F.relu(conv("stem", x, 2)), 3, 2, 1)
        for name, stride, projected in blocks:
            inner = F.relu(conv(f"{name}.2", F.relu(conv(f"{name}.1", x)), stride))
            x = conv(f"{name}.s", x, stride) if projected else x
            x = F.relu(conv(f"{name}.3", inner) + x)
        return F.linear(x.mean((2, 3)), w["fc"].T, w["fc.b"])

    def in_graph(g: ost.Graph, w: dict[str, ost.Value], x: ost.Value) -> ost.Value:
        def conv(name: str, x: ost.Value, stride: int = 1) -> ost.Value:
            padding = int(w[name].shape[-1]) // 2
            return g.conv(x, w[name], w[f"{name}.b"], stride=stride, padding=padding)

        x = g.max_pool(g.relu(conv("stem", x, 2)), 3, 2, 1)
        for name, stride, projected in blocks:
            inner = g.relu(conv(f"{name}.2", g.relu(conv(f"{name}.1", x)), stride))
            x = conv(f"{name}.s", x, stride) if projected else x
            x = g.relu(g.add(conv(f"{name}.3", inner), x))
        return g.add(g.matmul(g.mean(x, axis=(2, 3)), w["fc"]), w["fc.b"])

    x = make.tensor(batch, 3, 224, 224)
    return Model("float16", make.weights, x, in_torch, in_graph, channels_last=True)


MODELS: dict[str, Callable[[], Model]] = {
    "prefill": prefill,
    "bert1": lambda: bert(1),
    "bert8": lambda: bert(8),
    "resnet1": lambda: resnet(1),
    "resnet32": lambda: resnet(32),
}


# -- measurement -----------------------------------------------------------------------------------


def by_us(
    model: Model, out: torch.Tensor, options: ost.CompileOptions
) -> tuple[ost.CompiledGraph, Callable[[], object]]:
    """The model, compiled, and a call that runs it on arrays of the GPU."""
    g = ost.Graph("model")
    dtype = "int64" if model.x.dtype == torch.int64 else model.dtype
    x = g.input("x", tuple(model.x.shape), dtype)
    params = {
        name: g.param(name, tuple(w.shape), model.dtype, value=as_array(w, model.dtype))
        for name, w in model.weights.items()
    }
    g.set_outputs({"out": model.graph(g, params, x)})
    compiled = ost.Session("cuda").compile(g, options=options)
    return compiled, compiled.bind({"x": model.x}, [out])


def in_cuda_graph(network: Network, weights: Weights, x: torch.Tensor) -> Callable[[], object]:
    """Replays a network of PyTorch, recorded, and waits for it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            network(weights, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(weights, x)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def median_ms(ways: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """The median time of each way, the ways in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 3):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            way()
            if run >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def print_profile(compiled: ost.CompiledGraph, x: torch.Tensor) -> None:
    """Print the time of each kind of kernel, the longest first."""
    compiled.run({"x": x})
    plan = compiled.plan
    for _ in range(2):
        profile = plan.execute_profiled()
    spent: defaultdict[str, list[float]] = defaultdict(list)
    for kernel in profile:
        spent[kernel.name].append(kernel.elapsed)
    for name, seconds in sorted(spent.items(), key=lambda item: -sum(item[1])):
        total = 1e6 * sum(seconds)
        print(f"    {total:9.1f} us  x{len(seconds):<4} {total / len(seconds):8.2f} us  {name}")


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The error and the times of a model."""
    model = MODELS[name]()
    in_float32 = {key: w.float() for key, w in model.weights.items()}
    x32 = model.x if model.x.dtype == torch.int64 else model.x.float()
    expected = model.torch(in_float32, x32)
    del in_float32
    weights, x = model.weights, model.x
    if model.channels_last:
        order = torch.channels_last
        weights = {k: w.to(memory_format=order) if w.ndim == 4 else w for k, w in weights.items()}
        x = x.to(memory_format=order)
    theirs = model.torch(weights, x)
    out = torch.empty(expected.shape, dtype=theirs.dtype, device="cuda")
    started = time.perf_counter()
    compiled, ours = by_us(model, out, ost.CompileOptions())
    seconds = time.perf_counter() - started
    ours()
    result: dict[str, Any] = {
        "compile_s": seconds,
        "kernels": len(compiled.plan.kernels),
        "error": _error(out, expected),
        "torch_error": _error(theirs, expected),
    }
    ways = {"ostinato": ours, "torch CUDA graph": in_cuda_graph(model.torch, weights, x)}
    if arguments.without:
        options = ost.CompileOptions(library_products=False)
        _, ways["ostinato, no library"] = by_us(model, torch.empty_like(out), options)
    if arguments.compile:
        fast = torch.compile(model.torch, mode=arguments.compile)
        ways["torch.compile"] = in_cuda_graph(fast, weights, x)
    result["ms"] = median_ms(ways, arguments.runs)
    print(
        f"{name}: {result['kernels']} kernels, compiled in {seconds:.1f} s, error "
        f"{result['error']:.1e} (torch {result['torch_error']:.1e})"
    )
    for way, milliseconds in result["ms"].items():
        print(f"  {way:28} {milliseconds:8.3f} ms", flush=True)
    if arguments.profile:
        print_profile(compiled, model.x)
    return result


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--compile", metavar="MODE", help="torch.compile in this mode as well")
    parser.add_argument("--without", action="store_true", help="without cuBLASLt as well")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--profile", action="store_true", help="the time of each kind of kernel")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    results: dict[str, Any] = {}
    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "models": results}
    for name in arguments.models:
        with torch.inference_mode():
            results[name] = measure(name, arguments)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if not arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

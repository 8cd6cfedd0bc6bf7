"""Times of the kernels of a few graphs on a GPU by WebGPU, and their results next to the CPU's.

Matmuls, the product of one row, softmax, attention, and an encoder as BERT's. Times are those of
the device's clock, or of the host's where it has none.

    python -m bench.webgpu [--device webgpu] [--runs 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ostinato as ost
from ostinato.backends.webgpu.gpu import Gpu
from ostinato.ir.graph import Value

RNG = np.random.default_rng(0)


def product(rows: int, depth: int, columns: int, dtype: str = "float32") -> ost.Graph:
    """``x @ w``."""
    g = ost.Graph(f"matmul {rows} x {depth} x {columns} {dtype}")
    x = g.input("x", (rows, depth), dtype)
    w = g.param("w", (columns, depth), dtype)
    g.set_outputs([g.matmul(x, g.permute_dims(w, (1, 0)))])
    return g


def rows(count: int, length: int) -> ost.Graph:
    """Softmax along rows."""
    g = ost.Graph(f"softmax {count} x {length}")
    g.set_outputs([g.softmax(g.input("x", (count, length)), -1)])
    return g


def attention(heads: int, length: int, size: int) -> ost.Graph:
    """Attention without a mask."""
    g = ost.Graph(f"attention {heads} x {length} x {size}")
    g.set_outputs([g.attention(*(g.input(name, (1, heads, length, size)) for name in "qkv"))])
    return g


def encoder(length: int, width: int, layers: int, heads: int) -> ost.Graph:
    """As BERT, with its layer norms behind the sums."""
    g = ost.Graph(f"encoder of {layers} layers, {length} x {width}")
    size = width // heads

    def dense(y: Value, name: str, columns: int) -> Value:
        depth = y.shape[-1]
        return g.matmul(y, g.param(name, (depth, columns)))

    def split(y: Value) -> Value:
        return g.permute_dims(g.reshape(y, (1, length, heads, size)), (0, 2, 1, 3))

    def norm(y: Value, name: str) -> Value:
        return g.layer_norm(y, g.param(f"{name}s", (width,)), g.param(f"{name}t", (width,)))

    y: Value = g.input("x", (length, width))
    for i in range(layers):
        q, k, v = (split(dense(y, f"{name}{i}", width)) for name in "qkv")
        a = g.reshape(g.permute_dims(g.attention(q, k, v), (0, 2, 1, 3)), (length, width))
        y = norm(y + dense(a, f"o{i}", width), f"a{i}")
        y = norm(y + dense(g.gelu(dense(y, f"u{i}", 4 * width)), f"d{i}", width), f"b{i}")
    g.set_outputs([y])
    return g


WORKLOADS: tuple[Callable[[], ost.Graph], ...] = (
    lambda: product(1024, 1024, 1024),
    lambda: product(2048, 2048, 2048, "float16"),
    lambda: product(1, 4096, 4096),
    lambda: product(1, 4096, 4096, "float16"),
    lambda: rows(4096, 1024),
    lambda: rows(8, 100_000),
    lambda: attention(12, 512, 64),
    lambda: encoder(128, 384, 6, 12),
)


def drawn(value: Value) -> np.ndarray:
    """Random elements for an input or a param."""
    shape = [int(dim) for dim in value.shape]
    scale = 1 / math.sqrt(shape[0]) if len(shape) > 1 else 1.0
    return (RNG.normal(size=shape) * scale).astype(value.dtype.numpy)


def milliseconds(compiled: ost.CompiledGraph, inputs: dict[str, np.ndarray], runs: int) -> float:
    """The least time of the kernels of a run."""
    plan = compiled.plan
    for name, array in inputs.items():
        plan.inputs[name].copyin(array)
    return min(plan.execute_profiled().elapsed for _ in range(runs)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    session, found = ost.Session(arguments.device), {}
    for make in WORKLOADS:
        graph = make()
        params = {name: drawn(value) for name, value in graph.params.items()}
        inputs = {name: drawn(value) for name, value in graph.inputs.items()}
        compiled = session.compile(graph, params)
        results = compiled.run(inputs)
        for result, truth in zip(
            results, ost.Session("cpu").compile(graph, params).run(inputs), strict=True
        ):
            error = np.abs(result.astype(np.float64) - truth).max()
            assert error <= 2e-2 * np.abs(truth).max(), f"{graph.name}: off by {error}"
        found[graph.name] = milliseconds(compiled, inputs, arguments.runs)
        print(f"{graph.name:<40} {found[graph.name]:9.3f} ms", flush=True)
    if arguments.json is not None:
        outcome = {"adapter": Gpu.opened(session.device).name, "milliseconds": found}
        arguments.json.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    main()

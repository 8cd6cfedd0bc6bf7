"""A transformer block, compiled and bound: something real to measure, here and in other processes.

Those import it as a module of its own, so it imports nothing from beside it.
"""

from __future__ import annotations

import numpy as np

import ostinato as ost

WIDTH, HEADS = 16, 2


def block_graph(length: int) -> ost.Graph:
    """Attention with a mask and a two-layer network, each after a norm and added to its input."""
    g = ost.Graph("block")
    x, mask = g.input("x", (length, WIDTH)), g.input("mask", (length,), "bool")

    def dense(v: ost.Value, name: str, n: int) -> ost.Value:
        return g.matmul(v, g.param(f"{name}.w", (v.shape[-1], n))) + g.param(f"{name}.b", (n,))

    def norm(v: ost.Value, name: str) -> ost.Value:
        return g.layer_norm(v, g.param(f"{name}.w", (WIDTH,)), g.param(f"{name}.b", (WIDTH,)))

    def split(v: ost.Value) -> ost.Value:
        apart = g.reshape(v, (1, length, HEADS, WIDTH // HEADS))
        return g.permute_dims(apart, (0, 2, 1, 3))

    h = norm(x, "before")
    q, k, v = (split(dense(h, name, WIDTH)) for name in "qkv")
    heads = g.attention(q, k, v, mask=g.reshape(mask, (1, 1, 1, length)))
    joined = g.reshape(g.permute_dims(heads, (0, 2, 1, 3)), (length, WIDTH))
    x = x + dense(joined, "out", WIDTH)
    x = x + dense(g.gelu(dense(norm(x, "after"), "up", 4 * WIDTH)), "down", WIDTH)
    g.set_outputs({"y": x, "best": g.argmax(x, axis=1)})
    return g


def block_params(g: ost.Graph) -> dict[str, np.ndarray]:
    """Weights for it, the same every time."""
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in g.params.items()}


def compiled_block(
    threads: int, length: int = 12
) -> tuple[ost.CompiledGraph, dict[str, np.ndarray], list[np.ndarray]]:
    """The block, an array for each input, and one for each output."""
    g = block_graph(length)
    compiled = ost.Session("cpu", threads=threads).compile(g, block_params(g))
    x = np.random.default_rng(1).standard_normal((length, WIDTH)).astype(np.float32)
    feed = {"x": x, "mask": np.arange(length) > 2}
    return compiled, feed, [np.empty((length, WIDTH), np.float32), np.empty(length, np.int64)]

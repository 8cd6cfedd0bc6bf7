"""Layers of experts that the tests of this folder share, and their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import ostinato as ost

__all__ = [
    "EXPERTS",
    "FEATURES",
    "HIDDEN",
    "ONE",
    "ROOM",
    "graph",
    "pair",
    "split",
    "tokens_of",
    "weights_of",
]

Array = np.ndarray[Any, Any]

EXPERTS, FEATURES, HIDDEN = 7, 40, 97  # the last one fills no vectors and no panels
ONE = 3 * FEATURES * HIDDEN * 4  # bytes of an expert, in its own form
ROOM = 3 * FEATURES * 4 * 128  # more than an expert takes in a device's form


def graph(
    tokens: Any = 1, dtype: Any = "float32", layers: int = 2, hidden: int = HIDDEN
) -> ost.Graph:
    """Layers that choose two experts for each token."""
    g = ost.Graph("layers")
    x = g.input("x", (tokens, FEATURES), dtype)
    for number in range(layers):
        router = g.param(f"{number}.router", (FEATURES, EXPERTS), dtype)
        wide, narrow = (EXPERTS, FEATURES, hidden), (EXPERTS, hidden, FEATURES)
        shapes = {"gate": wide, "up": wide, "down": narrow}
        matrices = [g.param(f"{number}.{name}", s, dtype) for name, s in shapes.items()]
        x = x + g.moe(x, router, *matrices, k=2)
    g.set_outputs([x])
    return g


def weights_of(g: ost.Graph) -> dict[str, Array]:
    """Contents of all params."""
    rng = np.random.default_rng(5)
    return {
        name: (rng.standard_normal(p.shape) / np.sqrt(int(p.shape[-2]))).astype(p.dtype.numpy)
        for name, p in g.params.items()
    }


def split(weights: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The weights in memory, and those in the file."""
    inside = {name: a for name, a in weights.items() if a.ndim == 2}
    return inside, {name: a for name, a in weights.items() if a.ndim == 3}


def tokens_of(count: int, dtype: Any = np.float32, seed: int = 0) -> dict[str, Array]:
    """Inputs of the graph."""
    return {"x": np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(dtype)}


def pair(
    session: ost.Session,
    folder: Path,
    budget: int | None,
    tokens: Any = 1,
    dtype: Any = "float32",
    **options: bool,
) -> tuple[ost.CompiledGraph, ost.CompiledGraph]:
    """The graph with its experts in a file, and with all of them in memory."""
    g, chosen = graph(tokens, dtype), ost.CompileOptions(**options)
    weights, path = weights_of(g), folder / "experts.safetensors"
    inside, outside = split(weights)
    ost.moe.write_safetensors(path, outside)
    stored = session.compile(
        g, params=inside, experts=ost.moe.ExpertFile(path), expert_budget=budget, options=chosen
    )
    return stored, session.compile(g, params=weights, options=chosen)

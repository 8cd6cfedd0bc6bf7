"""Graphs of paged attention, and operands for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.ops.builder import Graph
from ostinato.variables import Variable

Array = np.ndarray[Any, Any]

ROWS = Variable("n", 1, 80)


def attend(
    rows: Any = ROWS,
    heads: tuple[int, int] = (4, 2),
    depth: tuple[int, int] = (16, 24),
    blocks: tuple[Any, int] = (24, 64),
    table: tuple[Any, Any] = (3, 8),
    pool: str = "bfloat16",
    dtype: str = "float32",
    sinks: bool = False,
    **options: Any,
) -> Graph:
    g = Graph("paged_attention")
    operands = [
        g.input("q", (rows, heads[0], depth[0]), dtype),
        g.input("keys", (*blocks, heads[1], depth[0]), pool),
        g.input("values", (*blocks, heads[1], depth[1]), pool),
        g.input("table", table, "int32"),
        g.input("sequence", (rows,), "int32"),
        g.input("position", (rows,), "int32"),
    ]
    if pool == "int8":
        shape = (*blocks, heads[1])
        options["key_scales"] = g.input("key_scales", shape, "float32")
        options["value_scales"] = g.input("value_scales", shape, "float16")
    if sinks:
        options["sinks"] = g.input("sinks", (heads[0],))
    g.set_outputs([g.paged_attention(*operands, **options)])
    return g


def arrays_of(g: Graph, rows: int) -> dict[str, Array]:
    """Random operands; the blocks of sequences do not overlap, where there are enough."""
    rng = np.random.default_rng(3)
    arrays = {}
    for name, value in g.inputs.items():
        shape = tuple(dim if isinstance(dim, int) else rows for dim in value.shape)
        if value.dtype.is_float:
            arrays[name] = rng.standard_normal(shape).astype(value.dtype.numpy)
        elif name in ("keys", "values"):
            arrays[name] = rng.integers(-127, 128, shape).astype(np.int8)
        if name.endswith("scales"):
            arrays[name] /= 100
    sequences, pages = g.inputs["table"].shape
    blocks, positions = g.inputs["keys"].shape[:2]
    order = np.resize(rng.permutation(blocks), sequences * pages)
    arrays["table"] = order.reshape(sequences, pages).astype(np.int32)
    arrays["sequence"] = np.sort(rng.integers(0, sequences, rows)).astype(np.int32)
    arrays["position"] = rng.integers(0, pages * positions, rows).astype(np.int32)
    return arrays


def blank_unread(arrays: dict[str, Array], window: int | None) -> None:
    """NaN in all places of pools that no row attends to."""
    length = arrays["keys"].shape[1]
    seen = np.zeros(arrays["keys"].shape[:2], bool)
    for sequence, position in zip(arrays["sequence"], arrays["position"], strict=True):
        for p in range(0 if window is None else max(0, position - window + 1), position + 1):
            seen[arrays["table"][sequence, p // length], p % length] = True
    for pool in ("keys", "values"):
        arrays[pool][~seen] = np.nan

"""Graphs and helpers for the tests of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import ostinato as ost

Array = np.ndarray[Any, Any]
SENTINEL = -77.0
ONES = np.ones(4, np.float32)


def scaled_graph(scale: float = 2.0) -> ost.Graph:
    """``y = x * w`` with a weight, and a state that adds up what it was given."""
    g = ost.Graph("scaled")
    x = g.input("x", (4,))
    total = g.state("total", (4,))
    g.assign(total, total + x)
    weight = np.full(4, scale, np.float32)
    g.set_outputs({"y": x * g.param("w", (4,), value=weight)})
    return g


def chain_graph() -> ost.Graph:
    """``x -> x + 1``: what handles feed back."""
    g = ost.Graph("chain")
    x = g.input("x", (4,))
    g.set_outputs({"next": x + 1})
    return g


def sentinels(*shape: int) -> Array:
    return np.full(shape or (4,), SENTINEL, np.float32)


def total(compiled: ost.CompiledGraph) -> float:
    """The value of the state of a scaled graph, all elements being alike."""
    state = compiled.read_handle("total")
    assert state is not None
    assert (state == state[0]).all()
    return float(state[0])


@contextmanager
def recorded(context: Any, key: int) -> Iterator[None]:
    """Record the block under ``key``."""
    context.begin_graph_capture()
    try:
        yield
    except BaseException:
        context.cancel_graph_capture()
        raise
    context.end_graph_capture(key)

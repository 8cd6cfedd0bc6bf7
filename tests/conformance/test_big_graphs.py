"""Graphs of many nodes: compile time and memory grow with the graph, not faster."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

import ostinato as ost
from ostinato.ir.graph import Value
from tests.devices.registered import open_session

from .compare import assert_close


def _chain(g: ost.Graph, x: Value) -> Value:
    y = x
    for i in range(1500):
        y = g.sin(y) if i % 3 == 0 else y * 0.99 + x if i % 3 == 1 else g.abs(y)
    return y


def _shared(g: ost.Graph, x: Value) -> Value:
    """Every value read three times: paths double at each step, values do not."""
    y = x
    for _ in range(60):
        y = g.tanh(y) + g.sigmoid(y) * y
    return y


def _non_affine(g: ost.Graph, x: Value) -> Value:
    """Views of views whose indices no simplification unwraps."""
    y = x
    for _ in range(40):
        y = g.flip(g.reshape(g.permute_dims(y, (1, 0)), (4, 6)), 0)
    return y + 1.0


def _tangled_work(g: ost.Graph, x: Value) -> Value:
    y = x
    for _ in range(40):
        y = g.reshape(g.permute_dims(y, (1, 0)), (4, 6)) * 0.5 + x
    return y


def _shifted(g: ost.Graph, x: Value) -> Value:
    y = x
    for _ in range(80):
        y = g.pad(y * 0.5, [(1, 0), (0, 0)])[:4] + x
    return y


def _normalised(g: ost.Graph, x: Value) -> Value:
    y = x
    for i in range(40):
        y = g.softmax(y + x, -1 if i % 2 else 0)
    return y


def _concatenated(g: ost.Graph, x: Value) -> Value:
    return g.concat([x * float(i) for i in range(60)], 0)


@pytest.mark.parametrize("optimize", [True, False], ids=["optimised", "unoptimised"])
@pytest.mark.parametrize(
    "build",
    [
        _chain,
        _shared,
        # XLA's time grows exponentially with views of views that it fuses.
        pytest.param(_non_affine, marks=pytest.mark.needs("lowers")),
        pytest.param(_tangled_work, marks=pytest.mark.needs("lowers")),
        _shifted,
        _normalised,
        _concatenated,
    ],
)
def test_compiles_soon_and_right(
    build: Callable[[ost.Graph, Value], Value], optimize: bool, device: str
) -> None:
    graph = ost.Graph("big")
    graph.set_outputs([build(graph, graph.input("x", (4, 6)))])
    inputs = {"x": np.random.default_rng(0).uniform(-1, 1, (4, 6)).astype(np.float32)}
    start = time.process_time()
    options = ost.CompileOptions(optimize=optimize)
    (actual,) = open_session(device, threads=1).compile(graph, options=options).run(inputs)
    # Of this process alone, and generous: what is caught is work that grows with the square.
    assert time.process_time() - start < 30
    (expected,) = ost.reference.evaluate(graph, inputs)
    assert_close(actual, expected, build.__name__)

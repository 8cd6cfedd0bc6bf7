"""Sessions and small graphs for the tests of plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.cpu import _core
from ostinato.backends.cpu.context import CpuContext
from ostinato.dtypes import FLOAT32
from ostinato.ir.types import TensorType
from ostinato.plan.buffer import Buffer
from tests.devices.registered import open_session

__all__ = ["Layers", "context", "counter", "layers", "new_buffer", "numbers", "session"]

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="session")
def session(device: str) -> ost.Session:
    return open_session(device, threads=2)


@pytest.fixture(scope="session")
def context() -> CpuContext:
    return CpuContext(ost.Device.CPU, _core.ThreadPool(2))


def new_buffer(context: CpuContext, *shape: int) -> Buffer:
    return context.empty(TensorType(FLOAT32, shape))


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@dataclass
class Layers:
    """``x @ w1``, a softmax, ``@ w2``: several kernels, with intermediates between them."""

    graph: ost.Graph
    x: ost.Value
    hidden: ost.Value
    weights: ost.Value
    y: ost.Value
    params: dict[str, Array]

    def expected(self, x: Array) -> dict[str, Array]:
        hidden = x @ self.params["w1"]
        exps = np.exp(hidden - hidden.max(-1, keepdims=True))
        weights = exps / exps.sum(-1, keepdims=True)
        return {"hidden": hidden, "weights": weights, "y": weights @ self.params["w2"]}


def layers(rows: Any = 8) -> Layers:
    graph = ost.Graph("layers")
    x = graph.input("x", (rows, 16))
    hidden = graph.matmul(x, graph.param("w1", (16, 32)))
    weights = graph.softmax(hidden)
    y = graph.matmul(weights, graph.param("w2", (32, 4)))
    graph.set_outputs({"y": y})
    params = {"w1": numbers(16, 32, seed=1), "w2": numbers(32, 4, seed=2)}
    return Layers(graph, x, hidden, weights, y, params)


def counter() -> ost.Graph:
    """Adds its input to a state, and gives the sum."""
    graph = ost.Graph("counter")
    x = graph.input("x", (3,))
    total = graph.state("total", (3,))
    after = total + x
    graph.assign(total, after)
    graph.set_outputs({"y": after * 1.0})
    return graph

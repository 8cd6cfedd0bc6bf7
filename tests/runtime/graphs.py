"""Small graphs to run, and ways to call them wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import ostinato as ost

W = np.arange(12, dtype=np.float32).reshape(4, 3) / 7 - 0.5
B = np.array([0.25, -1.0, 2.0], np.float32)
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
FED = {"x": X}


def tiny_graph() -> ost.Graph:
    """``gelu(x @ w + b)``, the graph of the quickstart."""
    g = ost.Graph("matmul_bias_gelu")
    x, w, b = g.input("x", (2, 4)), g.param("w", (4, 3)), g.param("b", (3,))
    g.set_outputs({"y": g.gelu(g.matmul(x, w) + b)})
    return g


def tiny(x: np.ndarray = X, w: np.ndarray = W, b: np.ndarray = B) -> np.ndarray:
    """The result of the tiny graph, in NumPy."""
    (y,) = ost.reference.evaluate(tiny_graph(), {"x": x}, {"w": w, "b": b})
    return y


def sized_graph() -> ost.Graph:
    """Two inputs of a symbolic length and one of a fixed shape; two outputs."""
    g = ost.Graph("sized")
    n = ost.Variable("n", 1, 16)
    a, b, c = g.input("a", (n, 4)), g.input("b", (2 * n,)), g.input("c", (4,), "int64")
    g.set_outputs({"rows": g.exp(a) + g.cast(c, "float32"), "total": g.sum(b, axis=0)})
    return g


def sized_inputs(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {
        "a": rng.random((n, 4), np.float32),
        "b": rng.random(2 * n, np.float32),
        "c": np.arange(4, dtype=np.int64),
    }


@contextmanager
def refused(
    good: Callable[[], list[np.ndarray]], error: type[Exception], *parts: str
) -> Iterator[None]:
    """Check that the block raises ``error`` with all ``parts``, and that ``good()`` still works."""
    before = [array.tobytes() for array in good()]
    with pytest.raises(error) as caught:
        yield
    assert issubclass(caught.type, ost.OstinatoError)
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in: {caught.value}"
    assert [array.tobytes() for array in good()] == before, "a refused call left something behind"


def strided(array: np.ndarray) -> np.ndarray:
    """The same elements, far apart."""
    wide = np.repeat(array[..., None], 2, axis=-1)
    return wide[..., 0]

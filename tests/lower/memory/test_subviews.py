"""Concatenations and paddings whose producers write directly into the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.ir.graph import Value

Build = Callable[[ost.Graph, Value], Value]


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


def conv(g: ost.Graph, x: Value, filters: int, kernel: int = 1, **attrs: Any) -> Value:
    channels = x.shape[1]
    assert isinstance(channels, int)
    shape = (filters, channels, kernel, kernel)
    rng = np.random.default_rng(len(g.params))
    weight = rng.standard_normal(shape).astype(np.float32) / np.float32(channels**0.5 * kernel)
    return g.conv(x, g.param(f"w{len(g.params)}", shape, value=weight), **attrs)


def made(build: Build, shape: tuple[Any, ...] = (2, 16, 9, 7)) -> ost.Graph:
    graph = ost.Graph("parts")
    graph.set_outputs([build(graph, graph.input("x", shape))])
    return graph


def kernels(session: ost.Session, graph: ost.Graph) -> Counter[str]:
    return Counter(kernel.name for kernel in session.compile(graph).plan.kernels)


def assert_right(session: ost.Session, graph: ost.Graph, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = reference.evaluate(graph, {"x": x})
    for in_place in (True, False):
        options = ost.CompileOptions(in_place=in_place)
        for mine, theirs in zip(
            session.compile(graph, options=options).run({"x": x}), expected, strict=True
        ):
            assert np.allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def joined(g: ost.Graph, x: Value) -> Value:
    a, b = g.relu(conv(g, x, 24)), conv(g, x, 32, 3, padding=1)
    return conv(g, g.concat([a, b], axis=1), 16)


def dense(g: ost.Graph, x: Value) -> Value:
    pieces = [conv(g, x, 16)]
    for _ in range(3):
        before = g.concat(pieces, axis=1) if len(pieces) > 1 else pieces[0]
        pieces.append(conv(g, g.relu(conv(g, before, 24)), 16, 3, padding=1))
    return conv(g, g.concat(pieces, axis=1), 16)


def nested(g: ost.Graph, x: Value) -> Value:
    inner = g.concat([conv(g, x, 16), conv(g, x, 20)], axis=1)
    wide = g.pad(inner, ((0, 0), (0, 0), (1, 2), (0, 3)))
    return conv(g, g.relu(conv(g, inner, 36)) + wide[:, :, 1:-2, :-3], 16)


def padded_twice(g: ost.Graph, x: Value) -> Value:
    y = g.relu(conv(g, x, 32))
    return conv(g, y, 16, 5, padding=2) + conv(g, y, 16, 3, padding=1)


def padded_with_ones(g: ost.Graph, x: Value) -> Value:
    y = g.pad(conv(g, x, 32), ((0, 1), (2, 0), (3, 0), (1, 1)), value=1.0)
    return conv(g, y, 16)


def residual_beside(g: ost.Graph, x: Value) -> Value:
    """One operand is computed from the other: a kernel must not read and write one home."""
    a = conv(g, x, 32)
    b = g.relu(conv(g, a, 32) + a)
    c = g.exp(b * 0.1) + a
    return conv(g, g.concat([a, b, c], axis=1), 16)


def twice_in_one(g: ost.Graph, x: Value) -> Value:
    a, b = conv(g, x, 16), conv(g, x, 16)
    return conv(g, g.concat([a, b, a], axis=1), 16)


def along_rows(g: ost.Graph, x: Value) -> Value:
    a, b = conv(g, x, 16), g.max_pool(conv(g, x, 16), (3, 3), stride=1, padding=1)
    return conv(g, g.concat([a, b], axis=2), 16)


def in_c_order(g: ost.Graph, x: Value) -> Value:
    """No images: rows of matrices, in an order that nothing changes."""
    flat = g.reshape(x, (-1, 63))
    a, b = g.exp(flat * 0.1), g.sum(g.reshape(x, (-1, 2, 63)), 1)
    return g.softmax(g.concat([a, b, flat], axis=0) * 2.0)


def short_pieces(g: ost.Graph, x: Value) -> Value:
    flat = g.reshape(x, (-1, 3))
    return g.softmax(g.concat([g.exp(flat * 0.1), g.sin(flat)], axis=1))


def with_an_empty_one(g: ost.Graph, x: Value) -> Value:
    a, b = conv(g, x, 16), conv(g, x, 32)
    return conv(g, g.concat([a, b[:, :0], b], axis=1), 16)


BUILDS: list[Build] = [
    joined, dense, nested, padded_twice, padded_with_ones, residual_beside, twice_in_one,
    along_rows, in_c_order, short_pieces, with_an_empty_one,
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_results(build: Build, session: ost.Session) -> None:
    assert_right(session, made(build), (2, 16, 9, 7))


@pytest.mark.parametrize("build", [joined, dense, padded_twice, residual_beside])
def test_symbolic_sizes(build: Build, session: ost.Session) -> None:
    n, h, w = ost.Variable("n", 1, 3), ost.Variable("h", 3, 9), ost.Variable("w", 3, 9)
    graph = made(build, (n, 16, h, w))
    for shape in ((1, 16, 3, 9), (3, 16, 9, 3), (2, 16, 8, 5)):
        assert_right(session, graph, shape)


@pytest.mark.parametrize("build", [joined, dense])
def test_nothing_is_put_together(build: Build, session: ost.Session) -> None:
    assert "concat" not in kernels(session, made(build))


def test_no_padding_is_copied(session: ost.Session) -> None:
    """Nothing but the border is written by the kernel of a ``pad``."""
    plan = session.compile(made(joined, (1, 16, 40, 40))).plan
    profile = [k for k in plan.kernels if k.name == "pad"]
    assert len(profile) == 1  # of the input, which is not ours to place
    graph = made(lambda g, x: conv(g, g.relu(conv(g, x, 32)), 16, 3, padding=1), (1, 16, 40, 40))
    (pad,) = [k for k in session.compile(graph).plan.kernels if k.name == "pad"]
    assert "read" not in pad.loops


def test_results_of_the_graph_are_their_own(session: ost.Session) -> None:
    """A piece that is a result as well, and a concatenation that is one."""
    graph = ost.Graph("results")
    x = graph.input("x", (2, 16, 5, 5))
    a, b = conv(graph, x, 16), conv(graph, x, 32)
    graph.set_outputs([graph.concat([a, b], axis=1), a])
    assert_right(session, graph, (2, 16, 5, 5))


def test_a_state_is_no_part(session: ost.Session) -> None:
    graph = ost.Graph("state")
    x, state = graph.input("x", (4, 32)), graph.state("s", (4, 32))
    new = graph.exp(x) + state
    graph.assign(state, new)
    graph.set_outputs([graph.concat([graph.sin(x), new], axis=0) * 2.0])
    compiled = session.compile(graph)
    given = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    total = np.zeros_like(given)
    for _ in range(3):
        total = total + np.exp(given)
        (got,) = compiled.run({"x": given})
        assert np.allclose(got, 2 * np.concatenate([np.sin(given), total]), rtol=1e-5)

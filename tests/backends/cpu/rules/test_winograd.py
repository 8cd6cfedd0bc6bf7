"""Winograd's convolution: when it is chosen, and that it computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.backends.cpu import processor_facts
from ostinato.backends.cpu.rules import winograd

#: Largest error for one float32 rounding unit and the largest ``|x|`` times the sum of ``|w|`` of a
#: filter (docs/convolutions.md).
BOUND = 8.0

Graph = tuple[ost.Graph, dict[str, np.ndarray[Any, Any]]]


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


def conv_graph(
    images: Any, channels: int, filters: int, height: Any, width: Any, *, padding: Any = 1,
    bias: bool = True, residual: bool = False, seed: int = 0,
) -> Graph:  # fmt: skip
    rng = np.random.default_rng(seed)
    graph = ost.Graph("conv")
    x = graph.input("x", (images, channels, height, width))
    params = {"w": rng.standard_normal((filters, channels, 3, 3)).astype(np.float32)}
    operands = [graph.param("w", (filters, channels, 3, 3))]
    if bias:
        params["b"] = rng.standard_normal(filters).astype(np.float32)
        operands.append(graph.param("b", (filters,)))
    y = graph.conv(x, *operands, padding=padding)
    if residual:
        y = graph.relu(y + graph.input("r", y.shape))
    graph.set_outputs({"y": y})
    return graph, params


def kernel_names(compiled: ost.CompiledGraph) -> list[str]:
    return [kernel.name for kernel in compiled.plan.kernels]


def is_winograd(compiled: ost.CompiledGraph) -> bool:
    return "products" in kernel_names(compiled)


def inputs_of(graph: ost.Graph) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return {
        name: rng.standard_normal(value.shape).astype(np.float32)  # type: ignore[arg-type]
        for name, value in graph.inputs.items()
    }


def assert_close(
    session: ost.Session, made: Graph, *, winograd: bool = True, target: str = "host"
) -> None:
    graph, params = made
    # The choice of tiles is what these tests change: it is made anew for every graph.
    options = ost.CompileOptions(target=target, stored_programs=False)
    compiled = session.compile(graph, params, options=options)
    assert is_winograd(compiled) == winograd
    inputs = inputs_of(graph)
    (got,) = compiled.run(inputs)
    (expected,) = reference.evaluate(graph, inputs, params)
    scale = np.abs(inputs["x"]).max() * np.abs(params["w"]).sum(axis=(1, 2, 3)).max()
    error = np.abs(np.asarray(got, np.float64) - expected).max()
    assert error <= BOUND * np.finfo(np.float32).eps * scale


# -- results -------------------------------------------------------------------------------------

SHAPES = [
    (1, 16, 16, 8, 8),  # whole tiles and vectors
    (1, 64, 64, 12, 16),
    (2, 31, 37, 13, 11),  # primes
    (3, 17, 16, 9, 10),  # one row, two columns more than whole tiles
    (1, 48, 33, 4, 41),  # one row of tiles
    (1, 100, 129, 7, 7),
    (5, 32, 24, 5, 6),
]


@pytest.fixture(params=[2, 4])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A tile that is taken whether or not it is the fastest."""
    tile: int = request.param
    monkeypatch.setattr(winograd, "winograd_tile", lambda *_: tile)
    return tile


@pytest.mark.parametrize(
    ("target", "shape"),
    [*(("host", s) for s in SHAPES), *(("avx2", s) for s in SHAPES[::3]),
     *(("sse2", s) for s in SHAPES[2::3])],
)  # fmt: skip
def test_shapes(shape: tuple[int, ...], target: str, forced: int, session: ost.Session) -> None:
    assert_close(session, conv_graph(*shape, residual=shape[0] > 1), target=target)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 3, 5, 2, 3), (1, 7, 1, 1, 9)], ids=str)
def test_tiny_shapes(shape: tuple[int, ...], forced: int, session: ost.Session) -> None:
    assert_close(session, conv_graph(*shape))


def test_valid_windows(forced: int, session: ost.Session) -> None:
    assert_close(session, conv_graph(1, 20, 24, 9, 8, padding=0))


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 6))]
)
def test_random_shapes(seed: int, session: ost.Session) -> None:
    rng = np.random.default_rng(seed)
    images, channels, filters = (int(rng.integers(*r)) for r in ((1, 4), (24, 80), (24, 80)))
    height, width = (int(n) for n in rng.integers(8, 24, 2))
    low, high = (int(n) for n in rng.integers(0, 3, 2))
    padding = ((low, high), (high, low))
    made = conv_graph(
        images, channels, filters, height, width,
        padding=padding, bias=bool(seed % 2), residual=seed % 3 == 0, seed=seed,
    )  # fmt: skip
    assert_close(session, made)


def test_small_tiles(session: ost.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few positions and many weights: tiles of two, whose weights are fewer."""
    monkeypatch.setattr(processor_facts, "slow_memory", lambda: False)
    made = conv_graph(1, 192, 192, 4, 4)
    compiled = session.compile(*made, options=ost.CompileOptions(stored_programs=False))
    products = next(k for k in compiled.plan.kernels if k.name == "products")
    assert "for i0: 0..15" in products.loops
    assert_close(session, made)


def test_a_chain_keeps_its_channels_last(session: ost.Session) -> None:
    graph, params = ost.Graph("chain"), {}
    x = y = graph.input("x", (1, 3, 24, 24))
    rng = np.random.default_rng(0)
    for step, (channels, filters) in enumerate(((3, 32), (32, 48), (48, 32))):
        name, shape = f"w{step}", (filters, channels, 3, 3)
        params[name] = rng.standard_normal(shape).astype(np.float32) / (3 * channels**0.5)
        y = graph.relu(graph.conv(y, graph.param(name, shape), padding=1))
    y = graph.max_pool(y, (2, 2), stride=2)
    graph.set_outputs({"y": y})
    inputs = inputs_of(graph)
    (got,) = session.compile(graph, params).run(inputs)
    (expected,) = reference.evaluate(graph, inputs, params)
    assert x.shape == (1, 3, 24, 24)
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_symbolic_sizes(session: ost.Session) -> None:
    n, h, w = (ost.Variable(name, low, 20) for name, low in (("n", 1), ("h", 1), ("w", 3)))
    graph, params = conv_graph(n, 24, 40, h, w)
    compiled = session.compile(graph, params)
    assert is_winograd(compiled)
    for sizes in ((1, 1, 3), (3, 20, 20), (2, 7, 9), (20, 4, 5)):
        inputs = {"x": np.random.default_rng(0).standard_normal((sizes[0], 24, *sizes[1:]))}
        inputs["x"] = inputs["x"].astype(np.float32)
        (got,) = compiled.run(inputs)
        (expected,) = reference.evaluate(graph, inputs, params)
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_weights_written_again(session: ost.Session) -> None:
    graph, params = conv_graph(1, 32, 32, 12, 12, bias=False)
    compiled = session.compile(graph, params)
    inputs = inputs_of(graph)
    (before,) = compiled.run(inputs)
    compiled.set_param("w", -2 * params["w"])
    (after,) = compiled.run(inputs)
    assert np.allclose(after, -2 * np.asarray(before), rtol=1e-6, atol=1e-6)


def test_results_do_not_depend_on_threads() -> None:
    made = conv_graph(2, 32, 48, 18, 22)
    inputs = inputs_of(made[0])
    results = [
        np.asarray(*ost.Session("cpu", threads=threads).compile(*made).run(inputs))
        for threads in (1, 2, 3)
    ]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize(("height", "width"), [(14, 14), (13, 27)])
def test_prefetching_changes_no_bit(session: ost.Session, height: int, width: int) -> None:
    """The panels of all points together come from memory, though those of a point fit a cache."""
    graph, params = conv_graph(1, 160, 272, height, width)
    inputs, results = inputs_of(graph), []
    for prefetch in (True, False):
        options = ost.CompileOptions(prefetch=prefetch, target="avx2")
        compiled = session.compile(graph, params, options=options)
        (products,) = (k.loops for k in compiled.plan.kernels if k.name == "products")
        assert ("prefetch" in products) == prefetch
        results.append(compiled.run(inputs)[0].tobytes())
    assert results[0] == results[1]


def test_large_and_small_magnitudes(session: ost.Session) -> None:
    """Errors scale with the numbers: nothing is lost, short of overflow and underflow."""
    graph, params = conv_graph(1, 32, 32, 12, 12, bias=False)
    inputs = inputs_of(graph)
    compiled = session.compile(graph, params)
    (plain,) = compiled.run(inputs)
    for power in (2.0**100, 2.0**-80):
        (scaled,) = compiled.run({"x": inputs["x"] * np.float32(power)})
        assert np.array_equal(np.asarray(scaled), np.asarray(plain) * np.float32(power))


# -- choice --------------------------------------------------------------------------------------


def test_off_switch(session: ost.Session) -> None:
    graph, params = conv_graph(1, 64, 64, 16, 16)
    inputs = inputs_of(graph)
    on = session.compile(graph, params)
    off = session.compile(graph, params, options=ost.CompileOptions(winograd=False))
    plain = session.compile(graph, params, options=ost.CompileOptions(optimize=False))
    assert is_winograd(on)
    assert not is_winograd(off)
    assert not is_winograd(plain)
    (a,), (b,) = on.run(inputs), off.run(inputs)
    assert np.allclose(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_other_dtypes_keep_their_windows(dtype: str, session: ost.Session) -> None:
    graph = ost.Graph("conv")
    x, w = graph.input("x", (1, 64, 16, 16), dtype), graph.param("w", (64, 64, 3, 3), dtype)
    graph.set_outputs([graph.conv(x, w, padding=1)])
    assert not is_winograd(session.compile(graph))


@pytest.mark.parametrize(
    ("weight", "attrs"),
    [
        ((64, 64, 3, 3), {"stride": 2}),
        ((64, 64, 3, 3), {"dilation": 2}),
        ((64, 32, 3, 3), {"groups": 2}),
        ((64, 64, 3, 1), {}),
        ((64, 64, 5, 5), {}),
        ((64, 64, 1, 1), {}),
        ((2, 64, 3, 3), {}),  # the transforms would cost more than they save
    ],
)
def test_other_windows_stay(
    weight: tuple[int, ...], attrs: dict[str, int], session: ost.Session
) -> None:
    graph = ost.Graph("conv")
    x, w = graph.input("x", (1, 64, 20, 20)), graph.param("w", weight)
    graph.set_outputs([graph.conv(x, w, **attrs)])
    assert not is_winograd(session.compile(graph))


def test_weights_that_change_keep_their_windows(session: ost.Session) -> None:
    graph = ost.Graph("conv")
    x, w = graph.input("x", (1, 64, 20, 20)), graph.input("w", (64, 64, 3, 3))
    graph.set_outputs([graph.conv(x, w)])
    assert not is_winograd(session.compile(graph))


def test_no_more_positions_than_weights_are_worth(session: ost.Session) -> None:
    assert not is_winograd(session.compile(*conv_graph(1, 64, 64, 1, 2)))


def convolution(channels: int, extent: int) -> ost.Node:
    """A convolution of a padded image, as lowering meets it."""
    graph, _ = conv_graph(1, channels, channels, extent + 2, extent + 2, padding=0)
    (node,) = (node for node in graph.nodes if node.op.name == "conv")
    return node


def test_slow_memory_asks_for_fewer_points() -> None:
    node = convolution(512, 7)
    assert winograd.winograd_tile(node) == 4
    assert winograd.winograd_tile(node, lambda: False) == 4
    assert winograd.winograd_tile(node, lambda: True) == 2


def test_memory_is_not_measured_where_it_does_not_matter() -> None:
    def never() -> bool:
        raise AssertionError("no trial is needed here")

    node = convolution(64, 56)
    assert winograd.winograd_tile(node, never) == winograd.winograd_tile(node)

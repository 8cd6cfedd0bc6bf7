"""Images with their channels last in memory, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ostinato as ost
from ostinato import reference
from ostinato.ir.graph import Value

Build = Callable[["Net"], Value]


class Net:
    """A graph with weights made as they are needed."""

    def __init__(self, shape: tuple[Any, ...] = (2, 3, 13, 11)) -> None:
        self.graph = ost.Graph("net")
        self.x = self.graph.input("x", shape)
        self.params: dict[str, np.ndarray[Any, Any]] = {}
        self._rng = np.random.default_rng(7)

    def weight(self, *shape: int) -> Value:
        name = f"w{len(self.params)}"
        fan = int(np.prod(shape[1:])) or 1
        self.params[name] = (self._rng.standard_normal(shape) / fan**0.5).astype(np.float32)
        return self.graph.param(name, shape)

    def conv(self, x: Value, filters: int, kernel: int = 3, **attrs: Any) -> Value:
        channels = x.shape[1]
        assert isinstance(channels, int)
        groups = attrs.get("groups", 1)
        weight = self.weight(filters, channels // groups, kernel, kernel)
        return self.graph.conv(x, weight, self.weight(filters), **attrs)


def residual(net: Net) -> Value:
    g = net.graph
    x = g.relu(net.conv(net.x, 32, 3, stride=2, padding=1))
    y = net.conv(g.relu(net.conv(x, 16, 1)), 32, 3, padding=1)
    return net.conv(g.relu(x + y), 24, 1)


def pools(net: Net) -> Value:
    g = net.graph
    x = g.max_pool(net.conv(net.x, 20, 3), (3, 3), stride=2, padding=1)
    x = g.avg_pool(net.conv(x, 33, 1), (2, 2), padding=((1, 0), (0, 1)))
    return net.conv(x, 17, 1)


def concatenated(net: Net) -> Value:
    g = net.graph
    x = net.conv(net.x, 16, 1)
    a, b = g.relu(net.conv(x, 19, 1)), g.relu(net.conv(x, 32, 3, padding=1))
    joined = g.concat([a, x, b], axis=1)
    again = g.concat([joined, net.conv(joined, 16, 1)], axis=1)
    return net.conv(g.relu(again * net.weight(1, 83, 1, 1)), 16, 1)


def twice_concatenated(net: Net) -> Value:
    """An operand of two concatenations, and one that stands twice in one."""
    g = net.graph
    x, y = net.conv(net.x, 16, 1), net.conv(net.x, 24, 3, padding=1)
    left, right = g.concat([x, y], axis=1), g.concat([y, x, y], axis=1)
    return net.conv(left, 18, 1) + net.conv(right, 18, 1)


def depthwise(net: Net) -> Value:
    g = net.graph
    x = net.conv(net.x, 24, 1)
    x = g.relu(net.conv(x, 24, 3, groups=24, padding=1))
    x = net.conv(x, 48, 3, groups=24, stride=2, padding=((0, 1), (1, 0)))
    return net.conv(x, 16, 1)


def shuffled(net: Net) -> Value:
    g = net.graph
    x = net.conv(net.x, 24, 1)
    n, c, h, w = x.shape
    x = g.reshape(x, (n, 4, 6, h, w))
    x = g.reshape(g.permute_dims(x, (0, 2, 1, 3, 4)), (n, c, h, w))
    x = net.conv(x, 24, 3, groups=24, padding=1)
    return net.conv(g.relu(x), 32, 1, groups=4)


def split(net: Net) -> Value:
    """Channels that part, and meet again beside an image that is made larger."""
    g = net.graph
    x = g.silu(net.conv(net.x, 48, 1))
    low, high = g.split(x, 2, axis=1)
    y = g.silu(net.conv(high, 24, 3, padding=1)) + high
    joined = net.conv(g.concat([low, high, y], axis=1), 32, 1)
    larger = g.repeat(g.repeat(joined, 2, 2), 2, 3)
    return net.conv(g.concat([larger, net.conv(larger, 16, 1)], axis=1), 16, 1)


def squeezed(net: Net) -> Value:
    """Squeeze and excite: a mean over positions that scales channels."""
    g = net.graph
    x = net.conv(net.x, 32, 3, padding=1)
    scale = g.sigmoid(net.conv(g.relu(net.conv(g.mean(x, (2, 3), keepdims=True), 16, 1)), 32, 1))
    return net.conv(x * scale, 16, 1)


def classified(net: Net) -> Value:
    g = net.graph
    x = g.relu(net.conv(net.x, 32, 3, padding=1))
    flat = g.reshape(net.conv(x, 16, 1), (x.shape[0], -1))
    assert isinstance(flat.shape[1], int)
    pooled = g.matmul(g.mean(x, (2, 3)), net.weight(32, 10))
    return g.softmax(pooled + g.matmul(flat, net.weight(flat.shape[1], 10)))


def normalised(net: Net) -> Value:
    g = net.graph
    x = net.conv(net.x, 32, 3, padding=1)
    x = g.instance_norm(x, net.weight(32), net.weight(32))
    return net.conv(g.relu(x), 16, 1)


def a_result_on_the_way(net: Net) -> Value:
    g = net.graph
    x = g.relu(net.conv(net.x, 32, 3, padding=1))
    y = net.conv(x, 32, 1)
    g.set_outputs([x])
    return g.relu(x + y)


def volumes(net: Net) -> Value:
    g = net.graph
    x = g.conv(g.reshape(net.x, (2, 3, 13, 11, 1)), net.weight(24, 3, 3, 1, 1), padding=1)
    return g.max_pool(g.conv(x, net.weight(16, 24, 1, 2, 2)), (2, 2, 1))


def signals(net: Net) -> Value:
    """One spatial axis, as audio has."""
    g = net.graph
    x = g.reshape(net.x, (2, 3, 143))
    x = g.relu(g.conv(x, net.weight(32, 3, 5), net.weight(32), stride=2, padding=2))
    x = g.relu(g.conv(x, net.weight(32, 1, 3), groups=32, padding=((2, 0),)))
    return g.conv(g.max_pool(x, (2,)), net.weight(16, 32, 3), dilation=2)


BUILDS: list[Build] = [
    residual, pools, concatenated, twice_concatenated, depthwise, shuffled, split, squeezed,
    classified, normalised, a_result_on_the_way, volumes, signals,
]  # fmt: skip


@pytest.fixture(scope="module")
def session() -> ost.Session:
    return ost.Session("cpu", threads=2)


@pytest.mark.parametrize(
    ("target", "build"),
    [*(("host", b) for b in BUILDS), *(("avx2", b) for b in BUILDS[::2]),
     *(("sse2", b) for b in BUILDS[1::2])],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_results(build: Build, target: str, session: ost.Session) -> None:
    net = Net()
    result = build(net)
    net.graph.set_outputs([*net.graph.outputs.values(), result])
    shape = [int(d) for d in net.x.shape]  # type: ignore[arg-type]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = reference.evaluate(net.graph, {"x": x}, net.params)
    for channels_last in (True, False) if target == "host" else (True,):
        options = ost.CompileOptions(target=target, channels_last=channels_last)
        got = session.compile(net.graph, net.params, options=options).run({"x": x})
        for mine, theirs in zip(got, expected, strict=True):
            assert np.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [residual, pools, concatenated, depthwise, shuffled, split])
def test_symbolic_sizes(build: Build, session: ost.Session) -> None:
    n, h, w = ost.Variable("n", 1, 3), ost.Variable("h", 5, 16), ost.Variable("w", 5, 16)
    net = Net((n, 3, h, w))
    net.graph.set_outputs([build(net)])
    compiled = session.compile(net.graph, net.params)
    for shape in ((1, 3, 5, 16), (3, 3, 16, 7), (2, 3, 11, 13)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        (got,) = compiled.run({"x": x})
        (expected,) = reference.evaluate(net.graph, {"x": x}, net.params)
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_every_value_can_be_kept(build: Build, session: ost.Session) -> None:
    """Plans that keep intermediate values hold them in C order."""
    net = Net()
    net.graph.set_outputs([build(net)])
    options = ost.CompileOptions(keep_intermediates=True)
    plan = session.prepare(net.graph, net.params, options=options)
    assert all(buffer is not None for buffer in plan.inputs.values())


def test_a_chain_of_convolutions_is_channels_last(session: ost.Session) -> None:
    net = Net((1, 32, 14, 14))
    net.graph.set_outputs([net.conv(net.graph.relu(net.conv(net.x, 32, 1)), 32, 1)])
    for channels_last in (True, False):
        options = ost.CompileOptions(channels_last=channels_last)
        compiled = session.compile(net.graph, net.params, options=options)
        first, second = (k.loops for k in compiled.plan.kernels if "conv" in k.name)
        assert ("b3[32*i0 + i1] = " in first) == channels_last
        assert ("b3[196*i1 + i0] = " in first or "b3[i0 + 196*i1] = " in first) != channels_last
        assert "b3[i0 + 196*i1] = " in second


def test_slices_of_channels_keep_them_last(session: ost.Session) -> None:
    net = Net((1, 32, 14, 14))
    g = net.graph
    low, high = g.split(g.relu(net.conv(net.x, 64, 1)), 2, axis=1)
    g.set_outputs([net.conv(g.concat([low, high, g.relu(net.conv(high, 32, 1))], axis=1), 32, 1)])
    compiled = session.compile(g, net.params)
    first, *_ = (k.loops for k in compiled.plan.kernels if "conv" in k.name)
    assert "b3[96*i0 + i1] = " in first, "written where the concatenation has it, channels last"
    # What reads its home is not written there: one copy.
    assert [kernel.name for kernel in compiled.plan.kernels].count("concat") == 1

"""The accuracy of elementary functions, whose built-in counterparts may be far off."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ostinato as ost
from ostinato.backends.webgpu.gpu import Gpu
from ostinato.records import replace

#: Ranges, and functions of NumPy.
FUNCTIONS = {
    "exp": (-87.0, 88.0, np.exp),
    "exp2": (-126.0, 127.0, np.exp2),
    "expm1": (-10.0, 80.0, np.expm1),
    "tanh": (-10.0, 10.0, np.tanh),
    "sinh": (-80.0, 80.0, np.sinh),
    "cosh": (-80.0, 80.0, np.cosh),
    "log": (1e-30, 1e30, np.log),
    "log2": (1e-3, 1e30, np.log2),
    "log10": (1e-3, 1e30, np.log10),
    "log1p": (-0.99, 100.0, np.log1p),
    "sin": (-3e4, 3e4, np.sin),
    "cos": (-100.0, 100.0, np.cos),
    "tan": (-100.0, 100.0, np.tan),
    "asin": (-1.0, 1.0, np.arcsin),
    "acos": (-1.0, 1.0, np.arccos),
    "atan": (-50.0, 50.0, np.arctan),
    "asinh": (-100.0, 100.0, np.arcsinh),
    "acosh": (1.0, 100.0, np.arccosh),
    "atanh": (-0.99, 0.99, np.arctanh),
    "erf": (-4.0, 4.0, np.vectorize(math.erf)),
}

#: Units in the last place: twice what was measured, at most.
MOST_ULPS = 4.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(session: ost.Session, name: str) -> None:
    low, high, function = FUNCTIONS[name]
    x = np.random.default_rng(0).uniform(low, high, 20_000).astype(np.float32)
    graph = ost.Graph(name)
    graph.set_outputs([getattr(graph, name)(graph.input("x", x.shape))])
    (found,) = session.compile(graph).run({"x": x})
    truth = function(x.astype(np.float64))
    ulps = np.abs(found - truth) / np.spacing(np.abs(truth).astype(np.float32))
    worst = int(ulps.argmax())
    assert ulps[worst] <= MOST_ULPS, f"{name}({x[worst]}): off by {ulps[worst]:.1f}"


def test_angles_of_any_size(session: ost.Session) -> None:
    """Reduced by as many digits of 2 / pi as they have."""
    x = np.float32(2.0) ** np.arange(-20, 128, dtype=np.float32)
    x = np.concatenate([x, x * np.float32(1.2345678), -x])
    graph = ost.Graph("angles")
    angle = graph.input("x", x.shape)
    graph.set_outputs([graph.sin(angle), graph.cos(angle)])
    sine, cosine = session.compile(graph).run({"x": x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(sine, np.sin(wide), rtol=2e-6, atol=1e-9)
    np.testing.assert_allclose(cosine, np.cos(wide), rtol=2e-6, atol=1e-9)


def test_powers_near_the_ends_of_the_range(session: ost.Session) -> None:
    x = np.array([3.4028235e38, 1e-38, 1.0000001, 0.99999994, 1.5], np.float32)
    y = np.array([1.0, 1.0, 7.0e8, 1.2e9, 218.0], np.float32)
    graph = ost.Graph("powers")
    graph.set_outputs([graph.pow(graph.input("x", x.shape), graph.input("y", y.shape))])
    (found,) = session.compile(graph).run({"x": x, "y": y})
    np.testing.assert_allclose(found, x.astype(np.float64) ** y.astype(np.float64), rtol=2e-5)


def test_zero_is_no_shortcut(session: ost.Session) -> None:
    """Compilers know some operands to be zero: the sum of nothing, and a constant."""
    graph = ost.Graph("zeros")
    nothing, x = graph.input("nothing", (0, 4)), graph.input("x", (4,))
    sums = graph.sum(nothing, axis=0)
    graph.set_outputs([sums / x, 0.0 / x, x * 0.0, -0.0 * x])
    given = {
        "nothing": np.zeros((0, 4), np.float32),
        "x": np.array([0.0, np.nan, np.inf, -2.0], np.float32),
    }
    for mine, truth in zip(
        session.compile(graph).run(given), ost.reference.evaluate(graph, given), strict=True
    ):
        np.testing.assert_array_equal(mine, truth)
        numbers = ~np.isnan(truth)
        np.testing.assert_array_equal(np.signbit(mine[numbers]), np.signbit(truth[numbers]))


def test_quotients(session: ost.Session) -> None:
    """Rounded once, where a device multiplies and adds without rounding in between: GPUs do."""
    x, y = np.random.default_rng(0).lognormal(sigma=8, size=(2, 20_000)).astype(np.float32)
    graph = ost.Graph("quotients")
    graph.set_outputs([graph.input("x", x.shape) / graph.input("y", y.shape)])
    (found,) = session.compile(graph).run({"x": x, "y": y})
    software = Gpu.opened(session.device).driver.adapter.kind == "CPU"
    np.testing.assert_array_max_ulp(found, x / y, maxulp=1 if software else 0)


@pytest.mark.parametrize("halves", [False, True])
def test_conversions_of_halves_are_exact(
    session: ost.Session, monkeypatch: pytest.MonkeyPatch, halves: bool
) -> None:
    """Of every half, and of floats near and beyond them; subnormal ones too."""
    gpu = Gpu.opened(session.device)
    monkeypatch.setitem(gpu.__dict__, "target", replace(gpu.target, halves=halves))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[~np.isnan(every)]
    wide = every.astype(np.float32)
    near = np.concatenate([wide * np.float32(f) for f in (1, 1.0004, 0.9997, 1.00049)])
    ends = np.array([65519.996, 65520, 1e9, -np.inf, 2**-25, 3 * 2**-26, 2**-149], np.float32)
    x = np.concatenate([near, ends])
    graph = ost.Graph("halves")
    narrowed = graph.cast(graph.input("x", x.shape), "float16")
    graph.set_outputs([narrowed, graph.cast(narrowed, "float32")])
    widened = ost.Graph("widened")
    widened.set_outputs([widened.cast(widened.input("x", every.shape, "float16"), "float32")])
    with np.errstate(over="ignore"):
        truth = x.astype(np.float16)
    found = session.compile(graph).run({"x": x})
    np.testing.assert_array_equal(found[0].view(np.uint16), truth.view(np.uint16))
    np.testing.assert_array_equal(found[1], truth.astype(np.float32))
    (back,) = session.compile(widened).run({"x": every})
    np.testing.assert_array_equal(back.view(np.uint32), wide.view(np.uint32))


def test_a_tangent_of_a_quotient(session: ost.Session) -> None:
    """Signs are copied right by compilers that look through quotients, too."""
    x = np.random.default_rng(0).normal(size=(11, 70)).astype(np.float32)
    graph = ost.Graph("quotient")
    operand = graph.input("x", x.shape)
    graph.set_outputs([graph.tanh(graph.sum(operand * operand, 1) / 5.0)])
    (found,) = session.compile(graph).run({"x": x})
    np.testing.assert_allclose(found, np.tanh((x.astype(np.float64) ** 2).sum(1) / 5), rtol=1e-6)

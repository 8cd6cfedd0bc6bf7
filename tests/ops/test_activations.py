"""Activations against their textbook formulas, and the same rules in plain float32."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.ops import OPS
from ostinato.ops.namespace import ORACLE

#: Activation -> attributes, and the formula on one Python float.
FORMULAS = {
    "relu": ({}, lambda x: max(x, 0.0)),
    "relu6": ({}, lambda x: min(max(x, 0.0), 6.0)),
    "leaky_relu": ({"alpha": 0.1}, lambda x: x if x > 0 else 0.1 * x),
    "thresholded_relu": ({"alpha": 1.5}, lambda x: x if x > 1.5 else 0.0),
    "elu": ({"alpha": 0.7}, lambda x: x if x > 0 else 0.7 * math.expm1(x)),
    "selu": (
        {},
        lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    ),
    "celu": ({"alpha": 2.0}, lambda x: max(x, 0.0) + min(0.0, 2.0 * math.expm1(x / 2.0))),
    "sigmoid": ({}, lambda x: _sigmoid(x)),
    "log_sigmoid": ({}, lambda x: -_softplus(-x)),
    "hard_sigmoid": ({"alpha": 0.2, "beta": 0.4}, lambda x: min(max(0.2 * x + 0.4, 0.0), 1.0)),
    "silu": ({}, lambda x: x * _sigmoid(x)),
    "hard_swish": ({}, lambda x: x * min(max(x + 3, 0.0), 6.0) / 6),
    "hard_tanh": ({"min": -2.0, "max": 0.5}, lambda x: min(max(x, -2.0), 0.5)),
    "softplus": ({}, lambda x: _softplus(x)),
    "softsign": ({}, lambda x: x / (1 + abs(x))),
    "mish": ({}, lambda x: x * math.tanh(_softplus(x))),
    "gelu": ({"approximate": False}, lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))),
}


def _sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_follow_their_formulas(run, rng, name):
    attrs, formula = FORMULAS[name]
    x = np.concatenate([rng.uniform(-8, 8, 40), [0.0, -0.0, 50.0, -50.0]])
    got = run(lambda g, x: getattr(g, name)(x, **attrs), x)
    np.testing.assert_allclose(got, [formula(v) for v in x], rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_rules_hold_in_float32(name):
    """Code generators run the very same rules in float32: nothing may overflow or cancel there."""
    attrs, formula = FORMULAS[name]
    x = np.concatenate([np.linspace(-20, 20, 81), [-1e4, -100, -1e-6, 1e-6, 100, 1e4, 0]])
    with np.errstate(all="ignore"):
        got = OPS[name].evaluate(ORACLE, x.astype(np.float32), **attrs).astype(np.float64)
    exact = np.array([_exact(formula, float(v)) for v in x])
    np.testing.assert_allclose(got, exact, rtol=4e-6, atol=1e-37)


def _exact(formula, x):
    """The formula; for large arguments, where ``math`` would raise, its asymptote."""
    try:
        return formula(x)
    except OverflowError:
        near, nearer = formula(math.copysign(600.0, x)), formula(math.copysign(500.0, x))
        return near + (near - nearer) / 100 * (abs(x) - 600)


@pytest.mark.parametrize("name", FORMULAS)
def test_nan_passes_through(run, name):
    attrs, _ = FORMULAS[name]
    assert np.isnan(run(lambda g, x: getattr(g, name)(x, **attrs), np.float32("nan")))


def test_gelu_through_tanh(run, rng):
    x = rng.uniform(-5, 5, 50)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    wanted = 0.5 * x * (1 + np.tanh(inner))
    np.testing.assert_allclose(run(lambda g, x: g.gelu(x, approximate=True), x), wanted)
    np.testing.assert_allclose(run(lambda g, x: g.gelu(x, "tanh"), x), wanted)


def test_prelu_broadcasts_its_slope(run, rng):
    x, slope = rng.standard_normal((2, 3, 4)), rng.uniform(0, 1, (3, 1))
    got = run(lambda g, x, slope: g.prelu(x, slope), x, slope)
    np.testing.assert_allclose(got, np.where(x > 0, x, slope * x))


def test_relu_of_integers(run):
    x = np.array([-3, 0, 5], np.int8)
    np.testing.assert_array_equal(run(lambda g, x: g.relu(x), x), [0, 0, 5])


def test_defaults_are_those_of_the_frameworks():
    from ostinato.ops.builder import Graph

    g = Graph()
    x = g.input("x", (2,))
    assert g.leaky_relu(x).node.attrs == {"alpha": 0.01}
    assert g.elu(x).node.attrs == {"alpha": 1.0}
    assert g.hard_sigmoid(x).node.attrs == {"alpha": 1 / 6, "beta": 0.5}
    assert g.hard_tanh(x).node.attrs == {"min": -1.0, "max": 1.0}
    assert g.gelu(x).node.attrs == {"approximate": False}
    assert g.swish(x).node.op is g.silu(x).node.op

"""Recovery of gelu and of the sigmoid's family, in the spellings of exporters, and near misses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.passes.recover_activations import RecoverActivations
from ostinato.passes.recover_gelu import RecoverGelu

X = (2, 5)
ROOT2 = math.sqrt(2.0)
K = math.sqrt(2.0 / math.pi)

GELU = {
    "PyTorch to ONNX": lambda g, x: x * (g.erf(x / ROOT2) + 1.0) * 0.5,
    "half of x first": lambda g, x: (0.5 * x) * (1.0 + g.erf(x / ROOT2)),
    "half of the curve": lambda g, x: x * (0.5 * (1.0 + g.erf(x * math.sqrt(0.5)))),
    "divided by two": lambda g, x: (x * (g.erf(x / ROOT2) + 1.0)) / 2.0,
    "distributed": lambda g, x: 0.5 * x + (x * 0.5) * g.erf(x / ROOT2),
    "half distributed": lambda g, x: x * (0.5 + 0.5 * g.erf(x / ROOT2)),
    "Keras by way of tf2onnx": lambda g, x: (g.erf(x * math.sqrt(0.5)) + 1.0) * 0.5 * x,
    "divided by a root": lambda g, x: x * 0.5 * (1.0 + g.erf(x / g.sqrt(g.constant(2.0)))),
    "constants of one element": lambda g, x: (
        g.constant(np.full((1, 1), 0.5, np.float32)) * x * (1.0 + g.erf(x / ROOT2))
    ),
}

GELU_TANH = {
    "by pow": lambda g, x: 0.5 * x * (1.0 + g.tanh(K * (x + 0.044715 * x**3.0))),
    "by products": lambda g, x: 0.5 * x * (1.0 + g.tanh(K * (x + 0.044715 * x * x * x))),
    "by a square": lambda g, x: 0.5 * x * (1.0 + g.tanh(x * K * (1.0 + 0.044715 * g.square(x)))),
    "BLOOM and GPT-NeoX": lambda g, x: (
        x * 0.5 * (1.0 + g.tanh(0.79788456 * x * (1.0 + 0.044715 * x * x)))
    ),
    "half of the curve": lambda g, x: x * (0.5 * (g.tanh((x + (x**3.0) * 0.044715) * K) + 1.0)),
}

NO_GELU = {
    "a quarter": lambda g, x: 0.25 * x * (1.0 + g.erf(x / ROOT2)),
    "minus": lambda g, x: 0.5 * x * (1.0 - g.erf(x / ROOT2)),
    "two": lambda g, x: 0.5 * x * (2.0 + g.erf(x / ROOT2)),
    "another argument": lambda g, x: 0.5 * x * (1.0 + g.erf(x / 1.5)),
    "a coarse root of two": lambda g, x: 0.5 * x * (1.0 + g.erf(x / 1.414)),
    "another x": lambda g, x: 0.5 * g.exp(x) * (1.0 + g.erf(x / ROOT2)),
    "a shifted argument": lambda g, x: 0.5 * x * (1.0 + g.erf(x / ROOT2 + 1.0)),
    "another cubic": lambda g, x: 0.5 * x * (1.0 + g.tanh(K * (x + 0.05 * x**3.0))),
    "a square for the cube": lambda g, x: 0.5 * x * (1.0 + g.tanh(K * (x + 0.044715 * x**2.0))),
    "a lone erf": lambda g, x: g.erf(x / ROOT2),
    "tanh of anything": lambda g, x: g.tanh(x) * x,
    "x squared outside": lambda g, x: 0.5 * x * x * (1.0 + g.erf(x / ROOT2)),
}


@pytest.mark.parametrize("case", GELU)
def test_gelu(rewrite, case):
    done = rewrite(RecoverGelu(), GELU[case], X)
    assert done.expression == "gelu(x, approximate=False)"
    assert done.events == ["recover_gelu: recovered gelu"]


@pytest.mark.parametrize("case", GELU_TANH)
def test_gelu_by_tanh(rewrite, case):
    assert rewrite(RecoverGelu(), GELU_TANH[case], X).expression == "gelu(x, approximate=True)"


@pytest.mark.parametrize("case", [*GELU, *GELU_TANH])
def test_gelu_of_arithmetic_stops_at_the_right_place(rewrite, case):
    spelled = {**GELU, **GELU_TANH}[case]
    done = rewrite(RecoverGelu(), lambda g, x, y: spelled(g, x * 2.0 + y) * y, X, X)
    approximate = spelled is GELU_TANH.get(case)
    assert done.expression == (
        f"multiply(gelu(add(multiply(x, 2.0), y), approximate={approximate}), y)"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_gelu_of_other_dtypes(rewrite, dtype):
    done = rewrite(RecoverGelu(), GELU["PyTorch to ONNX"], (X, dtype))
    assert done.expression == "gelu(x, approximate=False)"


@pytest.mark.parametrize("case", NO_GELU)
def test_what_is_no_gelu_stays(rewrite, case):
    done = rewrite(RecoverGelu(), NO_GELU[case], X)
    assert done.after is done.before


def test_gelu_whose_curve_is_read_elsewhere_stays(rewrite):
    def build(g, x):
        t = g.erf(x / ROOT2)
        return 0.5 * x * (1.0 + t), t

    done = rewrite(RecoverGelu(), build, X)
    assert done.after is done.before
    assert "refused: an intermediate has other readers" in done.events[0]


def test_gelu_may_share_half_of_x(rewrite):
    def build(g, x):
        half = 0.5 * x
        return half * (1.0 + g.erf(x / ROOT2)), half

    done = rewrite(RecoverGelu(), build, X)
    assert done.expressions == ["gelu(x, approximate=False)", "multiply(0.5, x)"]


def test_gelu_of_another_shape_stays(rewrite):
    done = rewrite(
        RecoverGelu(),
        lambda g, x: g.constant(np.full((3, 2, 5), 0.5, np.float32)) * x * (1 + g.erf(x / ROOT2)),
        X,
    )
    assert done.after is done.before


ACTIVATIONS = {
    "silu": (lambda g, x: x * g.sigmoid(x), "silu(x)"),
    "silu the other way round": (lambda g, x: g.sigmoid(x) * x, "silu(x)"),
    "silu by a division": (lambda g, x: x / (1.0 + g.exp(-x)), "silu(x)"),
    "sigmoid": (lambda g, x: 1.0 / (1.0 + g.exp(-x)), "sigmoid(x)"),
    "sigmoid by reciprocal": (lambda g, x: g.reciprocal(g.exp(-x) + 1.0), "sigmoid(x)"),
    "silu by a spelled sigmoid": (lambda g, x: x * (1.0 / (1.0 + g.exp(-x))), "silu(x)"),
    "softplus": (lambda g, x: g.log(1.0 + g.exp(x)), "softplus(x)"),
    "softplus by log1p": (lambda g, x: g.log1p(g.exp(x)), "softplus(x)"),
    "softplus by logaddexp": (lambda g, x: g.logaddexp(x, 0.0), "softplus(x)"),
    "mish": (lambda g, x: x * g.tanh(g.softplus(x)), "mish(x)"),
    "mish in full": (lambda g, x: x * g.tanh(g.log(1.0 + g.exp(x))), "mish(x)"),
    "hard_swish": (lambda g, x: x * g.clip(x + 3.0, 0.0, 6.0) / 6.0, "hard_swish(x)"),
    "hard_swish by relu6": (lambda g, x: x * g.relu6(x + 3.0) * (1 / 6), "hard_swish(x)"),
    "hard_swish, divided first": (
        lambda g, x: x * (g.clip(3.0 + x, 0.0, 6.0) / 6.0),
        "hard_swish(x)",
    ),
    "hard_swish by hard_sigmoid": (lambda g, x: x * g.hard_sigmoid(x), "hard_swish(x)"),
    "hard_sigmoid": (
        lambda g, x: g.clip(x + 3.0, 0.0, 6.0) / 6.0,
        "hard_sigmoid(x, alpha=0.16666666666666666, beta=0.5)",
    ),
    "a gate of two": (lambda g, x: g.sigmoid(x) * g.exp(x) * x, None),
    "quick gelu": (lambda g, x: x * g.sigmoid(x * 1.702), None),
    "tanh of another softplus": (lambda g, x: x * g.tanh(g.softplus(x * 2.0)), None),
    "two plus exp": (lambda g, x: g.log(2.0 + g.exp(x)), None),
    "exp of plus x": (lambda g, x: 1.0 / (1.0 + g.exp(x)), None),
    "relu6 of a half": (lambda g, x: x * g.clip(x + 3.0, 0.0, 6.0) / 5.0, None),
    "clip to five": (lambda g, x: x * g.clip(x + 3.0, 0.0, 5.0) / 6.0, None),
    "another hard_sigmoid": (lambda g, x: x * g.hard_sigmoid(x, 0.2, 0.5), None),
    "clip of x + 2": (lambda g, x: g.clip(x + 2.0, 0.0, 6.0) / 6.0, None),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations(rewrite, case):
    build, expected = ACTIVATIONS[case]
    done = rewrite(RecoverActivations(), build, X)
    if expected is None:
        assert done.after is done.before
    else:
        assert done.expression == expected


def test_silu_whose_sigmoid_is_an_output_stays(rewrite):
    def build(g, x):
        gate = g.sigmoid(x)
        return x * gate, gate

    done = rewrite(RecoverActivations(), build, X)
    assert done.expressions == ["multiply(x, sigmoid(x))", "sigmoid(x)"]
    assert "refused" in done.events[0]

"""LSTM, GRU and RNN against one sequence and one step at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.ops.recurrent import DEFAULT_ACTIVATIONS, GATES
from ostinato.variables import Variable

FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def gates(weights, hidden):
    return [weights[i * hidden : (i + 1) * hidden] for i in range(len(weights) // hidden)]


def step(kind, x, state, w, r, bias, peepholes, functions, clip, after_reset):
    """The state of one sequence after one more step."""
    hidden = r.shape[1]
    h = state[0]
    wx, (wb, rb) = gates(w @ x, hidden), (gates(b, hidden) for b in np.split(bias, 2))
    rh = gates(r @ h, hidden)
    limited = lambda v: v if clip is None else np.clip(v, -clip, clip)  # noqa: E731
    if kind == "rnn":
        return (functions[0](limited(wx[0] + rh[0] + wb[0] + rb[0])),)
    if kind == "gru":
        z, reset = (functions[0](limited(wx[i] + rh[i] + wb[i] + rb[i])) for i in (0, 1))
        inner = (
            reset * (rh[2] + rb[2]) if after_reset else gates(r, hidden)[2] @ (reset * h) + rb[2]
        )
        candidate = functions[1](limited(wx[2] + wb[2] + inner))
        return ((1 - z) * candidate + z * h,)
    c = state[1]
    pi, po, pf = gates(peepholes, hidden)
    i, o, f, new = (wx[k] + rh[k] + wb[k] + rb[k] for k in range(4))
    i, f = functions[0](limited(i + pi * c)), functions[0](limited(f + pf * c))
    c = f * c + i * functions[1](limited(new))
    return functions[0](limited(o + po * c)) * functions[2](c), c


def layer_by_loops(kind, named, direction, functions, clip, after_reset):
    x, w, r = named["x"], named["w"], named["r"]
    (seq, batch, _), (dirs, _, hidden) = x.shape, r.shape
    states = 2 if kind == "lstm" else 1
    y = np.zeros((seq, dirs, batch, hidden))
    last = np.zeros((states, dirs, batch, hidden))
    for d, b in np.ndindex(dirs, batch):
        length = named["sequence_lens"][b] if "sequence_lens" in named else seq
        steps = range(length)
        if direction == "reverse" or d == 1:
            steps = reversed(steps)
        state = tuple(
            named[name][d, b] if name in named else np.zeros(hidden) for name in ("h0", "c0")
        )[:states]
        bias = named["bias"][d] if "bias" in named else np.zeros(2 * GATES[kind] * hidden)
        peepholes = named["peepholes"][d] if "peepholes" in named else np.zeros(3 * hidden)
        own = functions[d * len(functions) // dirs :]
        for t in steps:
            state = step(kind, x[t, b], state, w[d], r[d], bias, peepholes, own, clip, after_reset)
            y[t, d, b] = state[0]
        last[:, d, b] = state
    return [y, *last]


def compare(run, rng, kind, direction="forward", optional=(), sizes=(5, 3, 4, 6), shapes=None,
            lens=(5, 2, 0), **options):  # fmt: skip
    """Hold a layer with random weights and the ``optional`` operands to the loops."""
    seq, batch, features, hidden = sizes
    dirs, stacked = 2 if direction == "bidirectional" else 1, GATES[kind] * hidden
    every = {
        "x": (seq, batch, features),
        "w": (dirs, stacked, features),
        "r": (dirs, stacked, hidden),
        "bias": (dirs, 2 * stacked),
        "h0": (dirs, batch, hidden),
        "c0": (dirs, batch, hidden),
        "peepholes": (dirs, 3 * hidden),
    }
    named = {n: rng.standard_normal(s) for n, s in every.items() if n in ("x", "w", "r", *optional)}
    if "sequence_lens" in optional:
        named["sequence_lens"] = np.array(lens[:batch], np.int32)
    names = list(named)
    results = run(
        lambda g, *xs: getattr(g, kind)(
            **dict(zip(names, xs, strict=True)), direction=direction, **options
        ),
        *named.values(),
        shapes=shapes and shapes([a.shape for a in named.values()]),
    )
    chosen = options.get("activations") or DEFAULT_ACTIVATIONS[kind]
    if len(chosen) == len(DEFAULT_ACTIVATIONS[kind]):
        chosen = (*chosen, *chosen)[: len(chosen) * dirs]
    wanted = layer_by_loops(
        kind,
        named,
        direction,
        [FUNCTIONS[name] for name in chosen],
        options.get("clip"),
        options.get("linear_before_reset", False),
    )
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-11)


KINDS = ("lstm", "gru", "rnn")
STATES = {"lstm": ("h0", "c0"), "gru": ("h0",), "rnn": ("h0",)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("extra", [(), ("bias",), ("bias", "states", "sequence_lens")])
def test_layers(run, rng, kind, direction, extra):
    optional = [n for name in extra for n in (STATES[kind] if name == "states" else (name,))]
    compare(run, rng, kind, direction, optional)


@pytest.mark.parametrize(("direction", "biased", "lens"), list(itertools.product(
    ["forward", "bidirectional"], [False, True], [False, True])))  # fmt: skip
def test_gru_with_linear_before_reset(run, rng, direction, biased, lens):
    optional = ("bias",) * biased + ("sequence_lens",) * lens
    compare(run, rng, "gru", direction, optional, linear_before_reset=True)


def test_peepholes(run, rng):
    compare(run, rng, "lstm", "bidirectional", ("bias", "c0", "peepholes"))
    compare(run, rng, "lstm", "reverse", ("peepholes", "sequence_lens"), clip=0.7)


@pytest.mark.parametrize("kind", KINDS)
def test_clip_and_activations(run, rng, kind):
    compare(run, rng, kind, optional=("bias",), clip=0.5)
    count = len(DEFAULT_ACTIVATIONS[kind])
    compare(run, rng, kind, "bidirectional", ("bias",), activations=("sigmoid",) * count, clip=2)
    both = (*DEFAULT_ACTIVATIONS[kind], *("relu",) * count)
    compare(run, rng, kind, "bidirectional", activations=both, clip=0.3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (0, 2, 3, 4), (3, 0, 2, 5), (2, 7, 13, 11)])
def test_sizes(run, rng, kind, sizes):
    compare(run, rng, kind, "bidirectional", ("bias",), sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_symbolic_sizes(run, rng, type_of, kind):
    t, n = Variable("t", 0, 9), Variable("n", 1, 9)
    count = GATES[kind]
    build = lambda g, x, w, r: getattr(g, kind)(x, w, r)  # noqa: E731
    assert type_of(build, (t, n, 5), (1, count * 7, 5), (1, count * 7, 7)) == "f32[t,1,n,7]"
    compare(run, rng, kind, "bidirectional", ("bias", "sequence_lens"),
            shapes=lambda s: [(t, n, 4), *s[1:-1], (n,)])  # fmt: skip


def test_halves(run, rng):
    """Halves are widened in the decomposition, which the fixture holds to the oracle."""
    arrays = [
        rng.standard_normal(s).astype(np.float16) for s in ((4, 2, 3), (1, 20, 3), (1, 20, 5))
    ]
    y, _, _ = run(lambda g, *xs: g.lstm(*xs), *arrays)
    assert y.dtype == np.float16


def layer(g, kind="lstm", x=(5, 2, 3), w=(1, 16, 3), r=(1, 16, 4), **options):
    named = {
        n: g.input(n, s) if isinstance(s, tuple) else s for n, s in options.pop("more", {}).items()
    }
    leaves = (g.input(n, s) for n, s in (("x", x), ("w", w), ("r", r)))
    return getattr(g, kind)(*leaves, **named, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": (5, 3)}, r"x is \[seq, batch, input\]"),
        ({"r": (16, 4)}, r"r is \[dirs, gates \* hidden, hidden\]"),
        ({"w": (1, 12, 3)}, r"w is f32\[1,12,3\], expected shape \[1,16,3\]"),
        ({"w": (1, 16, 2)}, r"w is f32\[1,16,2\], expected shape \[1,16,3\]"),
        ({"direction": "bidirectional"}, r"expected shape \[2,16,3\]"),
        ({"direction": "sideways"}, "direction is one of forward, reverse, bidirectional"),
        ({"clip": -1.0}, "clip is a positive number"),
        ({"activations": ("tanh",)}, "activations are 3 of affine, elu, hard_sigmoid"),
        ({"activations": ("tanh", "tanh", "gelu")}, "activations are 3 of"),
        ({"more": {"bias": (1, 16)}}, r"bias is f32\[1,16\], expected shape \[1,32\]"),
        ({"more": {"h0": (2, 4)}}, r"h0 is f32\[2,4\], expected shape \[1,2,4\]"),
        ({"more": {"sequence_lens": (2,)}}, "sequence_lens is float32, not an integer"),
        ({"kind": "gru"}, r"r is f32\[1,16,4\], expected shape \[1,12,4\]|w is"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(GraphError, match=message):
        layer(Graph(), **options)

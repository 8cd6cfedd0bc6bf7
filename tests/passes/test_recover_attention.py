"""Recovery of attention in the spellings of exporters, and near misses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.dtypes import FLOAT32
from ostinato.passes.algebraic import Algebraic
from ostinato.passes.recover_attention import RecoverAttention
from ostinato.passes.recover_softmax import RecoverSoftmax
from ostinato.passes.shapes import Shapes
from ostinato.variables import Variable

Q = (2, 3, 5, 16)
LOWEST = float(np.finfo(np.float32).min)
PLAIN = "causal=False, window=None, scale=None, softcap=None"


def kt(g, k):
    return g.permute_dims(k, (0, 1, 3, 2))


def scores(g, q, k):
    return g.matmul(q, kt(g, k))


SCALED = {
    "divided": lambda g, q, k: scores(g, q, k) / 4.0,
    "multiplied": lambda g, q, k: 0.25 * scores(g, q, k),
    "q scaled": lambda g, q, k: scores(g, q * 0.25, k),
    "q divided": lambda g, q, k: scores(g, q / 4.0, k),
    "k scaled": lambda g, q, k: scores(g, q, k * 0.25),
    "both by the root": lambda g, q, k: g.matmul(q * 0.5, kt(g, k) * 0.5),
    "PyTorch's sdpa": lambda g, q, k: g.matmul(
        q * g.sqrt(g.constant(0.25)), kt(g, k) * g.constant(0.5)
    ),
}


@pytest.mark.parametrize("case", SCALED)
def test_scale(rewrite, case):
    from ostinato.passes.constant_folding import ConstantFolding

    done = rewrite(
        [ConstantFolding(), RecoverAttention()],
        lambda g, q, k, v: g.matmul(g.softmax(SCALED[case](g, q, k)), v),
        *(Q, Q, Q),
    )
    assert done.expression == f"attention(x, y, z, {PLAIN})"
    assert "recover_attention: recovered attention" in done.events


def test_other_scales_are_kept(rewrite):
    done = rewrite(
        RecoverAttention(), lambda g, q, k, v: g.matmul(g.softmax(scores(g, q, k)), v), Q, Q, Q
    )
    assert done.expression == f"attention(x, y, z, {PLAIN.replace('None, soft', '1.0, soft')})"


def test_lengths_and_depths_may_differ(rewrite):
    done = rewrite(
        RecoverAttention(),
        lambda g, q, k, v: g.matmul(g.softmax(scores(g, q, k) / 4.0), v),
        *(Q, (2, 3, 7, 16), (2, 3, 7, 9)),
    )
    assert done.expression == f"attention(x, y, z, {PLAIN})"


def test_symbolic_length(rewrite):
    n = Variable("n", 1, 64)
    shape = (2, 3, n, 16)
    done = rewrite(
        RecoverAttention(),
        lambda g, q, k, v: g.matmul(g.softmax(scores(g, q, k) / 4.0), v),
        *(shape, shape, shape),
    )
    assert done.expression == f"attention(x, y, z, {PLAIN})"


def test_bert_with_its_transpositions(rewrite):
    """Heads are split off by reshapes, kᵀ comes straight from them, and the result is merged."""

    def build(g, x, mask):
        def heads(w, axes):
            y = g.matmul(x, g.constant(np.full((48, 48), w, np.float32)))
            return g.permute_dims(g.reshape(y, (2, 5, 3, 16)), axes)

        q, k, v = heads(0.01, (0, 2, 1, 3)), heads(0.02, (0, 2, 3, 1)), heads(0.03, (0, 2, 1, 3))
        weights = g.softmax(g.matmul(q, k) / 4.0 + mask)
        merged = g.permute_dims(g.matmul(weights, v), (0, 2, 1, 3))
        return g.reshape(merged, (2, 5, 48))

    done = rewrite([Algebraic(), Shapes(), RecoverAttention()], build, (2, 5, 48), (2, 1, 1, 5))
    assert done.ops.count("attention") == 1
    assert "softmax" not in done.ops
    attention = next(n for n in done.after.nodes if n.op.name == "attention")
    assert attention.inputs[3].name == "y"
    assert [v.node.attrs["axes"] for v in attention.inputs[:3]] == [(0, 2, 1, 3)] * 3


@pytest.mark.parametrize("rank", [2, 3])
def test_fewer_dimensions(rewrite, rank):
    def build(g, q, k, v):
        weights = g.softmax(g.matmul(q, g.matrix_transpose(k)) / 4.0)
        return g.matmul(weights, v)

    done = rewrite(RecoverAttention(), build, Q[-rank:], Q[-rank:], Q[-rank:])
    assert done.ops == ["reshape", "reshape", "reshape", "attention", "reshape"]


def test_mask_of_three_dimensions(rewrite):
    def build(g, q, k, v, mask):
        weights = g.softmax(g.matmul(q, g.matrix_transpose(k)) / 4.0 + mask)
        return g.matmul(weights, v)

    done = rewrite(RecoverAttention(), build, (6, 5, 16), (6, 5, 16), (6, 5, 16), (6, 5, 5))
    assert "attention" in done.ops


def test_softmax_in_float32(rewrite):
    def build(g, q, k, v):
        weights = g.softmax(g.cast(scores(g, q, k) / 4.0, "float32"))
        return g.matmul(g.cast(weights, "float16"), v)

    done = rewrite(RecoverAttention(), build, (Q, "float16"), (Q, "float16"), (Q, "float16"))
    assert done.expression == f"attention(x, y, z, {PLAIN})"


def test_spelled_softmax(rewrite):
    def build(g, q, k, v):
        s = scores(g, q, k) / 4.0
        e = g.exp(s - g.max(s, axis=3, keepdims=True))
        return g.matmul(e / g.sum(e, axis=3, keepdims=True), v)

    done = rewrite([RecoverSoftmax(), RecoverAttention()], build, Q, Q, Q)
    assert done.expression == f"attention(x, y, z, {PLAIN})"


def test_softcap_as_gemma_has_it(rewrite):
    def build(g, q, k, v):
        return g.matmul(g.softmax(g.tanh(scores(g, q, k) * 0.25 / 50.0) * 50.0), v)

    done = rewrite(RecoverAttention(), build, Q, Q, Q)
    assert done.expression == f"attention(x, y, z, {PLAIN.replace('softcap=None', 'softcap=50.0')})"


TRIL = np.tril(np.ones((5, 5), bool))
ADDED = np.where(TRIL, 0, LOWEST).astype(np.float32)

CAUSAL = {
    "where with minus infinity": lambda g, s: g.where(g.constant(TRIL), s, -math.inf),
    "where with the lowest float": lambda g, s: g.where(g.constant(TRIL[None, None]), s, LOWEST),
    "GPT-2's where": lambda g, s: g.where(g.constant(TRIL), s, -1e4),
    "inverted": lambda g, s: g.where(g.constant(~TRIL), -math.inf, s),
    "added": lambda g, s: s + g.constant(ADDED),
    "added infinities": lambda g, s: s + g.constant(np.where(TRIL, 0, -np.inf).astype("f4")),
}


@pytest.mark.parametrize("case", CAUSAL)
def test_causal(rewrite, case):
    done = rewrite(
        RecoverAttention(),
        lambda g, q, k, v: g.matmul(g.softmax(CAUSAL[case](g, scores(g, q, k) / 4.0)), v),
        *(Q, Q, Q),
    )
    assert done.expression == f"attention(x, y, z, {PLAIN.replace('causal=False', 'causal=True')})"


ALMOST = TRIL.copy()
ALMOST[0, 1] = True

MASKS = {
    "added": (lambda g, s, m: s + m, "attention(x, y, z, u, "),
    "added twice": (lambda g, s, m: s + m + m * 2.0, "attention(x, y, z, add("),
    "bool, minus infinity": (
        lambda g, s, m: g.where(m > -9.0, s, -math.inf),
        "attention(x, y, z, greater(u, -9.0), ",
    ),
    "bool, lowest float": (
        lambda g, s, m: g.where(m > 0.0, s, LOWEST),
        f"attention(x, y, z, where(greater(u, 0.0), 0.0, {LOWEST}), ",
    ),
    "bool, lowest float, and added": (
        lambda g, s, m: g.where(m > 0.0, s, LOWEST) + m,
        f"attention(x, y, z, add(u, where(greater(u, 0.0), 0.0, {LOWEST})), ",
    ),
    "nearly a triangle": (
        lambda g, s, m: g.where(g.constant(ALMOST), s, -1e4),
        "attention(x, y, z, constant[5, 5], causal=False",
    ),
    "a row for every query": (
        lambda g, s, m: g.where(g.constant(np.array([1, 0, 0, 0, 0], bool)), s, -1e4),
        "attention(x, y, z, constant[5], causal=False",
    ),
    "causal and added": (
        lambda g, s, m: g.where(g.constant(TRIL), s, -math.inf) + m,
        "attention(x, y, z, u, causal=True",
    ),
    "a moderate fill": (lambda g, s, m: g.where(m > 0.0, s, -1e4), None),
    "an empty row": (
        lambda g, s, m: g.where(g.constant(np.eye(5, k=-1, dtype=bool)), s, -1e4),
        None,
    ),
    "a fill of zero": (lambda g, s, m: g.where(m > 0.0, s, 0.0), None),
    "scaled after": (lambda g, s, m: (s + m) * 2.0, None),
    "scores as a mask of themselves": (lambda g, s, m: s + g.exp(s), None),
    "softplus between": (lambda g, s, m: g.softplus(s), None),
    "mask of integers": (lambda g, s, m: s + g.cast(m, "int32"), None),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks(rewrite, case):
    build, expected = MASKS[case]
    done = rewrite(
        RecoverAttention(),
        lambda g, q, k, v, m: g.matmul(g.softmax(build(g, scores(g, q, k) / 4.0, m)), v),
        *(Q, Q, Q, (2, 1, 1, 5)),
    )
    if expected is None:
        assert "attention" not in done.ops
    else:
        assert done.expression.startswith(expected)


def test_moderate_fill_is_refused_with_a_reason(rewrite):
    done = rewrite(
        RecoverAttention(),
        lambda g, q, k, v, m: g.matmul(g.softmax(g.where(m > 0.0, scores(g, q, k), -1e4)), v),
        *(Q, Q, Q, (2, 1, 1, 5)),
    )
    assert "refused: a row that is masked everywhere with -10000.0 would change" in done.events[0]


def test_fully_masked_rows_by_the_lowest_float_stay_as_they_were():
    """The formula averages all values there, and so must the rewritten graph."""
    from ostinato import reference
    from ostinato.ops.builder import Graph
    from ostinato.passes import PassReport

    g = Graph()
    q, k, v = (g.input(name, Q, FLOAT32) for name in "qkv")
    keep = g.input("keep", (5, 5), "bool")
    g.set_outputs([g.matmul(g.softmax(g.where(keep, scores(g, q, k), LOWEST)), v)])
    after = RecoverAttention().run(g, PassReport())
    assert after is not g
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=Q).astype("f4") for name in "qkv"}
    feeds["keep"] = np.zeros((5, 5), bool)
    got, want = (reference.evaluate(graph, feeds)[0] for graph in (after, g))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_repeated_heads_are_taken_once(rewrite):
    def build(g, q, k, v):
        def repeated(x):
            opened = g.reshape(x, (2, 3, 1, 5, 16))
            return g.reshape(g.broadcast_to(opened, (2, 3, 4, 5, 16)), (2, 12, 5, 16))

        return g.matmul(g.softmax(scores(g, q, repeated(k)) / 4.0), repeated(v))

    done = rewrite(RecoverAttention(), build, (2, 12, 5, 16), Q, Q)
    assert done.expression == f"attention(x, y, z, {PLAIN})"


@pytest.mark.parametrize("read", ["scores", "weights"])
def test_scores_or_weights_that_are_outputs_stay(rewrite, read):
    def build(g, q, k, v):
        s = scores(g, q, k)
        w = g.softmax(s)
        return g.matmul(w, v), {"scores": s, "weights": w}[read]

    done = rewrite(RecoverAttention(), build, Q, Q, Q)
    assert done.after is done.before
    assert "refused: the scores or weights have other readers" in done.events[0]


NO_ATTENTION = {
    "softmax over queries": lambda g, q, k, v: g.matmul(g.softmax(scores(g, q, k), axis=2), v),
    "weights on the right": lambda g, q, k, v: g.matmul(kt(g, v), g.softmax(scores(g, q, k))),
    "scores that a mask broadcasts": lambda g, q, k, v: g.matmul(
        g.softmax(scores(g, q[:1], k[:1]) + g.exp(v[:, :1, :1, :5])), v
    ),
    "a scale per head": lambda g, q, k, v: g.matmul(
        g.softmax(scores(g, q, k) * g.constant(np.float32([1, 2, 3]).reshape(3, 1, 1))),
        v,
    ),
    "no product": lambda g, q, k, v: g.matmul(g.softmax(q), kt(g, k)),
    "one batch of values": lambda g, q, k, v: g.matmul(g.softmax(scores(g, q, k)), v[:1]),
}


@pytest.mark.parametrize("case", NO_ATTENTION)
def test_what_is_no_attention_stays(rewrite, case):
    done = rewrite(RecoverAttention(), NO_ATTENTION[case], Q, Q, Q)
    assert done.after is done.before


def test_a_softmax_between_dense_layers_stays():
    """Two matmuls with weights are no attention: the weights are packed for a matmul."""
    from ostinato.ops.builder import Graph
    from ostinato.passes import PassReport

    g = Graph()
    x, a, b = g.input("x", (7, 16)), g.param("a", (16, 9)), g.param("b", (9, 4))
    g.set_outputs([g.matmul(g.softmax(g.matmul(x, a)), b)])
    report = PassReport()
    assert RecoverAttention().run(g, report) is g
    assert "refused: keys or values are a param" in str(report)

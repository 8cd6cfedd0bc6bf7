"""Recovery of layer_norm, rms_norm, softmax and log_softmax, and near misses."""

from __future__ import annotations

import pytest

from ostinato.passes.recover_norms import RecoverNorms
from ostinato.passes.recover_softmax import RecoverSoftmax

X, W, EPS = (2, 3, 8), (8,), 1e-5


def mean(g, x, axis=-1):
    return g.mean(x, axis=axis, keepdims=True)


def deviation(g, x, square, axis=-1):
    d = x - mean(g, x, axis)
    return d, mean(g, square(g, d), axis) + EPS


SQUARES = {
    "square": lambda g, d: g.square(d),
    "pow": lambda g, d: d**2.0,
    "product": lambda g, d: d * d,
}

DIVISIONS = {
    "sqrt": lambda g, d, v: d / g.sqrt(v),
    "rsqrt": lambda g, d, v: d * g.rsqrt(v),
    "reciprocal of sqrt": lambda g, d, v: d * g.reciprocal(g.sqrt(v)),
    "one over sqrt": lambda g, d, v: (1.0 / g.sqrt(v)) * d,
    "pow 0.5": lambda g, d, v: d / v**0.5,
    "pow -0.5": lambda g, d, v: d * v**-0.5,
}

LAYER_NORM = "layer_norm(x, y, z, axis=2, eps=9.999999747378752e-06)"


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("square", SQUARES)
def test_layer_norm(rewrite, square, division):
    def build(g, x, w, b):
        d, v = deviation(g, x, SQUARES[square])
        return DIVISIONS[division](g, d, v) * w + b

    done = rewrite(RecoverNorms(), build, X, W, W)
    assert done.expression == LAYER_NORM
    assert done.events == ["recover_norms: recovered layer_norm"]


def test_layer_norm_of_two_subtractions(rewrite):
    """Some exporters write the deviation twice; here they are two nodes."""

    def build(g, x, w, b):
        _, v = deviation(g, x, SQUARES["pow"])
        return (x - mean(g, x)) / g.sqrt(v) * w + b

    from ostinato.passes.common_subexpressions import CommonSubexpressions

    done = rewrite([CommonSubexpressions(), RecoverNorms()], build, X, W, W)
    assert done.expression == LAYER_NORM


def test_layer_norm_multiplied_out_by_keras(rewrite):
    def build(g, x, w, b):
        m = mean(g, x)
        v = mean(g, g.square(x - m)) + EPS
        scale = g.rsqrt(v) * w
        return x * scale + (b - m * scale)

    assert rewrite(RecoverNorms(), build, X, W, W).expression == LAYER_NORM


def test_layer_norm_of_the_var_op(rewrite):
    def build(g, x, w, b):
        v = g.var(x, axis=-1, keepdims=True) + EPS
        return (x - mean(g, x)) * g.rsqrt(v) * w + b

    assert rewrite(RecoverNorms(), build, X, W, W).expression == LAYER_NORM


def test_layer_norm_of_sums_over_a_count(rewrite):
    def build(g, x, w, b):
        d = x - g.sum(x, axis=-1, keepdims=True) / 8.0
        v = g.sum(d * d, axis=-1, keepdims=True) * 0.125 + EPS
        return d / g.sqrt(v) * w + b

    assert rewrite(RecoverNorms(), build, X, W, W).expression == LAYER_NORM


@pytest.mark.parametrize("affine", ["none", "weight", "bias alone"])
def test_layer_norm_without_weight_or_bias(rewrite, affine):
    def build(g, x, w):
        d, v = deviation(g, x, SQUARES["pow"])
        n = d / g.sqrt(v)
        return {"none": n, "weight": w * n, "bias alone": n + w}[affine]

    done = rewrite(RecoverNorms(), build, X, W)
    plain = "layer_norm(x, axis=2, eps=9.999999747378752e-06)"
    assert (
        done.expression
        == {
            "none": plain,
            "weight": LAYER_NORM.replace(", z", ""),
            "bias alone": f"add({plain}, y)",
        }[affine]
    )


def test_layer_norm_over_two_axes(rewrite):
    def build(g, x, w, b):
        d, v = deviation(g, x, SQUARES["pow"], axis=(1, 2))
        return d / g.sqrt(v) * w + b

    done = rewrite(RecoverNorms(), build, X, (3, 8), (3, 8))
    assert done.expression == LAYER_NORM.replace("axis=2", "axis=1")


def test_layer_norm_with_weights_of_more_dimensions(rewrite):
    def build(g, x, w, b):
        d, v = deviation(g, x, SQUARES["pow"])
        return d / g.sqrt(v) * w + b

    done = rewrite(RecoverNorms(), build, X, (1, 1, 8), (1, 8))
    assert done.expression == (
        "layer_norm(x, reshape(y, shape=(8,)), reshape(z, shape=(8,)), axis=2, "
        "eps=9.999999747378752e-06)"
    )


def test_layer_norm_before_a_residual(rewrite):
    """An addend as large as x after the norm is no bias."""

    def build(g, x, w, y):
        d, v = deviation(g, x, SQUARES["pow"])
        return d / g.sqrt(v) * w + y

    done = rewrite(RecoverNorms(), build, X, W, X)
    assert done.expression == f"add({LAYER_NORM.replace(', z', '')}, z)"


RMS_NORM = "rms_norm(x, y, axis=2, eps=9.999999747378752e-06)"


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("square", SQUARES)
def test_rms_norm(rewrite, square, division):
    def build(g, x, w):
        v = mean(g, SQUARES[square](g, x)) + EPS
        return w * DIVISIONS[division](g, x, v)

    done = rewrite(RecoverNorms(), build, X, W)
    assert done.expression == RMS_NORM


def test_rms_norm_as_gemma_scales_it(rewrite):
    def build(g, x, w):
        return (x * g.rsqrt(mean(g, x * x) + EPS)) * (1.0 + w)

    done = rewrite(RecoverNorms(), build, X, W)
    assert done.expression == RMS_NORM.replace("y", "add(1.0, y)")


def test_rms_norm_of_a_half_in_float32(rewrite):
    def build(g, x, w):
        wide = g.cast(x, "float32")
        return w * g.cast(wide * g.rsqrt(mean(g, wide**2.0) + EPS), "float16")

    done = rewrite(RecoverNorms(), build, (X, "float16"), (W, "float16"))
    assert done.expression == (
        "multiply(y, cast(rms_norm(cast(x, dtype=f32), axis=2, eps=9.999999747378752e-06), "
        "dtype=f16))"
    )


def norm(g, x, w, b, **changes):
    """A layer_norm with something changed."""
    spread = changes.get("spread", x)
    axis = changes.get("axis", -1)
    d = x - mean(g, x, axis)
    inner = spread - mean(g, spread, changes.get("inner_axis", axis))
    v = mean(g, changes.get("square", SQUARES["product"])(g, inner), axis) + changes.get("eps", EPS)
    return changes.get("divide", DIVISIONS["sqrt"])(g, d, v) * w + b


NO_NORM = {
    "an axis that is not last": lambda g, x, w, b: norm(g, x, 1.0, 0.0, axis=1) * w,
    "the variance of something else": lambda g, x, w, b: norm(g, x, w, b, spread=g.exp(x)),
    "a cube": lambda g, x, w, b: norm(g, x, w, b, square=lambda g, d: d**3.0),
    "a large eps": lambda g, x, w, b: norm(g, x, w, b, eps=2.0),
    "a negative eps": lambda g, x, w, b: norm(g, x, w, b, eps=-1e-5),
    "an eps that varies": lambda g, x, w, b: norm(g, x, w, b, eps=w),
    "the variance itself": lambda g, x, w, b: norm(g, x, w, b, divide=lambda g, d, v: d / v),
    "a fourth root": lambda g, x, w, b: norm(g, x, w, b, divide=lambda g, d, v: d / v**0.25),
    "a product with the root": lambda g, x, w, b: norm(
        g, x, w, b, divide=lambda g, d, v: d * g.sqrt(v)
    ),
    "twice the mean": lambda g, x, w, b: (
        (x - 2.0 * mean(g, x)) * g.rsqrt(mean(g, g.square(x - mean(g, x))) + EPS)
    ),
    "a mean over all": lambda g, x, w, b: (
        (x - mean(g, x))
        * g.rsqrt(mean(g, g.square(x - g.mean(x, axis=(0, 1, 2), keepdims=True))) + EPS)
    ),
    "a weight that is added twice": lambda g, x, w, b: x * g.rsqrt(mean(g, x * x) + EPS) * 2.0,
}


@pytest.mark.parametrize("case", NO_NORM)
def test_what_is_no_norm_stays(rewrite, case):
    done = rewrite(RecoverNorms(), NO_NORM[case], X, W, W)
    assert not {"layer_norm"} & set(done.ops)
    if case != "a weight that is added twice":  # the norm is, the factor stays
        assert done.after is done.before


def test_norm_whose_statistics_are_read_elsewhere_stays(rewrite):
    def build(g, x, w, b):
        m = mean(g, x)
        return (x - m) / g.sqrt(mean(g, g.square(x - m)) + EPS) * w + b, m

    done = rewrite(RecoverNorms(), build, X, W, W)
    assert done.after is done.before
    assert "refused: an intermediate has other readers" in done.events[0]


def test_norm_whose_normalised_value_is_read_elsewhere_is_the_smaller_norm(rewrite):
    def build(g, x, w, b):
        d, v = deviation(g, x, SQUARES["product"])
        n = d / g.sqrt(v)
        return n * w + b, n

    done = rewrite(RecoverNorms(), build, X, W, W)
    plain = "layer_norm(x, axis=2, eps=9.999999747378752e-06)"
    assert done.expressions == [f"add(multiply({plain}, y), z)", plain]


def softmax(g, x, axis=-1):
    e = g.exp(x - g.max(x, axis=axis, keepdims=True))
    return e / g.sum(e, axis=axis, keepdims=True)


SOFTMAX = {
    "last axis": (softmax, "softmax(x, axis=2)"),
    "first axis": (lambda g, x: softmax(g, x, 0), "softmax(x, axis=0)"),
    "by reciprocal": (
        lambda g, x: (
            (e := g.exp(x - g.max(x, axis=1, keepdims=True)))
            * g.reciprocal(g.sum(e, axis=1, keepdims=True))
        ),
        "softmax(x, axis=1)",
    ),
    "log": (
        lambda g, x: (
            (d := x - g.max(x, axis=1, keepdims=True))
            - g.log(g.sum(g.exp(d), axis=1, keepdims=True))
        ),
        "log_softmax(x, axis=1)",
    ),
    "no maximum": (lambda g, x: (e := g.exp(x)) / g.sum(e, axis=1, keepdims=True), None),
    "another maximum": (
        lambda g, x: (
            (e := g.exp(x - g.max(x, axis=0, keepdims=True))) / g.sum(e, axis=1, keepdims=True)
        ),
        None,
    ),
    "two axes": (lambda g, x: softmax(g, x, (1, 2)), None),
    "a sum of something else": (
        lambda g, x: (
            g.exp(x - g.max(x, axis=1, keepdims=True)) / g.sum(g.exp(x), axis=1, keepdims=True)
        ),
        None,
    ),
    "inverted": (
        lambda g, x: (
            g.sum(e := g.exp(x - g.max(x, axis=1, keepdims=True)), axis=1, keepdims=True) / e
        ),
        None,
    ),
    "a minimum": (
        lambda g, x: (
            (e := g.exp(x - g.min(x, axis=1, keepdims=True))) / g.sum(e, axis=1, keepdims=True)
        ),
        None,
    ),
}


@pytest.mark.parametrize("case", SOFTMAX)
def test_softmax(rewrite, case):
    build, expected = SOFTMAX[case]
    done = rewrite(RecoverSoftmax(), build, X)
    if expected is None:
        assert done.after is done.before
    else:
        assert done.expression == expected


def test_softmax_whose_sum_is_an_output_stays(rewrite):
    def build(g, x):
        e = g.exp(x - g.max(x, axis=1, keepdims=True))
        total = g.sum(e, axis=1, keepdims=True)
        return e / total, total

    done = rewrite(RecoverSoftmax(), build, X)
    assert done.after is done.before
    assert "refused" in done.events[0]

"""Convolution and its transpose against loops over every product."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.ops.convolution import CONV
from ostinato.variables import Variable


def conv_by_loops(x, w, bias, stride, padding, dilation, groups):
    """Each result as the sum of its products, indices outside of ``x`` skipped."""
    sizes, kernel = x.shape[2:], w.shape[2:]
    counts = [
        (n + sum(p) - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True)
    ]
    result = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    depth, filters = w.shape[1], w.shape[0] // groups
    for n, o, *window in np.ndindex(*result.shape):
        total = x.dtype.type(0)
        for c, *k in np.ndindex(depth, *kernel):
            at = [
                i * s + j * d - p[0]
                for i, j, s, d, p in zip(window, k, stride, dilation, padding, strict=True)
            ]
            if all(0 <= i < size for i, size in zip(at, sizes, strict=True)):
                total += x[(n, o // filters * depth + c, *at)] * w[(o, c, *k)]
        result[(n, o, *window)] = total + (0 if bias is None else bias[o])
    return result


def conv_transpose_by_loops(x, w, bias, stride, padding, extra, dilation, groups):
    """Every element of ``x`` scatters ``w`` times itself into the result."""
    sizes, kernel = x.shape[2:], w.shape[2:]
    lengths = [
        (n - 1) * s + d * (k - 1) + 1 - sum(p) + e
        for n, k, s, p, d, e in zip(sizes, kernel, stride, padding, dilation, extra, strict=True)
    ]
    depth, inputs = w.shape[1], w.shape[0] // groups
    result = np.zeros((x.shape[0], depth * groups, *lengths))
    for n, c, *at in np.ndindex(*x.shape):
        for o, *k in np.ndindex(depth, *kernel):
            to = [
                i * s + j * d - p[0]
                for i, j, s, d, p in zip(at, k, stride, dilation, padding, strict=True)
            ]
            if all(0 <= i < length for i, length in zip(to, lengths, strict=True)):
                result[(n, c // inputs * depth + o, *to)] += x[(n, c, *at)] * w[(c, o, *k)]
    return result if bias is None else result + bias.reshape(-1, *(1,) * len(kernel))


CONVS = [
    # x, w, stride, padding, dilation, groups
    ((1, 1, 1), (1, 1, 1), (1,), ((0, 0),), (1,), 1),
    ((2, 3, 11), (5, 3, 3), (2,), ((1, 2),), (2,), 1),
    ((2, 4, 7), (6, 2, 2), (3,), ((0, 3),), (1,), 2),
    ((0, 3, 5), (2, 3, 3), (1,), ((1, 1),), (1,), 1),
    ((2, 3, 5, 7), (4, 3, 3, 2), (1, 2), ((1, 0), (2, 1)), (1, 3), 1),
    ((1, 6, 5, 5), (6, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 6),
    ((1, 4, 6, 3), (8, 2, 5, 1), (2, 1), ((2, 2), (0, 0)), (1, 1), 2),
    ((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), (2, 1, 1), ((0, 1), (1, 1), (0, 0)), (1, 2, 1), 1),
]


@pytest.mark.parametrize(("x", "w", "stride", "padding", "dilation", "groups"), CONVS)
@pytest.mark.parametrize("biased", [False, True])
def test_conv(run, rng, x, w, stride, padding, dilation, groups, biased):
    arrays = [rng.standard_normal(shape) for shape in (x, w, w[:1])[: 2 + biased]]
    result = run(
        lambda g, *xs: g.conv(
            *xs, stride=stride, padding=padding, dilation=dilation, groups=groups
        ),
        *arrays,
    )
    bias = arrays[2] if biased else None
    wanted = conv_by_loops(arrays[0], arrays[1], bias, stride, padding, dilation, groups)
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-12)


def test_integer_conv_wraps(run, rng):
    x = rng.integers(-128, 127, (1, 2, 6), dtype=np.int8)
    w = rng.integers(-128, 127, (3, 2, 3), dtype=np.int8)
    with np.errstate(over="ignore"):
        wanted = conv_by_loops(x, w, None, (1,), ((1, 1),), (1,), 1)
    result = run(lambda g, x, w: g.conv(x, w, padding=1), x, w)
    assert result.dtype == np.int8
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    list(itertools.product((1, 5, 8), (1, 2, 3), (1, 2, 3), (1, 2))),
)
def test_same_padding(run, rng, size, kernel, stride, dilation):
    x, w = rng.standard_normal((1, 1, size)), rng.standard_normal((1, 1, kernel))
    span = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    for mode, pads in {
        "same": (total // 2, total - total // 2),
        "same_lower": (total - total // 2, total // 2),
    }.items():
        result = run(
            lambda g, x, w, mode=mode: g.conv(x, w, stride=stride, padding=mode, dilation=dilation),
            x,
            w,
        )
        assert result.shape[2] == -(-size // stride)
        wanted = conv_by_loops(x, w, None, (stride,), (pads,), (dilation,), 1)
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("mode", "numpy"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_padding_modes(run, rng, mode, numpy):
    x, w = rng.standard_normal((2, 1, 5, 6)), rng.standard_normal((3, 1, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), mode=numpy)
    wanted = conv_by_loops(padded, w, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    pads = ((1, 2), (2, 1))
    result = run(lambda g, x, w: g.conv(x, w, padding=pads, padding_mode=mode), x, w)
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)


TRANSPOSES = [
    # x, w, stride, padding, output_padding, dilation, groups
    ((1, 1, 1), (1, 1, 1), (1,), ((0, 0),), (0,), (1,), 1),
    ((2, 3, 5), (3, 4, 3), (2,), ((1, 1),), (1,), (1,), 1),
    ((2, 4, 5), (4, 2, 4), (3,), ((0, 2),), (0,), (2,), 2),
    ((1, 2, 4), (2, 1, 2), (3,), ((2, 1),), (2,), (1,), 1),
    ((1, 1, 1), (1, 1, 1), (8,), ((5, 0),), (7,), (1,), 1),
    ((1, 3, 5), (3, 2, 1), (4,), ((0, 0),), (0,), (1,), 1),
    ((0, 3, 5), (3, 2, 3), (2,), ((1, 1),), (0,), (1,), 1),
    ((2, 6, 3, 4), (6, 1, 3, 2), (2, 1), ((1, 0), (0, 1)), (1, 0), (1, 2), 3),
    (
        (1, 2, 2, 3, 2),
        (2, 3, 2, 1, 3),
        (2, 2, 1),
        ((0, 0), (0, 0), (1, 1)),
        (0, 1, 0),
        (1, 1, 1),
        1,
    ),
]


@pytest.mark.parametrize(("x", "w", "stride", "padding", "extra", "dilation", "groups"), TRANSPOSES)
@pytest.mark.parametrize("biased", [False, True])
def test_conv_transpose(run, rng, x, w, stride, padding, extra, dilation, groups, biased):
    shapes = (x, w, (w[1] * groups,))
    arrays = [rng.standard_normal(shape) for shape in shapes[: 2 + biased]]
    result = run(
        lambda g, *xs: g.conv_transpose(
            *xs,
            stride=stride,
            padding=padding,
            output_padding=extra,
            dilation=dilation,
            groups=groups,
        ),
        *arrays,
    )
    bias = arrays[2] if biased else None
    wanted = conv_transpose_by_loops(
        arrays[0], arrays[1], bias, stride, padding, extra, dilation, groups
    )
    np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("kernel", "stride"), list(itertools.product((1, 2, 3, 4), (1, 2, 3))))
def test_same_padding_of_the_transpose(run, rng, kernel, stride):
    x, w = rng.standard_normal((1, 2, 5)), rng.standard_normal((2, 1, kernel))
    full = conv_transpose_by_loops(x, w, None, (stride,), ((0, 0),), (stride,), (1,), 1)
    total = max(kernel - stride, 0)
    for mode, start in (("same", total // 2), ("same_lower", total - total // 2)):
        result = run(
            lambda g, x, w, mode=mode: g.conv_transpose(x, w, stride=stride, padding=mode), x, w
        )
        np.testing.assert_allclose(
            result, full[..., start : start + 5 * stride], rtol=1e-12, atol=1e-12
        )


def test_symbolic_sizes(run, rng, type_of):
    n, h = Variable("n", 1, 8), Variable("h", 1, 32)
    shapes = ((n, 3, h, 9), (5, 3, 3, 3))
    assert type_of(lambda g, x, w: g.conv(x, w, padding=1), *shapes) == "f32[n,5,h,9]"
    assert type_of(lambda g, x, w: g.conv(x, w, padding="same"), *shapes) == "f32[n,5,h,9]"
    strided = type_of(lambda g, x, w: g.conv(x, w, stride=2, padding=1), *shapes)
    assert strided == "f32[n,5,((h + 1) // 2),5]"
    doubled = type_of(
        lambda g, x, w: g.conv_transpose(x, w, stride=2, padding="same"), shapes[0], (3, 5, 3, 3)
    )
    assert doubled == "f32[n,5,2*h,18]"
    # Sizes below one window give nothing, and never a negative size.
    arrays = rng.standard_normal((2, 1, 2)), rng.standard_normal((1, 1, 4))
    assert run(lambda g, x, w: g.conv(x, w), *arrays, shapes=[(2, 1, h), (1, 1, 4)]).size == 0


@pytest.mark.parametrize(
    ("x", "w", "options", "message"),
    [
        ((1, 3), (1, 3), {}, "1 to 3 spatial axes"),
        ((1, 3, 5), (1, 3, 3, 3), {}, "the weight is"),
        ((1, 3, 5), (1, 4, 3), {}, "x has 3 channels, the weight takes 4 in each of 1 groups"),
        ((1, 4, 5), (3, 2, 3), {"groups": 2}, "3 filters do not divide into 2 groups"),
        ((1, 3, 2), (1, 3, 3), {}, "a window of 3 positions does not fit on 2"),
        ((1, 3, 5), (1, 3, 3), {"stride": 0}, "stride must be at least 1"),
        ((1, 3, 5), (1, 3, 3), {"stride": (1, 2)}, "stride .* has 2 entries for 1 spatial axes"),
        ((1, 3, 5), (1, 3, 3), {"stride": 1.5}, "stride is an int"),
        ((1, 3, 5), (1, 3, 3), {"padding": -1}, "padding must be at least 0"),
        ((1, 3, 5), (1, 3, 3), {"padding": "full"}, "'full' is none of"),
        ((1, 3, 5), (1, 3, 3), {"padding": ((1, 2), (1, 2))}, "not one \\(low, high\\)"),
        ((1, 3, 5), (1, 3, 3), {"padding": ((1, 2, 3),)}, "not one \\(low, high\\)"),
        ((1, 3, 5), (1, 3, 3), {"groups": 0}, "groups must be at least 1"),
        ((1, 3, 5), (1, 3, 3), {"padding_mode": "mirror"}, "no padding mode 'mirror'"),
        ((1, 3, 5), (1, 3, 0), {}, "positive ints"),
    ],
)
def test_conv_refuses(x, w, options, message):
    g = Graph()
    with pytest.raises(GraphError, match=message):
        g.conv(g.input("x", x), g.input("w", w), **options)


def test_conv_refuses_operands():
    g = Graph()
    x, w = g.input("x", (1, 3, 5)), g.input("w", (2, 3, 3))
    with pytest.raises(GraphError, match=r"the bias is f32\[3\], expected \[2\]"):
        g.conv(x, w, g.input("b", (3,)))
    with pytest.raises(GraphError, match="operands have dtypes float16, float32"):
        g.conv(x, g.input("h", (2, 3, 3), "float16"))
    with pytest.raises(GraphError, match="depends on the symbolic size"):
        g.conv(g.input("s", (1, 3, Variable("n", 1, 9))), w, stride=2, padding="same")


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"stride": 2}, "stride takes a tuple of 1, got 2"),
        ({"stride": (0,)}, "stride must be at least 1"),
        ({"dilation": (1, 1)}, "dilation takes a tuple of 1"),
        ({"padding": ((-1, 0),)}, "padding must be at least 0"),
        ({"padding": (1,)}, "padding takes a tuple of 2, got 1"),
        ({"groups": 1.0}, "groups must be at least 1, got 1.0"),
    ],
)
def test_attributes_of_a_node_are_checked(attrs, message):
    """As they may come from the text form, past the vocabulary."""
    g = Graph()
    x, w = g.input("x", (1, 3, 5)), g.input("w", (2, 3, 3))
    right = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
    with pytest.raises(GraphError, match=message):
        g.apply(CONV, (x, w), right | attrs)


def test_conv_transpose_refuses():
    g = Graph()
    x = g.input("x", (1, 3, 2))
    with pytest.raises(GraphError, match="x has 3 channels, the weight takes 2"):
        g.conv_transpose(x, g.input("w", (2, 3, 3)))
    with pytest.raises(GraphError, match=r"leaves -2 positions of an axis"):
        g.conv_transpose(x, g.input("v", (3, 2, 2)), padding=((3, 2),))
    with pytest.raises(GraphError, match="3 channels do not divide into 2 groups"):
        g.conv_transpose(x, g.input("u", (3, 2, 2)), groups=2)


def test_flops():
    g = Graph()
    y = g.conv(g.input("x", (2, 4, 6)), g.input("w", (8, 2, 3)), g.input("b", (8,)), groups=2)
    node = y.node
    assert node.op.flops([v.type for v in node.inputs], node.attrs) == 2 * 8 * 4 * (2 * 2 * 3 + 1)

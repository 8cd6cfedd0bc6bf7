"""Complex numbers and Fourier transforms against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import GraphError
from ostinato.ops.builder import Graph
from ostinato.variables import Variable


def pairs(x):
    return np.stack([x.real, x.imag], axis=-1)


def complex_array(rng, *shape):
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


#: One matmul, a split, a long prime, and a split with one.
LENGTHS = (1, 2, 7, 64, 120, 211, 454, 1024)


@pytest.mark.parametrize("length", LENGTHS)
def test_transforms_of_all_lengths(run, rng, length):
    x = complex_array(rng, 2, length)
    for name in ("fft", "ifft"):
        truth = pairs(getattr(np.fft, name)(x))
        got = run(lambda g, x, name=name: getattr(g, name)(x), pairs(x))
        np.testing.assert_allclose(got, truth, rtol=1e-10, atol=1e-11)
    real = run(lambda g, x: g.rfft(x), x.real)
    np.testing.assert_allclose(real, pairs(np.fft.rfft(x.real)), rtol=1e-10, atol=1e-11)
    back = run(lambda g, x: g.irfft(x, length), real)
    np.testing.assert_allclose(back, x.real, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 3, 8])
def test_axes_lengths_and_norms(run, rng, norm, n):
    x = complex_array(rng, 3, 5, 2)
    for name in ("fft", "ifft"):
        truth = pairs(getattr(np.fft, name)(x, n, axis=1, norm=norm))
        got = run(lambda g, x, name=name: getattr(g, name)(x, n, 1, norm), pairs(x))
        np.testing.assert_allclose(got, truth, rtol=1e-12, atol=1e-12)
    got = run(lambda g, x: g.rfft(x, n, -2, norm), x.real)
    np.testing.assert_allclose(got, pairs(np.fft.rfft(x.real, n, -2, norm)), atol=1e-12)
    got = run(lambda g, x: g.irfft(x, n, -2, norm), pairs(x))
    np.testing.assert_allclose(got, np.fft.irfft(x, n, -2, norm), atol=1e-12)


def test_complex_numbers(run, rng):
    x, y = complex_array(rng, 3, 1), complex_array(rng, 4)
    product = run(lambda g, x, y: g.complex_multiply(x, y), pairs(x), pairs(y))
    np.testing.assert_allclose(product, pairs(x * y), rtol=1e-14)
    size, angle = run(lambda g, x: (g.complex_abs(x), g.angle(x)), pairs(x))
    np.testing.assert_allclose(size, np.abs(x), rtol=1e-14)
    np.testing.assert_allclose(angle, np.angle(x), rtol=1e-14)
    back = run(lambda g, r, a: g.polar(r, a), size, angle)
    np.testing.assert_allclose(back, pairs(x), rtol=1e-13)


def test_narrow_floats_are_transformed_in_float32(run, rng):
    x = rng.standard_normal((2, 90)).astype(np.float16)
    got = run(lambda g, x: g.rfft(x), x)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, pairs(np.fft.rfft(x.astype(float))), atol=2e-2)


def test_the_graph_of_a_long_prime_is_small():
    """Its constants grow with the length, not with its square."""
    g = Graph()
    g.set_outputs([g.fft(g.input("x", (10007, 2)))])
    sizes = [node.outputs[0].type.size for node in g.nodes if node.op.name == "constant"]
    assert sum(sizes) < 40 * 10007


def test_refusals():
    g = Graph()
    x = g.input("x", (3, Variable("n", 1, 9), 2))
    with pytest.raises(GraphError, match="depends on a Variable: n"):
        g.fft(x)
    with pytest.raises(GraphError, match=r"a complex tensor is floats \[..., 2\], got f32\[3,4\]"):
        g.fft(g.input("y", (3, 4)))
    with pytest.raises(GraphError, match="the norm is one of"):
        g.rfft(x, axis=0, norm="none")
    with pytest.raises(GraphError, match="a transform of 0 points"):
        g.rfft(x, 0, 0)

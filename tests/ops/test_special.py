"""Special functions against values of mpmath, their limits, and the parts of floats."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ostinato import reference
from ostinato.errors import GraphError
from ostinato.ops import OPS, special
from ostinato.ops.builder import Graph
from ostinato.ops.elementwise import ELEMENTWISE

#: By function (and its attribute), operands and the value that is right to the last digit.
REFERENCES = json.loads(Path(__file__).with_name("special_references.json").read_text())

INF, NAN = math.inf, math.nan

#: By function, operands at which it is not finite or not smooth, and its values there.
LIMITS = {
    "erfc": ([INF, -INF, 0.0], [0.0, 2.0, 1.0]),
    "erfcx": ([INF, -INF, -30.0], [0.0, INF, INF]),
    "erfinv": ([1.0, -1.0, 0.0, 1.5], [INF, -INF, 0.0, NAN]),
    "ndtr": ([INF, -INF, -50.0], [1.0, 0.0, 0.0]),
    "log_ndtr": ([INF, -INF], [0.0, -INF]),
    "ndtri": ([0.0, 0.5, 1.0, -1.0], [-INF, 0.0, INF, NAN]),
    "lgamma": ([0.0, 1.0, 2.0, -3.0, INF, -INF], [INF, 0.0, 0.0, INF, INF, INF]),
    "digamma": ([0.0, -0.0, -2.0, INF, -INF], [-INF, INF, NAN, INF, NAN]),
    "bessel_j0": ([0.0, INF], [1.0, 0.0]),
    "bessel_j1": ([0.0, -INF], [0.0, 0.0]),
    "bessel_y0": ([0.0, -1.0, INF], [-INF, NAN, 0.0]),
    "bessel_y1": ([0.0, -1.0, INF], [-INF, NAN, 0.0]),
    "i0": ([0.0, INF, -INF], [1.0, INF, INF]),
    "i1": ([0.0, INF, -INF], [0.0, INF, -INF]),
    "i0e": ([0.0, INF], [1.0, 0.0]),
    "modified_bessel_k0": ([0.0, INF, -1.0], [INF, 0.0, NAN]),
    "modified_bessel_k1": ([0.0, INF, -1.0], [INF, 0.0, NAN]),
    "spherical_bessel_j0": ([0.0, INF], [1.0, 0.0]),
    "entr": ([0.0, -1.0, INF], [0.0, -INF, -INF]),
    "sinc": ([0.0, 3.0, -7.0], [1.0, 0.0, 0.0]),
    "logit": ([0.0, 0.5, 1.0, 2.0], [-INF, 0.0, INF, NAN]),
}


@pytest.mark.parametrize("module", special.MODULES)
def test_every_name_is_that_of_an_op(module):
    family = import_module(f"ostinato.ops.special.{module}").FAMILY
    assert tuple(op.name for op in family) == special.MODULES[module]
    assert all(OPS[op.name] is op is ELEMENTWISE[op.name] for op in family)


def test_models_without_special_functions_do_not_import_them():
    script = (
        "import sys, ostinato as ost\n"
        "g = ost.Graph()\n"
        "g.set_outputs([g.exp(g.input('x', (3,)))])\n"
        "ost.Session().compile(g)\n"
        "print([m for m in sys.modules if m.startswith('ostinato.ops.special.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


def applied(name, *arrays, **attrs):
    g = Graph(name)
    operands = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    results = getattr(g, name)(*operands, **attrs)
    g.set_outputs(list(results) if isinstance(results, tuple) else [results])
    found = reference.evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})
    return found[0] if len(found) == 1 else found


@pytest.mark.parametrize("case", REFERENCES)
def test_values(case):
    name, _, n = case.partition(":")
    attrs = {"n": int(n)} if n else {}
    rows = REFERENCES[case]
    operands = np.array([row[0] for row in rows]).T
    truth = np.array([row[1] for row in rows])
    np.testing.assert_allclose(applied(name, *operands, **attrs), truth, rtol=1e-13, atol=3e-16)


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name):
    x, truth = LIMITS[name]
    for dtype in ("float32", "float64"):
        np.testing.assert_array_equal(applied(name, np.array([*x, NAN], dtype)), [*truth, NAN])


def test_limits_of_two_operands():
    x = np.array([0.0, 0.0, 0.0, 2.0])
    y = np.array([0.0, -1.0, NAN, 0.0])
    np.testing.assert_array_equal(applied("xlogy", x, y), [0, 0, NAN, -INF])
    np.testing.assert_array_equal(applied("xlog1py", x, y - 1), [0, 0, NAN, -INF])
    s, q = np.array([[1.0, 0.5, 2.0, 3.0, NAN, 2.0], [2.0, 2.0, 0.0, -2.5, 1.0, INF]])
    np.testing.assert_array_equal(applied("zeta", s, q), [INF, NAN, INF, NAN, NAN, 0])
    x, y = np.array([[INF, NAN, 0.0, -INF], [NAN, 1.0, 0.0, INF]])
    np.testing.assert_array_equal(applied("hypot", x, y), [INF, NAN, 0, INF])
    x, y = np.array([[INF, -INF, INF], [INF, -INF, -INF]])
    np.testing.assert_array_equal(applied("logaddexp2", x, y), [INF, -INF, INF])


def test_limits_of_incomplete_gamma_functions():
    a = np.array([0, 0, 1, INF, INF, -1, 2, NAN, 5, 3, 40], np.float64)
    x = np.array([0, 1, 0, 1, INF, 1, -1, 1, INF, NAN, 0], np.float64)
    lower = [NAN, 1, 0, 0, NAN, NAN, NAN, NAN, 1, NAN, 0]
    np.testing.assert_array_equal(applied("igamma", a, x), lower)
    np.testing.assert_array_equal(applied("igammac", a, x), 1 - np.array(lower))
    # 4.6 deviations below the mean of many.
    many = applied("igamma", np.array([799764.0954707608]), np.array([795619.9016198117]))
    np.testing.assert_allclose(many, 1.7278684156604985e-06, rtol=1e-10)


@pytest.mark.parametrize(("n", "pole"), [(1, np.inf), (2, -np.inf), (3, np.inf), (4, -np.inf)])
def test_poles_of_polygamma_have_the_sign_of_its_factor(n, pole):
    x = np.array([0.0, -0.0, -1.0, -7.0], np.float32)
    np.testing.assert_array_equal(applied("polygamma", x, n=n), pole)


def test_integers_give_float32():
    x = np.array([1, 2, 5], np.int64)
    assert applied("lgamma", x).dtype == np.float32
    np.testing.assert_allclose(applied("lgamma", x), [0, 0, math.log(24)], rtol=1e-7)
    assert applied("polygamma", x, n=0).dtype == np.float32
    assert applied("float_power", x, x).dtype == np.float64
    with pytest.raises(GraphError, match="n is an int from 1 to 150, got 200"):
        applied("polygamma", x, n=200)


def test_signs():
    x = np.array([-0.0, 3.0, -NAN, -INF], np.float32)
    y = np.array([1.0, -0.0, 1.0, 2.0], np.float32)
    np.testing.assert_array_equal(
        np.signbit(applied("copysign", x, y)), [False, True, False, False]
    )
    np.testing.assert_array_equal(applied("signbit", x), [True, False, True, True])
    np.testing.assert_array_equal(applied("signbit", np.array([-3, 0])), [True, False])
    np.testing.assert_array_equal(applied("isneginf", x), [False, False, False, True])
    np.testing.assert_array_equal(applied("isposinf", np.array([3, 0])), [False, False])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_parts_of_floats(dtype):
    info = ml_dtypes.finfo(dtype)
    least, greatest = float(info.smallest_subnormal), float(info.max)
    x = np.array([0.0, -0.0, 1.0, -1.5, least, float(info.tiny), greatest, INF, NAN, 3.0])
    x = np.concatenate([x, -x]).astype(dtype)
    for toward in (INF, -INF, 0.0):
        y = np.full_like(x, toward)
        with np.errstate(over="ignore"):
            truth = np.nextafter(x, y).astype(float)
        np.testing.assert_array_equal(applied("nextafter", x, y).astype(float), truth)
    fraction, power = applied("frexp", x)
    parts = [math.frexp(float(v)) for v in x]
    np.testing.assert_array_equal(fraction.astype(float), [f for f, _ in parts])
    np.testing.assert_array_equal(power, [p for _, p in parts])
    for n in (-2200, -140, -26, -3, 0, 7, 130, 2200):
        with np.errstate(over="ignore", under="ignore"):
            wide = np.ldexp(x.astype(np.float64), n)
            got = applied("ldexp", x, np.array(n, np.int32))
            np.testing.assert_array_equal(got.astype(float), wide.astype(dtype).astype(float))
    got = applied("nan_to_num", x).astype(float)
    assert got.max() == greatest
    assert got.min() == -greatest


def test_extremes_and_steps():
    x, y = np.array([[1.0, NAN, 2.0, NAN], [NAN, 1.0, 3.0, NAN]])
    np.testing.assert_array_equal(applied("fmax", x, y), [1, 1, 3, NAN])
    np.testing.assert_array_equal(applied("fmin", x, y), [1, 1, 2, NAN])
    np.testing.assert_array_equal(applied("fmax", np.array([1, 5]), np.array([3, 2])), [3, 5])
    x = np.array([-2.0, 0.0, 3.0, NAN])
    np.testing.assert_array_equal(applied("heaviside", x, np.full(4, 0.5)), [0, 0.5, 1, NAN])
    np.testing.assert_array_equal(applied("rad2deg", np.array([math.pi])), [180])
    np.testing.assert_allclose(applied("exp10", np.array([-2, 3])), [0.01, 1000], rtol=1e-7)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_divisors(dtype, rng):
    info = np.iinfo(dtype)
    x, y = rng.integers(info.min, info.max, (2, 500), dtype, endpoint=True)
    x[:7] = [0, 0, 12, info.max, info.min, info.max, 1]
    y[:7] = [0, 9, 18, info.max, info.max, info.max - 1, info.min]
    np.testing.assert_array_equal(applied("gcd", x, y), np.gcd(x, y))
    x, y = x % 11, y % 11
    np.testing.assert_array_equal(applied("lcm", x, y), np.lcm(x, y))
    steps = [0, 1]  # Fibonacci's numbers take the most steps
    while sum(steps[-2:]) <= info.max:
        steps.append(sum(steps[-2:]))
    last = np.array(steps[-2:], dtype)
    np.testing.assert_array_equal(applied("gcd", last[:1], last[1:]), [1])


def test_orthogonal_polynomials(rng):
    x = np.concatenate([rng.uniform(-1, 1, 40), [-2.5, -1.0, 0.0, 1.0, 3.0]])
    poly = np.polynomial
    angle = np.arccos(np.clip(x, -1, 1))
    inside = abs(x) < 1
    families = {
        "chebyshev_polynomial_t": poly.chebyshev.chebval,
        "hermite_polynomial_h": poly.hermite.hermval,
        "hermite_polynomial_he": poly.hermite_e.hermeval,
        "laguerre_polynomial_l": poly.laguerre.lagval,
        "legendre_polynomial_p": poly.legendre.legval,
    }
    for n in (0, 1, 2, 9):
        for name, evaluate in families.items():
            truth = evaluate(x, [0] * n + [1])
            np.testing.assert_allclose(applied(name, x, n=n), truth, rtol=1e-10, atol=1e-12)
        for kind, numerator, half in (
            ("u", np.sin((n + 1) * angle), np.sin(angle)),
            ("v", np.cos((n + 0.5) * angle), np.cos(angle / 2)),
            ("w", np.sin((n + 0.5) * angle), np.sin(angle / 2)),
        ):
            got = applied(f"chebyshev_polynomial_{kind}", x, n=n)
            truth = numerator[inside] / half[inside]
            np.testing.assert_allclose(got[inside], truth, rtol=1e-9, atol=1e-10)


def test_degrees_that_are_computed():
    x, n = np.full(6, 0.5), np.array([-1, 0, 1, 2, 3, 9])
    g = Graph()
    degrees = g.input("n", (6,), "int64")
    with pytest.raises(GraphError, match="need the highest one: most="):
        g.legendre_polynomial_p(x, degrees)
    g.set_outputs([g.legendre_polynomial_p(x, degrees, most=3)])
    (got,) = reference.evaluate(g, {"n": n})
    np.testing.assert_allclose(got, [0, 1, 0.5, -0.125, -0.4375, -0.4375])
    with pytest.raises(GraphError, match="the highest degree is an int from 0 to 256, got 999"):
        g.legendre_polynomial_p(x, 999)

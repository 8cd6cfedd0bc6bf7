"""Derives the coefficients in ``ostinato/ops/special/coefficients.py``.

Each table is the interpolation of a smooth function at the Chebyshev points of an interval, in
40-digit arithmetic (mpmath, the only requirement), as a polynomial in a variable from -1 to 1: the
error is within a small factor of the least one.

    python scripts/fit_special.py > src/ostinato/ops/special/coefficients.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 40
Real = mp.mpf
Function = Callable[[Real], Real]

#: The least relative part of the result that a table is to be good for.
EPS = mp.mpf(2) ** -53


def polynomial(f: Function, degree: int) -> list[Real]:
    """The coefficients, lowest power first, of ``f`` interpolated on ``-1..1``."""
    count = degree + 1
    angles = [mp.pi * (k + mp.mpf("0.5")) / count for k in range(count)]
    values = [f(mp.cos(angle)) for angle in angles]
    chebyshev = [
        2 * mp.fsum(v * mp.cos(n * a) for v, a in zip(values, angles, strict=True)) / count
        for n in range(count)
    ]
    chebyshev[0] /= 2
    result = [mp.mpf(0)] * count
    previous, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    for n, c in enumerate(chebyshev):
        term = previous if n == 0 else current
        for power, part in enumerate(term):
            result[power] += c * part
        if n:
            doubled = [mp.mpf(0), *(2 * part for part in current)]
            padded = [*previous, *[mp.mpf(0)] * (len(doubled) - len(previous))]
            previous, current = current, [a - b for a, b in zip(doubled, padded, strict=True)]
    return result


def fitted(f: Function, low: float, high: float, most: int = 40) -> list[float]:
    """The shortest table on ``low..high`` whose relative error is less than a rounding."""
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    scaled = lambda t: f(middle + half * t)  # noqa: E731
    points = [mp.cos(mp.pi * (k + mp.mpf("0.3")) / 97) for k in range(97)]
    truth = [scaled(t) for t in points]
    largest = max(abs(v) for v in truth)
    for degree in range(4, most):
        table = polynomial(scaled, degree)
        errors = (
            abs(mp.polyval(table[::-1], t) - v) / largest
            for t, v in zip(points, truth, strict=True)
        )
        if max(errors) < EPS / 4:
            return [float(c) for c in table]
    raise ValueError(f"no table of fewer than {most} coefficients on {low}..{high}")


def scaled_erfc(t: Real) -> Real:
    """``(1 + 2 x) erfcx(x)`` of ``t = (x - k) / (x + k)``."""
    k = mp.mpf("3.75")
    if t == 1:
        return 2 / mp.sqrt(mp.pi)
    x = k * (1 + t) / (1 - t)
    with mp.workdps(60):
        if x > 25:
            value = mp.fsum(
                (-1) ** n * mp.fac2(2 * n - 1) / (2 * x * x) ** n for n in range(60)
            ) / (x * mp.sqrt(mp.pi))
        else:
            value = mp.exp(x * x) * mp.erfc(x)
        return (1 + 2 * x) * value


def inverse_erf(w: Real) -> Real:
    """``erfinv(x) / x`` where ``w = -log(1 - x**2)``."""
    if w == 0:
        return mp.sqrt(mp.pi) / 2
    with mp.workdps(60):
        # x = sqrt(1 - e^-w); q = 1 - x without cancellation.
        rest = mp.exp(-w)
        x = mp.sqrt(-mp.expm1(-w))
        q = rest / (1 + x)
        if q > mp.mpf("0.1"):
            y = mp.erfinv(x)
        else:
            t = mp.sqrt(-mp.log(q))
            y = t - mp.log(t * mp.sqrt(mp.pi)) / (2 * t)
            for _ in range(60):
                step = (mp.erfc(y) - q) * mp.exp(y * y) * mp.sqrt(mp.pi) / 2
                y += step / (1 + y * step)
                if abs(step) < mp.mpf(10) ** -45:
                    break
        return y / x


def log_gamma(z: Real) -> Real:
    """``lgamma(2 + z) / z``."""
    return 1 - mp.euler if z == 0 else mp.loggamma(2 + z) / z


ROOT = mp.findroot(mp.digamma, 1.46)


def digamma(x: Real) -> Real:
    """``digamma(x) / (x - root)``."""
    return mp.polygamma(1, ROOT) if x == ROOT else mp.digamma(x) / (x - ROOT)


def bessel_i(order: int) -> Function:
    """``sqrt(x) exp(-x) I(x)`` of ``1 / x``."""

    def f(r: Real) -> Real:
        return (
            1 / mp.sqrt(2 * mp.pi)
            if r == 0
            else mp.exp(-1 / r) * mp.besseli(order, 1 / r) / mp.sqrt(r)
        )

    return f


def bessel_k(order: int) -> Function:
    """``sqrt(x) exp(x) K(x)`` of ``1 / x``."""

    def f(r: Real) -> Real:
        return (
            mp.sqrt(mp.pi / 2) if r == 0 else mp.exp(1 / r) * mp.besselk(order, 1 / r) / mp.sqrt(r)
        )

    return f


def modulus(order: int, part: int) -> Function:
    """The slow parts of a Bessel function's waves, of ``1 / x**2``.

    ``J = sqrt(2 / (pi x)) (P cos(c) - Q sin(c) / x)`` with ``c = x - (order / 2 + 1 / 4) pi``.
    """

    def f(r: Real) -> Real:
        if r == 0:
            return mp.mpf(1) if part == 0 else mp.mpf(4 * order * order - 1) / 8
        with mp.workdps(60):
            x = 1 / mp.sqrt(r)
            c = x - (mp.mpf(order) / 2 + mp.mpf(1) / 4) * mp.pi
            j, y = mp.besselj(order, x), mp.bessely(order, x)
            scale = mp.sqrt(mp.pi * x / 2)
            p = scale * (j * mp.cos(c) + y * mp.sin(c))
            q = scale * (y * mp.cos(c) - j * mp.sin(c))
            return p if part == 0 else q * x

    return f


def regular_y(order: int) -> Function:
    """Bessel Y without its logarithm and its pole, of ``x**2``; divided by ``x`` for order 1."""

    def f(square: Real) -> Real:
        with mp.workdps(60):
            x = mp.sqrt(max(square, mp.mpf(10) ** -30))
            rest = mp.bessely(order, x) - 2 / mp.pi * mp.log(x / 2) * mp.besselj(order, x)
            return rest if order == 0 else (rest + 2 / (mp.pi * x)) / x

    return f


TABLES: dict[str, tuple[str, Function, float, float]] = {
    "ERFCX": ("(1 + 2 x) erfcx(x) of (x - 3.75) / (x + 3.75)", scaled_erfc, -1, 1),
    "ERFINV_NEAR": ("erfinv(x) / x of w = -log(1 - x**2), 0..6.25", inverse_erf, 0, 6.25),
    "ERFINV_MIDDLE": (
        "the same of sqrt(w), 2.5..4.5", lambda s: inverse_erf(s * s), 2.5, 4.5
    ),
    "ERFINV_FAR": ("the same of sqrt(w), 4.5..9", lambda s: inverse_erf(s * s), 4.5, 9),
    "ERFINV_FARTHEST": ("the same of sqrt(w), 9..28", lambda s: inverse_erf(s * s), 9, 28),
    "LOG_GAMMA": ("lgamma(2 + z) / z, -0.5..0.5", log_gamma, -0.5, 0.5),
    "DIGAMMA": ("digamma(x) / (x - root), 1..2", digamma, 1, 2),
    "BESSEL_I0": ("sqrt(x) exp(-x) I0(x) of 1 / x, 0..0.125", bessel_i(0), 0, 0.125),
    "BESSEL_I1": ("sqrt(x) exp(-x) I1(x) of 1 / x, 0..0.125", bessel_i(1), 0, 0.125),
    "BESSEL_K0": ("sqrt(x) exp(x) K0(x) of 1 / x, 0..1", bessel_k(0), 0, 1),
    "BESSEL_K1": ("sqrt(x) exp(x) K1(x) of 1 / x, 0..1", bessel_k(1), 0, 1),
    "BESSEL_J0": ("J0 of x**2, 0..64", lambda s: mp.besselj(0, mp.sqrt(s)), 0, 64),
    "BESSEL_J1": (
        "J1 / x of x**2, 0..64",
        lambda s: mp.mpf("0.5") if s == 0 else mp.besselj(1, mp.sqrt(s)) / mp.sqrt(s),
        0,
        64,
    ),
    "BESSEL_Y0": ("Y0 - 2/pi log(x / 2) J0 of x**2, 0..64", regular_y(0), 0, 64),
    "BESSEL_Y1": (
        "(Y1 - 2/pi (log(x / 2) J1 - 1 / x)) / x of x**2, 0..64", regular_y(1), 0, 64
    ),
    "BESSEL_P0": ("P of order 0 of 1 / x**2, 0..1/64", modulus(0, 0), 0, 1 / 64),
    "BESSEL_Q0": ("Q of order 0 of 1 / x**2, 0..1/64", modulus(0, 1), 0, 1 / 64),
    "BESSEL_P1": ("P of order 1 of 1 / x**2, 0..1/64", modulus(1, 0), 0, 1 / 64),
    "BESSEL_Q1": ("Q of order 1 of 1 / x**2, 0..1/64", modulus(1, 1), 0, 1 / 64),
}  # fmt: skip


def main() -> None:
    lines = [
        '"""Coefficients of special functions, made by ``scripts/fit_special.py``.',
        "",
        "Each table is a polynomial, lowest power first, in a variable that runs from -1 to 1 over",
        "the interval that its comment names.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
    ]
    names = sorted(TABLES)
    lines += ["__all__ = [", *(f'    "{name}",' for name in names), "]"]
    for name in names:
        text, f, low, high = TABLES[name]
        table = fitted(f, low, high)
        print(name, len(table), file=sys.stderr, flush=True)
        lines += ["", f"#: {text[0].upper() + text[1:]}."]
        lines += [f"{name} = (", *(f"    {c!r}," for c in table), ")"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()

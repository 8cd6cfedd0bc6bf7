"""Derives the coefficients in ``ostinato/backends/common/coefficients.py``.

Each entry is a minimax fit of *relative* error by Remez' exchange in 60-digit arithmetic (mpmath,
the only requirement). Coefficients are rounded to the target format one at a time, lowest power
first, refitting the rest after each, so that the rounding of one is absorbed by the next.

    python scripts/fit_vecmath.py [name ...]      # prints the tables, with the errors reached
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence

import mpmath as mp

mp.mp.dps = 60
Real = mp.mpf
Function = Callable[[Real], Real]


def rounded(value: Real, bits: int) -> Real:
    """``value`` to the nearest float of ``bits`` bits (24 or 53)."""
    if bits == 53:
        return mp.mpf(float(value))
    return mp.mpf(struct.unpack("<f", struct.pack("<f", float(value)))[0])


class Fit:
    """Fits a polynomial to ``f`` on ``[low, high]``, minimising the error times ``weight``."""

    def __init__(self, f: Function, weight: Function, low: float, high: float, degree: int) -> None:
        self.degree = degree
        count = 60 * (degree + 2)
        mid, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
        self.grid = [mid - half * mp.cos(mp.pi * (k + 0.5) / count) for k in range(count)]
        self.f = [f(t) for t in self.grid]
        self.w = [weight(t) for t in self.grid]

    def solve(self, fixed: Sequence[Real] = ()) -> list[Real]:
        """The best polynomial whose lowest coefficients are ``fixed``: Remez' exchange."""
        unknowns = self.degree + 1 - len(fixed)
        last = len(self.grid) - 1
        nodes = [round(last * (1 - mp.cos(mp.pi * k / unknowns)) / 2) for k in range(unknowns + 1)]
        best: tuple[Real, list[Real]] | None = None
        for _ in range(60):
            polynomial, level = self._equalise(nodes, fixed)
            errors = self.errors(polynomial)
            worst = max(abs(e) for e in errors)
            if best is None or worst < best[0]:
                best = (worst, polynomial)
            if worst < abs(level) * mp.mpf("1.001"):
                break
            nodes = self._exchange(errors, unknowns + 1)
        assert best is not None
        return best[1]

    def errors(self, polynomial: Sequence[Real]) -> list[Real]:
        """The weighted error at every point of the grid."""
        return [
            (f - mp.polyval(polynomial[::-1], t)) * w
            for t, f, w in zip(self.grid, self.f, self.w, strict=True)
        ]

    def _equalise(self, nodes: Sequence[int], fixed: Sequence[Real]) -> tuple[list[Real], Real]:
        """The polynomial whose error at the nodes is equal but for alternating signs."""
        free = self.degree + 1 - len(fixed)
        matrix, right = mp.matrix(free + 1, free + 1), mp.matrix(free + 1, 1)
        for row, node in enumerate(nodes):
            t = self.grid[node]
            for k in range(free):
                matrix[row, k] = t ** (k + len(fixed))
            matrix[row, free] = (-1) ** row / self.w[node]
            right[row] = self.f[node] - sum(c * t**k for k, c in enumerate(fixed))
        x = mp.lu_solve(matrix, right)
        return [*fixed, *(x[k] for k in range(free))], x[free]

    @staticmethod
    def _exchange(errors: Sequence[Real], wanted: int) -> list[int]:
        """The alternating extrema of the error, thinned to as many as there are unknowns."""
        peaks: list[int] = []
        for k, error in enumerate(errors):
            if peaks and (errors[peaks[-1]] > 0) == (error > 0):
                if abs(error) > abs(errors[peaks[-1]]):
                    peaks[-1] = k
            else:
                peaks.append(k)
        while len(peaks) > wanted:
            if len(peaks) - wanted == 1:
                peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
                break
            weakest = min(range(len(peaks) - 1), key=lambda i: abs(errors[peaks[i]]))
            del peaks[weakest : weakest + 2]
        if len(peaks) < wanted:
            raise ArithmeticError("the error does not alternate often enough")
        return peaks

    def polynomial(self, bits: int) -> tuple[list[float], float]:
        """Coefficients in the target format, lowest first, and log2 of the error reached."""
        fixed: list[Real] = []
        # Beyond the first few, the rounding of a float64 coefficient no longer shows.
        for _ in range(self.degree if bits == 24 else 3):
            fixed.append(rounded(self.solve(fixed)[len(fixed)], bits))
        final = [rounded(c, bits) for c in self.solve(fixed)]
        worst = max(abs(e) for e in self.errors(final))
        return [float(c) for c in final], float(mp.log(worst, 2))


HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.0005")
ROOT_RANGE = (mp.sqrt(0.5) - 1 - mp.mpf("1e-6"), mp.sqrt(2) - 1 + mp.mpf("1e-6"))
EIGHTH_TURN = (mp.pi / 4 * mp.mpf("1.0005")) ** 2


def odd_tail(function: Function) -> Function:
    """``(function(x) - x) / x**3`` as a function of ``x**2``."""
    return lambda s: (function(mp.sqrt(s)) - mp.sqrt(s)) / mp.sqrt(s) ** 3


def odd_weight(function: Function) -> Function:
    """Turns an error of :func:`odd_tail` into a relative error of ``function``."""
    return lambda s: mp.sqrt(s) ** 3 / function(mp.sqrt(s))


def exp_tail(r: Real) -> Real:
    return (mp.expm1(r) - r) / r**2


def log_tail(f: Real) -> Real:
    return (mp.log1p(f) - f + f**2 / 2) / f**3


def log_weight(f: Real) -> Real:
    return f**3 / mp.log1p(f)


def cos_tail(s: Real) -> Real:
    return (mp.cos(mp.sqrt(s)) - 1 + s / 2) / s**2


def erf_slope_excess(s: Real) -> Real:
    return mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1


def erfc_bits(a: Real) -> Real:
    return -mp.log(mp.erfc(a), 2)


def erfc_weight(a: Real) -> Real:
    return mp.erfc(a) / mp.erf(a)


def normal_bits(a: Real) -> Real:
    """Bits of the normal distribution's tail beyond ``a``, but for the ``a**2`` in its exponent."""
    return 1 - mp.log(mp.erfc(a / mp.sqrt(2)), 2) - a**2 / (2 * mp.log(2))


def normal_weight(a: Real) -> Real:
    """Turns an error of :func:`normal_bits` into one of the tail, relative to 1/2."""
    return mp.log(2) * mp.erfc(a / mp.sqrt(2))


def erf_near_zero(degree: int) -> Fit:
    weight = lambda s: 1 / (1 + erf_slope_excess(s))  # noqa: E731
    return Fit(erf_slope_excess, weight, 0, mp.mpf("1.0001"), degree)


def odd(function: Function, high: Real, degree: int) -> Fit:
    return Fit(odd_tail(function), odd_weight(function), 0, high, degree)


FITS: dict[str, tuple[int, Callable[[], Fit]]] = {
    "EXP_F32": (24, lambda: Fit(exp_tail, lambda r: r**2 / mp.exp(r), -HALF_LN2, HALF_LN2, 4)),
    "EXP_F64": (53, lambda: Fit(exp_tail, lambda r: r**2 / mp.exp(r), -HALF_LN2, HALF_LN2, 9)),
    "LOG_F32": (24, lambda: Fit(log_tail, log_weight, *ROOT_RANGE, 7)),
    "LOG_F64": (53, lambda: Fit(log_tail, log_weight, *ROOT_RANGE, 18)),
    "LOG_POW_F32": (53, lambda: Fit(log_tail, log_weight, *ROOT_RANGE, 11)),
    "SIN_F32": (24, lambda: odd(mp.sin, EIGHTH_TURN, 2)),
    "SIN_F64": (53, lambda: odd(mp.sin, EIGHTH_TURN, 5)),
    "COS_F32": (24, lambda: Fit(cos_tail, lambda s: s**2, 0, EIGHTH_TURN, 2)),
    "COS_F64": (53, lambda: Fit(cos_tail, lambda s: s**2, 0, EIGHTH_TURN, 5)),
    "ASIN_F32": (24, lambda: odd(mp.asin, mp.mpf("0.2501"), 4)),
    "ASIN_F64": (53, lambda: odd(mp.asin, mp.mpf("0.2501"), 12)),
    "ATAN_F32": (24, lambda: odd(mp.atan, mp.mpf("1.0001"), 8)),
    "ATAN_F64": (53, lambda: odd(mp.atan, mp.mpf("1.0001"), 20)),
    "SINH_F32": (24, lambda: odd(mp.sinh, mp.mpf("1.0001"), 3)),
    "SINH_F64": (53, lambda: odd(mp.sinh, mp.mpf("1.0001"), 6)),
    "ERF_F32": (24, lambda: erf_near_zero(6)),
    "ERF_F64": (53, lambda: erf_near_zero(12)),
    "ERFC_BITS_F32": (24, lambda: Fit(erfc_bits, erfc_weight, mp.mpf("0.999"), mp.mpf("3.95"), 6)),
    "NORMAL_BITS_F32": (24, lambda: Fit(normal_bits, normal_weight, 0, mp.mpf("5.5"), 8)),
    "ERFC_BITS_F64": (53, lambda: Fit(erfc_bits, erfc_weight, mp.mpf("0.999"), mp.mpf("5.95"), 17)),
}
"""Name of the table to the significand bits of its format and the fit that gives it."""


def split(value: Real, bits: int, leading: int) -> tuple[float, float]:
    """``value`` as two floats of the format, the first with only ``leading`` significand bits."""
    exponent = mp.floor(mp.log(value, 2))
    unit = mp.mpf(2) ** (exponent + 1 - leading)
    high = mp.nint(value / unit) * unit
    return float(high), float(rounded(value - high, bits))


def constants() -> dict[str, tuple[float, ...]]:
    """Constants in parts. An exponent times the first part of ln2 or log10_2 is exact."""
    tables: dict[str, tuple[float, ...]] = {}
    for name, bits, exponent_bits in (("F32", 24, 9), ("F64", 53, 11)):
        tables[f"LN2_{name}"] = split(mp.log(2), bits, bits - exponent_bits)
        tables[f"LOG10_2_{name}"] = split(mp.log10(2), bits, bits - exponent_bits)
        tables[f"LOG2_E_{name}"] = split(1 / mp.log(2), bits, bits)
        tables[f"LOG10_E_{name}"] = split(1 / mp.log(10), bits, bits)
        tables[f"HALF_PI_{name}"] = split(mp.pi / 2, bits, bits)
    high, rest = split(mp.pi / 2, 53, 53)
    low = float(rest)
    tables["HALF_PI_PARTS"] = (high, low, float(mp.pi / 2 - high - low))
    return tables


def show(name: str, values: Sequence[float], note: str = "") -> None:
    print(f"{name} = ({note}")
    for value in values:
        print(f"    {value!r},")
    print(")", flush=True)


HEADER = '''"""Constants and minimax coefficients (lowest first) from ``scripts/fit_vecmath.py``.

That script derives them from the functions themselves: relative error minimised by Remez'
exchange in 60-digit arithmetic, then rounded to the format one coefficient at a time with the
rest refitted. The note at each table is the error of the approximation itself, arithmetic aside.
"""

# fmt: off
'''


def main(names: Sequence[str]) -> None:
    if not names:
        print(HEADER)
        for name, values in constants().items():
            show(name, values)
    for name in names or FITS:
        bits, make = FITS[name]
        coefficients, error = make().polynomial(bits)
        show(name, coefficients, f"  # 2**{error:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])

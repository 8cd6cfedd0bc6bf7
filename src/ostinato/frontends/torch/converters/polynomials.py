"""Converters of orthogonal polynomials, by their recurrences, of a degree for each element.

All begin with ``p0 = 1`` and a linear ``p1``; negative degrees give 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value
    from ostinato.ops.builder import Graph

    #: The next polynomial from a graph, ``x``, the degree ``k``, ``p[k]`` and ``p[k - 1]``.
    Recurrence = Callable[[Graph, Value, Value, Value, Value], Value]

__all__ = ["CONVERTERS"]


def _chebyshev(g: Graph, x: Value, k: Value, p: Value, before: Value) -> Value:
    """``2 x p - before``."""
    return g.subtract(g.multiply(g.multiply(x, 2), p), before)


def _hermite(g: Graph, x: Value, k: Value, p: Value, before: Value) -> Value:
    """``2 x p - 2 k before``."""
    return g.multiply(g.subtract(g.multiply(x, p), g.multiply(k, before)), 2)


def _hermite_of_probabilists(g: Graph, x: Value, k: Value, p: Value, before: Value) -> Value:
    """``x p - k before``."""
    return g.subtract(g.multiply(x, p), g.multiply(k, before))


def _laguerre(g: Graph, x: Value, k: Value, p: Value, before: Value) -> Value:
    """``((2 k + 1 - x) p - k before) / (k + 1)``."""
    factor = g.subtract(g.add(g.multiply(k, 2), 1), x)
    return g.divide(g.subtract(g.multiply(factor, p), g.multiply(k, before)), g.add(k, 1))


def _legendre(g: Graph, x: Value, k: Value, p: Value, before: Value) -> Value:
    """``((2 k + 1) x p - k before) / (k + 1)``."""
    factor = g.multiply(g.add(g.multiply(k, 2), 1), x)
    return g.divide(g.subtract(g.multiply(factor, p), g.multiply(k, before)), g.add(k, 1))


def _polynomial(
    recurrence: Recurrence, slope: float, shift: float = 0.0, *, shifted: bool = False
) -> Converter:
    """The polynomial of a recurrence whose ``p1`` is ``slope * x + shift``.

    Args:
        shifted: takes ``2 x - 1`` in the place of ``x``.
    """

    def convert(call: Call, x: Any, n: Any) -> Value:
        g, shape = call.g, call.shape
        if 0 in shape:
            return g.zeros(shape, call.dtype)
        at, degree = (g.broadcast_to(v, shape) for v in call.widened(x, n))
        degree = g.where(g.isfinite(degree), g.trunc(degree), -1)
        if shifted:
            at = g.subtract(g.multiply(at, 2), 1)
        ones = g.full(shape, 1.0, at.dtype)
        linear = g.add(g.multiply(at, slope), shift)

        def step(body: Graph, iteration: Value, p: Value, before: Value) -> list[Value]:
            k = body.cast(body.add(iteration, 1), p.dtype)
            following = recurrence(body, body.local(at), k, p, before)
            ends = body.greater_equal(k, degree)
            return [body.where(ends, p, following), body.where(ends, before, p)]

        trips = g.maximum(g.subtract(g.cast(g.max(degree), INT64), 1), 0)
        found, _ = g.while_loop(step, [linear, ones], trips=trips)
        found = g.where(g.equal(degree, 0), 1, found)
        return call.rounded(g.where(g.less(degree, 0), 0, found))

    return convert


_CHEBYSHEV = {"t": (1.0, 0.0), "u": (2.0, 0.0), "v": (2.0, -1.0), "w": (2.0, 1.0)}

CONVERTERS: dict[str, Converter] = {
    **{
        f"aten.special_{prefix}chebyshev_polynomial_{kind}": _polynomial(
            _chebyshev, *first, shifted=bool(prefix)
        )
        for kind, first in _CHEBYSHEV.items()
        for prefix in ("", "shifted_")
    },
    "aten.special_hermite_polynomial_h": _polynomial(_hermite, 2.0),
    "aten.special_hermite_polynomial_he": _polynomial(_hermite_of_probabilists, 1.0),
    "aten.special_laguerre_polynomial_l": _polynomial(_laguerre, -1.0, 1.0),
    "aten.special_legendre_polynomial_p": _polynomial(_legendre, 1.0),
}

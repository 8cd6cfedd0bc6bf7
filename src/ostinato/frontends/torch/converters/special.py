"""Converters of special functions, and of the parts of floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.frontends.torch.call import Call, Converter
    from ostinato.ir.graph import Value

__all__ = ["CONVERTERS"]


def _function(method: str) -> Converter:
    """A function of real numbers, computed in the result's dtype."""

    def convert(call: Call, self: Any) -> Value:
        (x,) = call.promoted(self)
        return getattr(call.g, method)(x)  # type: ignore[no-any-return]

    return convert


def _function_of_two(method: str) -> Converter:
    def convert(call: Call, self: Any, other: Any) -> Value:
        a, b = call.promoted(self, other)
        return getattr(call.g, method)(a, b)  # type: ignore[no-any-return]

    return convert


def _polygamma(call: Call, n: int, self: Value) -> Value:
    (x,) = call.promoted(self)
    return call.g.polygamma(x, call.known(n, "order"))


def _multivariate_log_gamma(call: Call, self: Value, p: int) -> Value:
    """``p (p - 1) / 4 log pi`` and the sum of ``lgamma(x - i / 2)`` for ``i`` below ``p``."""
    g = call.g
    (x,) = call.widened(self)
    steps = g.constant([-i / 2 for i in range(p)], x.dtype)
    shifted = g.add(g.expand_dims(x, x.ndim), steps)
    constant = p * (p - 1) / 4 * 1.1447298858494002
    return call.rounded(g.add(g.sum(g.lgamma(shifted), axis=x.ndim), constant))


def _parts(call: Call, self: Value) -> tuple[Value, Value]:
    return call.g.frexp(self)


#: Functions of one number: the vocabulary's names, and those of PyTorch.
_FUNCTIONS = {
    "erfc": ("erfc", "special_erfc"),
    "erfcx": ("special_erfcx",),
    "erfinv": ("erfinv", "special_erfinv"),
    "ndtr": ("special_ndtr",),
    "log_ndtr": ("special_log_ndtr",),
    "ndtri": ("special_ndtri",),
    "lgamma": ("lgamma", "special_gammaln"),
    "digamma": ("digamma", "special_digamma", "special_psi"),
    "bessel_j0": ("special_bessel_j0",),
    "bessel_j1": ("special_bessel_j1",),
    "bessel_y0": ("special_bessel_y0",),
    "bessel_y1": ("special_bessel_y1",),
    "i0": ("i0", "special_i0", "special_modified_bessel_i0"),
    "i0e": ("special_i0e",),
    "i1": ("special_i1", "special_modified_bessel_i1"),
    "i1e": ("special_i1e",),
    "modified_bessel_k0": ("special_modified_bessel_k0",),
    "modified_bessel_k1": ("special_modified_bessel_k1",),
    "scaled_modified_bessel_k0": ("special_scaled_modified_bessel_k0",),
    "scaled_modified_bessel_k1": ("special_scaled_modified_bessel_k1",),
    "spherical_bessel_j0": ("special_spherical_bessel_j0",),
    "entr": ("special_entr",),
    "sinc": ("sinc", "special_sinc"),
}

#: The same of two numbers.
_FUNCTIONS_OF_TWO = {
    "zeta": ("special_zeta",),
    "xlogy": ("xlogy", "special_xlogy"),
    "xlog1py": ("special_xlog1py",),
    "logaddexp2": ("logaddexp2",),
    "hypot": ("hypot",),
    "nextafter": ("nextafter",),
}

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}": _function(method) for method, names in _FUNCTIONS.items() for name in names},
    **{
        f"aten.{name}": _function_of_two(method)
        for method, names in _FUNCTIONS_OF_TWO.items()
        for name in names
    },
    "aten.polygamma": _polygamma,
    "aten.special_polygamma": _polygamma,
    "aten.mvlgamma": _multivariate_log_gamma,
    "aten.special_multigammaln": _multivariate_log_gamma,
    "aten.frexp": _parts,
}

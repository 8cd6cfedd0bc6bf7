"""Special functions: those of the gamma and the normal distribution, Bessel functions, polynomials.

Few models have one, so their modules are imported when an op is looked up.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ops.base import Elementwise

__all__ = ["MODULES", "NAMES", "find"]

#: The names of the ops of each module, in the order of its family.
MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "elementary": (
            "entr",
            "xlogy",
            "xlog1py",
            "sinc",
            "logit",
            "logaddexp2",
            "hypot",
            "copysign",
            "signbit",
            "gcd",
        ),
        "normal": (
            "erfc",
            "erfcx",
            "erfinv",
            "ndtr",
            "log_ndtr",
            "ndtri",
        ),
        "gamma": (
            "lgamma",
            "digamma",
            "zeta",
            "polygamma",
        ),
        "incomplete_gamma": (
            "igamma",
            "igammac",
        ),
        "bessel": (
            "bessel_j0",
            "bessel_j1",
            "bessel_y0",
            "bessel_y1",
            "i0",
            "i0e",
            "i1",
            "i1e",
            "modified_bessel_k0",
            "modified_bessel_k1",
            "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
            "spherical_bessel_j0",
        ),
        "polynomials": ("orthogonal_polynomial",),
    }
)

_HOMES = {name: module for module, names in MODULES.items() for name in names}

#: The names of all.
NAMES: tuple[str, ...] = tuple(_HOMES)


def find(name: str) -> Elementwise:
    """The special function of that name.

    Raises:
        KeyError: there is none.
    """
    return _family(_HOMES[name])[name]


@cache
def _family(module: str) -> Mapping[str, Elementwise]:
    family: tuple[Elementwise, ...] = import_module(f"{__name__}.{module}").FAMILY
    return {op.name: op for op in family}

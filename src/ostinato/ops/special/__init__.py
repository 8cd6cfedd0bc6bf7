"""Special functions: those of the gamma and the normal distribution, and Bessel functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.special import (
    bessel,
    elementary,
    gamma,
    incomplete_gamma,
    normal,
    polynomials,
)

if TYPE_CHECKING:
    from ostinato.ops.base import Elementwise

__all__ = ["FAMILY"]

FAMILY: tuple[Elementwise, ...] = (
    *elementary.FAMILY,
    *normal.FAMILY,
    *gamma.FAMILY,
    *incomplete_gamma.FAMILY,
    *bessel.FAMILY,
    *polynomials.FAMILY,
)

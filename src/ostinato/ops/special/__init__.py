"""Special functions: those of the gamma and the normal distribution, and Bessel functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops.special import bessel, elementary, gamma, normal

if TYPE_CHECKING:
    from ostinato.ops.base import Elementwise

__all__ = ["FAMILY"]

FAMILY: tuple[Elementwise, ...] = (
    *elementary.FAMILY,
    *normal.FAMILY,
    *gamma.FAMILY,
    *bessel.FAMILY,
)

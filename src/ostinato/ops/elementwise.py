"""The elementwise ops: arithmetic, activations, logic, and special functions."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ostinato.ops import activations, arithmetic, logic, special

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ops.base import Elementwise

__all__ = ["ELEMENTWISE", "FAMILY"]

FAMILY: tuple[Elementwise, ...] = (
    *arithmetic.FAMILY,
    *activations.FAMILY,
    *logic.FAMILY,
    *special.FAMILY,
)

#: Every elementwise op by its name.
ELEMENTWISE: Mapping[str, Elementwise] = MappingProxyType({op.name: op for op in FAMILY})

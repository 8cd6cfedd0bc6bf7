"""The elementwise ops: arithmetic, activations, and logic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.ops import activations, arithmetic, logic

if TYPE_CHECKING:
    from ostinato.ir.op import Op

__all__ = ["FAMILY"]

FAMILY: tuple[Op, ...] = (*arithmetic.FAMILY, *activations.FAMILY, *logic.FAMILY)

"""The elementwise ops: arithmetic, activations, and logic."""

from __future__ import annotations

from ostinato.ir.op import Op
from ostinato.ops import activations, arithmetic, logic

__all__ = ["FAMILY"]

FAMILY: tuple[Op, ...] = (*arithmetic.FAMILY, *activations.FAMILY, *logic.FAMILY)

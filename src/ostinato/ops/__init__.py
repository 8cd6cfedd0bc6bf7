"""The operations: one class per op holds all its rules, one file per family holds its ops."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ostinato.ops import (
    attention,
    convolution,
    elementwise,
    indexing,
    linalg,
    moe,
    normalization,
    pooling,
    quant,
    recurrent,
    reduction,
    shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.ir.op import Op

__all__ = ["OPS"]

_FAMILIES: tuple[tuple[Op, ...], ...] = (
    elementwise.FAMILY,
    shape.FAMILY,
    indexing.FAMILY,
    reduction.FAMILY,
    linalg.FAMILY,
    convolution.FAMILY,
    pooling.FAMILY,
    normalization.FAMILY,
    attention.FAMILY,
    recurrent.FAMILY,
    quant.FAMILY,
    moe.FAMILY,
)

#: Every op by its canonical name. Leaves are apart, in :data:`ostinato.ir.leaves.LEAVES`.
OPS: Mapping[str, Op] = MappingProxyType({op.name: op for family in _FAMILIES for op in family})

"""The operations: one class per op holds all its rules, one file per family holds its ops."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ostinato.ir.op import Op
from ostinato.ops import elementwise, indexing, reduction, shape

__all__ = ["OPS"]

_FAMILIES: tuple[tuple[Op, ...], ...] = (
    elementwise.FAMILY,
    shape.FAMILY,
    indexing.FAMILY,
    reduction.FAMILY,
)

#: Every op by its canonical name. Leaves are apart, in :data:`ostinato.ir.leaves.LEAVES`.
OPS: Mapping[str, Op] = MappingProxyType({op.name: op for family in _FAMILIES for op in family})

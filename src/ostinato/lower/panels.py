"""How the right operand of a contraction lies in memory once it is packed.

A product of a few rows takes as long as its weights take to arrive, so panels hold what the weights
are made of and no more: 16-bit floats stay 16 bits wide, integers stay bytes or half bytes, and the
register tile widens what it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.lower.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Value

__all__ = ["PanelFormat", "stored_dtype"]


@dataclass(frozen=True)
class PanelFormat:
    """How panels hold their elements.

    Attributes:
        dtype: of an element in memory.
    """

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.short


def stored_dtype(weight: Value, narrow: Collection[DType]) -> DType:
    """The dtype in which panels hold ``weight``: its accumulator's, or a narrower one as exact.

    What was widened from one of ``narrow``, or is one of them, is kept as that.
    """
    node = weight.node
    wide = weight.dtype.accumulator
    if node.op.name in VIEWS:
        return stored_dtype(node.inputs[0], narrow)
    if node.op.name == "concat":
        found = {stored_dtype(part, narrow) for part in node.inputs}
        return found.pop() if len(found) == 1 else wide
    if node.op.name == "cast" and weight.dtype == wide:
        (source,) = node.inputs
        return stored_dtype(source, narrow) if source.dtype.accumulator == wide else wide
    return weight.dtype if weight.dtype in narrow else wide

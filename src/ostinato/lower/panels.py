"""How the right operand of a contraction lies in memory once it is packed.

A product of a few rows takes as long as its weights take to arrive, so panels hold what the weights
are made of and no more: 16-bit floats stay 16 bits wide, integers stay bytes or half bytes, and the
register tile widens what it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.views import VIEWS
from ostinato.records import dataclass
from ostinato.variables import ceil_div

if TYPE_CHECKING:
    from collections.abc import Collection

    from ostinato.dtypes import DType
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = ["BlockScales", "PanelFormat", "stored_dtype"]


@dataclass(frozen=True)
class PanelFormat:
    """How panels hold their elements.

    A row of a panel has an element for each column; here it has, for each column, those of
    ``steps`` consecutive positions of ``k``, which an instruction multiplies and adds together.

    Attributes:
        dtype: of an element in memory.
        steps: how many positions of ``k`` stand side by side.
        halves: whether an element is two 4-bit codes, the low one of this row, the high one of the
            row that would follow.
    """

    dtype: DType
    steps: int = 1
    halves: bool = False

    @property
    def depth(self) -> int:
        """Positions of ``k`` in one row of a panel."""
        return self.steps * (2 if self.halves else 1)

    def size(self, depth: Dim, panel: int) -> Dim:
        """Elements in memory of a panel of ``panel`` columns and ``depth`` positions of ``k``."""
        return ceil_div(depth, self.depth) * (self.steps * panel)

    def __str__(self) -> str:
        return f"{self.dtype.short}{' halves' * self.halves} by {self.steps}"


@dataclass(frozen=True)
class BlockScales:
    """Operands that come in blocks along ``k``, each block with a scale of its own.

    The product of a block is summed on its own, in int32, and counts as often as the product of
    the scales says. 4-bit codes stand for themselves less 8.

    Attributes:
        size: positions of ``k`` in a block.
        a: the argument with the left operand's scales, float32, those of a row side by side.
        a_index: where those of row ``m`` start; affine in ``m`` with a known step.
        b: the argument with the right operand's scales, packed as panels with a row per block.
        b_dtype: their element type.
    """

    size: int
    a: int
    a_index: Dim
    b: int
    b_dtype: DType


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

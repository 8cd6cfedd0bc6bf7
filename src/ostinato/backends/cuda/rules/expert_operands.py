"""The matrices of experts in the order of kernels of few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.rules.expert_operands import ExpertOperands
from ostinato.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ostinato.backends.cuda.rules.column_order import ColumnOrder
    from ostinato.ir.graph import Value
    from ostinato.lower.program import LoweredBuffer
    from ostinato.lower.program_builder import ProgramBuilder

__all__ = ["OrderedExperts"]


@dataclass(frozen=True, eq=False)
class OrderedExperts(ExpertOperands):
    """See :class:`~ostinato.lower.rules.expert_operands.ExpertOperands`.

    Attributes:
        columns: brings matrices into the order of kernels of few rows; ``None``: there are none.
    """

    columns: ColumnOrder | None = None

    def by_columns(
        self, lowering: ProgramBuilder, matrices: Value
    ) -> Mapping[Value, LoweredBuffer] | None:
        """The buffer of some matrices in that order, if they can be in it."""
        if matrices in self.instead:
            return {matrices: self.instead[matrices]}
        if self.columns is None or not self.columns.possible(lowering, matrices):
            return None
        return {matrices: self.columns.of(lowering, matrices)}

"""What every group of vocabulary methods stands on: how a method applies an op."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ostinato.dtypes import BOOL, FLOAT32, INT64, DType
from ostinato.errors import GraphError
from ostinato.ir.op import Attr, Op

__all__ = ["T", "VocabularyCore"]

#: What the methods take and give: a graph's ``Value``, or a session's ``Buffer``.
T = TypeVar("T")


class VocabularyCore(ABC, Generic[T]):
    """The two things that a holder of the vocabulary supplies, and how operands are lifted."""

    @abstractmethod
    def apply(self, op: Op, operands: Sequence[T], attrs: dict[str, Attr]) -> tuple[T, ...]:
        """Apply ``op``: append a node, or encode a dispatch."""

    @abstractmethod
    def constant(self, array: Any, dtype: Any = None) -> T:
        """An operand that holds ``array``."""

    @abstractmethod
    def dtype_of(self, operand: Any) -> DType | None:
        """The dtype of an operand; ``None`` for what is no operand yet (a scalar, an array)."""

    def _one(self, op: Op, *operands: T, **attrs: Attr) -> T:
        return self.apply(op, operands, attrs)[0]

    def _lift(self, *operands: Any) -> tuple[T, ...]:
        """Operands of an elementwise op: Python scalars take the dtype of the arrays they meet."""
        known = [dtype for o in operands if (dtype := self.dtype_of(o)) is not None]
        return tuple(
            o if self.dtype_of(o) is not None else self._lift_one(o, known) for o in operands
        )

    def _lift_one(self, operand: Any, known: Sequence[DType]) -> T:
        if isinstance(operand, bool | int | float) and not isinstance(operand, np.generic):
            return self.constant(operand, _weak_dtype(operand, known))
        return self.constant(operand)


def _weak_dtype(scalar: bool | float, known: Sequence[DType]) -> DType:
    if isinstance(scalar, bool):
        return BOOL
    kinds = [d for d in known if not d.is_bool]
    floats = [d for d in kinds if d.is_float]
    if isinstance(scalar, float):
        return floats[0] if floats else FLOAT32
    dtype = (floats or kinds or [INT64])[0]
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        if not info.min <= scalar <= info.max:
            raise GraphError(f"the Python int {scalar} does not fit {dtype}; cast the array first")
    return dtype

"""Selection of the greatest, and searches in what is sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.dtypes import INT64
from ostinato.ir.facts import Fact
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.base import normalize_axis
from ostinato.variables import Expr, bounds, provably_at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FAMILY", "SEARCHSORTED", "TOPK"]


class Topk(Op):
    """The ``k`` greatest (or least) elements along ``axis``, in order, and their int64 indices.

    Equal elements come in the order of their indices. NaN counts as the greatest.
    """

    name = "topk"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        axis, k = normalize_axis(attrs["axis"], x.ndim), attrs["k"]
        self.expect(not x.dtype.is_bool, "expected a numeric operand, got bool")
        self.expect(
            isinstance(k, int | Expr) and not isinstance(k, bool) and bounds(k)[1] >= 0,
            f"k is a size from 0 up, got {k!r}",
        )
        self.expect_facts(operands, attrs)
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        return TensorType(x.dtype, shape), TensorType(INT64, shape)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        (x,) = operands
        axis, k = normalize_axis(attrs["axis"], x.ndim), attrs["k"]
        size = x.shape[axis]
        if provably_at_most(k, size):
            return []
        return [Fact(size - k, 0, f"k is {k}, but axis {axis} of {x} has {size} elements")]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        axis = attrs["axis"]
        order = xp.argsort(x, axis=axis, descending=attrs["largest"])
        chosen = order[(slice(None),) * axis + (slice(0, attrs["k"]),)]
        return xp.take_along_axis(x, chosen, axis=axis), xp.cast(chosen, INT64)


class Searchsorted(Op):
    """The int64 positions at which values keep the order of a sorted sequence.

    Operands: ``sequence``, ascending along its last axis, and ``values`` of its dtype. The sequence
    is a vector, or has the leading axes of ``values``: one for each of their rows. NaN counts as
    the greatest. Of several positions it is the first one, or with ``right`` the last.
    """

    name = "searchsorted"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 2)
        sequence, values = operands
        self.expect(not sequence.dtype.is_bool, "expected numbers, got bool; cast them first")
        self.expect(
            sequence.dtype == values.dtype,
            f"expected values of {sequence.dtype}, got {values}; cast them first",
        )
        self.expect(
            sequence.ndim == 1
            or (sequence.ndim == values.ndim and sequence.shape[:-1] == values.shape[:-1]),
            f"a sorted sequence is a vector, or one for each row of {values}, got {sequence}",
        )
        return (TensorType(INT64, values.shape),)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.searchsorted(*operands, right=attrs["right"])


TOPK, SEARCHSORTED = Topk(), Searchsorted()

FAMILY: tuple[Op, ...] = (TOPK, SEARCHSORTED)

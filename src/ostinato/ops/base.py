"""What families of ops share: broadcasting, axes, and the class of elementwise ops."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import ClassVar, Literal

from ostinato.dtypes import BOOL, FLOAT32, DType, promote
from ostinato.errors import GraphError
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.variables import Dim

__all__ = ["Elementwise", "broadcast_shapes", "normalize_axes", "normalize_axis"]


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common shape under NumPy's broadcasting rules. Symbolic dims must match or meet a 1.

    Raises:
        GraphError: two dims differ and neither is 1.
    """
    ndim = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * ndim
    for shape in shapes:
        for i, dim in enumerate(shape, ndim - len(shape)):
            if result[i] == 1:
                result[i] = dim
            elif dim not in (1, result[i]):
                shown = ", ".join(f"[{','.join(map(str, s))}]" for s in shapes)
                raise GraphError(f"shapes {shown} do not broadcast: {result[i]} meets {dim}")
    return tuple(result)


def normalize_axis(axis: int, ndim: int) -> int:
    """``axis`` counted from the front.

    Raises:
        GraphError: it is no int within ``-ndim..ndim-1``.
    """
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise GraphError(f"an axis is an int, got {axis!r}")
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise GraphError(f"axis {index} is out of range for {ndim} dimensions")
    return index % ndim


def normalize_axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """``axis`` as sorted, distinct axes counted from the front; ``None`` means all of them.

    Raises:
        GraphError: an axis is out of range or given twice.
    """
    if axis is None:
        return tuple(range(ndim))
    listed = axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple(sorted(normalize_axis(a, ndim) for a in listed))
    if len(set(axes)) != len(axes):
        raise GraphError(f"axis {axis!r} names a dimension twice")
    return axes


class Elementwise(Op):
    """An op whose result at an index depends on its operands at that index alone.

    Operands broadcast against each other. ``evaluate`` is written with Python's operators and the
    functions of ``xp``, so the very same rule also emits vector code (DESIGN, "ops").

    Attributes:
        arity: how many operands.
        result: how the result's dtype follows from the promoted operand dtype: ``"same"``,
            ``"bool"``, or ``"float"`` (integers become float32).
        domain: which operand kinds are accepted.
        cost: floating point operations per element, for reports.
    """

    arity: ClassVar[int] = 1
    result: ClassVar[Literal["same", "bool", "float"]] = "same"
    domain: ClassVar[Literal["any", "numeric", "float", "integer", "integral", "bool"]] = "any"
    cost: ClassVar[int] = 1

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect(
            len(operands) == self.arity, f"takes {self.arity} operands, got {len(operands)}"
        )
        shape = broadcast_shapes(*(t.shape for t in operands))
        return (TensorType(self.result_dtype(*(t.dtype for t in operands), **attrs), shape),)

    def result_dtype(self, *dtypes: DType, **attrs: Attr) -> DType:
        """The result's dtype, after checking the operands' kinds."""
        dtype = self.operand_dtype(*dtypes)
        self._check_domain(dtype)
        if self.result == "bool":
            return BOOL
        if self.result == "float" and not dtype.is_float:
            return FLOAT32
        return dtype

    def operand_dtype(self, *dtypes: DType) -> DType:
        """The dtype that the operands are converted to before the rule is applied."""
        common = dtypes[0]
        for dtype in dtypes[1:]:
            common = promote(common, dtype)
        return common

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result, *_) = self.infer(*operands, **attrs)
        return result.size * self.cost if result.dtype.is_float else 0

    def _check_domain(self, dtype: DType) -> None:
        accepted = {
            "any": True,
            "numeric": not dtype.is_bool,
            "float": dtype.is_float,
            "integer": dtype.is_integer,
            "integral": dtype.is_integer or dtype.is_bool,
            "bool": dtype.is_bool,
        }[self.domain]
        self.expect(accepted, f"expected {self.domain} operands, got {dtype}")

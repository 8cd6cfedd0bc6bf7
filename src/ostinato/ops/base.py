"""Shared parts of op families: broadcasting, axes, and the class of elementwise ops."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ostinato.dtypes import BOOL, FLOAT32, DType, promote
from ostinato.errors import GraphError
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.variables import Requirement

if TYPE_CHECKING:
    from ostinato.ir.graph import Value
    from ostinato.variables import Dim

__all__ = [
    "Composite",
    "Domain",
    "Elementwise",
    "broadcast_shapes",
    "normalize_axes",
    "normalize_axis",
]


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
                raise GraphError.of(
                    f"shapes {shown} do not broadcast: {result[i]} meets {dim}",
                    Requirement(result[i] - dim, equal=True),
                )
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


#: The operand kinds that an op accepts: ``"integral"`` is integers and bools, ``"numeric"`` all but
#: bools.
Domain: TypeAlias = Literal["any", "numeric", "float", "integer", "integral", "bool"]


class Composite(Op):
    """An op made of others: one rule both evaluates it and decomposes it.

    A graph's methods and an array namespace's functions have the same names, so a rule written
    with them and with Python's operators gives arrays on the one and nodes on the other.

    Attributes:
        widens: whether the decomposition computes 16-bit floats in float32; an op that only moves
            elements has no use for that.
    """

    widens: ClassVar[bool] = True

    @abstractmethod
    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        """The result, in the functions that the vocabulary and array namespaces share."""

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return self.rule(xp, *operands, **attrs)

    def decompose(self, g: Any, operands: Sequence[Value], attrs: dict[str, Attr]) -> Any:
        """The rule on ``g``, in float32 between 16-bit operands and results: rounded once."""
        if not self.widens:
            return self.rule(g, *operands, **attrs)
        (declared,) = self.infer(*(v.type for v in operands), **attrs)
        wide = [g.cast(v, v.dtype.accumulator) for v in operands]
        return g.cast(self.rule(g, *wide, **attrs), declared.dtype)


class Elementwise(Op):
    """An op whose result at an index depends on its operands at that index alone.

    Operands broadcast against each other. ``evaluate`` is written with Python's operators and the
    functions of ``xp``, so the very same rule also emits vector code.

    Attributes:
        arity: how many operands.
        result: how the result's dtype follows from the promoted operand dtype: ``"same"``,
            ``"bool"``, or ``"float"`` (integers are computed as float32).
        domain: which operand kinds are accepted.
        cost: floating point operations per element, for reports.
        short: whether it takes a few instructions; others are polynomials and the like.
        parameters: the names of the op's attributes, all of which are numbers unless
            ``check_attrs`` says otherwise.
    """

    arity: ClassVar[int] = 1
    result: ClassVar[Literal["same", "bool", "float"]] = "same"
    domain: ClassVar[Domain] = "any"
    cost: ClassVar[int] = 1
    short: ClassVar[bool] = False
    parameters: ClassVar[tuple[str, ...]] = ()

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, self.arity)
        self.expect(
            sorted(attrs) == sorted(self.parameters),
            f"takes the attributes {self.parameters}, got {tuple(attrs)}",
        )
        self.check_attrs(**attrs)
        shape = broadcast_shapes(*(t.shape for t in operands))
        return (TensorType(self.result_dtype(*(t.dtype for t in operands), **attrs), shape),)

    def check_attrs(self, **attrs: Attr) -> None:
        """Refuse attributes that make no sense.

        Raises:
            GraphError: an attribute is no number.
        """
        for name, value in attrs.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            self.expect(number, f"{name} is a number, got {value!r}")

    def result_dtype(self, *dtypes: DType, **attrs: Attr) -> DType:
        """The result's dtype, after checking the operands' kinds."""
        common = self.common_dtype(*dtypes)
        self._check_domain(common)
        if self.result == "bool":
            return BOOL
        return self._computed_dtype(common)

    def operand_dtypes(self, *dtypes: DType, **attrs: Attr) -> tuple[DType, ...]:
        """The dtype that each operand is converted to before the rule is applied."""
        return (self._computed_dtype(self.common_dtype(*dtypes)),) * len(dtypes)

    def common_dtype(self, *dtypes: DType) -> DType:
        """The dtype that the operands promote to."""
        common = dtypes[0]
        for dtype in dtypes[1:]:
            common = promote(common, dtype)
        return common

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        (result, *_) = self.infer(*operands, **attrs)
        return result.size * self.cost if result.dtype.is_float else 0

    def _computed_dtype(self, common: DType) -> DType:
        return FLOAT32 if self.result == "float" and not common.is_float else common

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

"""Reductions and scans.

Sums and products keep the dtype of their operand, so those of small integers wrap;
the vocabulary converts bools to int64 first. 16-bit floats are accumulated in
float32. A reduction over no elements gives its neutral element, which for ``max`` is minus
infinity or the least integer; but ``max``, ``min``, ``argmax`` and ``argmin`` of a graph need an
element (:mod:`ostinato.ir.facts`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ostinato.dtypes import BOOL, INT64
from ostinato.ir.facts import Fact
from ostinato.ir.op import Attr, Op
from ostinato.ir.types import TensorType
from ostinato.ops.base import Composite, normalize_axes, normalize_axis
from ostinato.variables import Dim, prod

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The reductions that have results on the way.
Running: TypeAlias = Literal["sum", "prod", "max", "min", "logsumexp"]

__all__ = [
    "ALL",
    "ANY",
    "ARGMAX",
    "ARGMIN",
    "CUMMAX",
    "CUMMIN",
    "CUMPROD",
    "CUMSUM",
    "FAMILY",
    "LOGCUMSUMEXP",
    "LOGSUMEXP",
    "MAX",
    "MEAN",
    "MIN",
    "NORM",
    "PROD",
    "STD",
    "SUM",
    "VAR",
    "Reduction",
    "Scan",
]


class Reduces(Op):
    """Typing of ops that reduce the axes ``axis`` (a sorted tuple), keeping them as 1 if asked.

    Attributes:
        domain: which operands are accepted.
    """

    domain: ClassVar[Literal["any", "numeric", "float"]] = "numeric"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        accepted = {
            "any": True,
            "numeric": not x.dtype.is_bool,
            "float": x.dtype.is_float,
        }[self.domain]
        self.expect(accepted, f"expected a {self.domain} operand, got {x.dtype}")
        axes = attrs["axis"]
        self.expect(
            isinstance(axes, tuple) and normalize_axes(axes, x.ndim) == axes,
            f"axis is a sorted tuple of axes, got {axes!r}",
        )
        return (TensorType(x.dtype, reduced_shape(x.shape, axes, attrs["keepdims"])),)


class Reduction(Reduces):
    """A reduction that every array namespace has under the op's own name."""

    takes_epilogue = True
    writes_subviews = True
    reads_once = True
    reduces = True

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        reduce = getattr(xp, self.name)
        return reduce(operands[0], axis=attrs["axis"], keepdims=attrs["keepdims"])

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size if operands[0].dtype.is_float else 0


class Sum(Reduction):
    """The sum; 0 of nothing."""

    name = "sum"


class Prod(Reduction):
    """The product; 1 of nothing."""

    name = "prod"


class Extremum(Reduction):
    """The greatest or the least element; NaN where there is one."""

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        (result,) = super().infer(*operands, **attrs)
        self.expect_facts(operands, attrs)
        return (result,)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        return [_nonempty(self, operands[0], axis, attrs["axis"]) for axis in attrs["axis"]]


class Max(Extremum):
    """The greatest element."""

    name = "max"


class Min(Extremum):
    """The least element."""

    name = "min"


class Truth(Reduction):
    """A truth value of many: an element counts as true if it is not zero."""

    domain = "any"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        (result,) = super().infer(*operands, **attrs)
        return (TensorType(BOOL, result.shape),)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return 0


class AnyTrue(Truth):
    """Whether an element is not zero; false of nothing."""

    name = "any"


class AllTrue(Truth):
    """Whether no element is zero; true of nothing."""

    name = "all"


class Arg(Op):
    """The int64 index along ``axis`` of the first extreme element; the first NaN wins."""

    takes_epilogue = True
    writes_subviews = True
    reduces = True

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        axis = normalize_axis(attrs["axis"], x.ndim)
        shape = reduced_shape(x.shape, (axis,), attrs["keepdims"])
        self.expect_facts(operands, attrs)
        return (TensorType(INT64, shape),)

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        axis = normalize_axis(attrs["axis"], operands[0].ndim)
        return [_nonempty(self, operands[0], axis, (axis,))]

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        find = getattr(xp, self.name)
        return find(operands[0], axis=attrs["axis"], keepdims=attrs["keepdims"])


class Argmax(Arg):
    """The index of the greatest element."""

    name = "argmax"


class Argmin(Arg):
    """The index of the least element."""

    name = "argmin"


class Scan(Op):
    """A running result along ``axis``.

    ``exclusive`` leaves each element out of its own result; ``reverse`` runs from the end.

    Attributes:
        running: the reduction whose results on the way these are.
        neutral: the exclusive result of the first element; ``None``: there is none.
    """

    running: ClassVar[Running]
    neutral: ClassVar[int | None] = None

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        self.expect_count(operands, 1)
        (x,) = operands
        self.expect(not x.dtype.is_bool, "expected a numeric operand, got bool")
        self.expect(
            self.neutral is not None or not attrs["exclusive"], "nothing comes before the first"
        )
        normalize_axis(attrs["axis"], x.ndim)
        return (x,)

    def evaluate(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        axis = attrs["axis"]
        if attrs["reverse"]:
            x = xp.flip(x, axis)
        x = getattr(xp, self.name)(x, axis=axis)
        if attrs["exclusive"]:
            before = tuple(int(a == axis) for a in range(len(x.shape)))
            shifted = xp.pad(x, before, (0,) * len(before), self.neutral)
            x = shifted[(slice(None),) * axis + (slice(0, x.shape[axis]),)]
        return xp.flip(x, axis) if attrs["reverse"] else x

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size if operands[0].dtype.is_float else 0


class Cumsum(Scan):
    """The running sum."""

    name = "cumsum"
    running = "sum"
    neutral = 0


class Cumprod(Scan):
    """The running product."""

    name = "cumprod"
    running = "prod"
    neutral = 1


class Cummax(Scan):
    """The greatest element so far; NaN from the first one on."""

    name = "cummax"
    running = "max"


class Cummin(Scan):
    """The least element so far; NaN from the first one on."""

    name = "cummin"
    running = "min"


class Logcumsumexp(Scan):
    """The running ``log(sum(exp(x)))`` of floats, without overflow."""

    name = "logcumsumexp"
    running = "logsumexp"

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        (result,) = super().infer(*operands, **attrs)
        self.expect(result.dtype.is_float, f"expected floats, got {result.dtype}")
        return (result,)

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * 3


class Statistic(Reduces, Composite):
    """A reduction of floats made of other ops."""

    domain = "float"

    #: Arithmetic per element of the operand, for reports.
    cost: ClassVar[int] = 1

    def flops(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> Dim:
        return operands[0].size * self.cost


class Mean(Statistic):
    """The arithmetic mean; NaN of nothing."""

    name = "mean"

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _mean(xp, operands[0], attrs["axis"], attrs["keepdims"])


class Var(Statistic):
    """The mean of squared distances from the mean, over ``n - correction``."""

    name = "var"
    cost = 4

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return _variance(xp, operands[0], **attrs)


class Std(Statistic):
    """The square root of the variance."""

    name = "std"
    cost = 4

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        return xp.sqrt(_variance(xp, operands[0], **attrs))


class Logsumexp(Statistic):
    """``log(sum(exp(x)))`` without overflow; minus infinity of nothing."""

    name = "logsumexp"
    cost = 3

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        axis, keepdims = attrs["axis"], attrs["keepdims"]
        if 0 in (x.shape[a] for a in axis):  # nothing has no maximum
            return xp.log(xp.sum(x, axis=axis, keepdims=keepdims))
        greatest = xp.max(x, axis=axis, keepdims=True)
        # An infinite maximum would turn differences into NaN.
        shift = xp.where(xp.isfinite(greatest), greatest, 0.0)
        total = xp.sum(xp.exp(x - shift), axis=axis, keepdims=keepdims)
        if not keepdims:
            shift = xp.reshape(shift, tuple(total.shape))
        return xp.log(total) + shift


class Norm(Statistic):
    """The vector norm of order ``ord``: a number, or an infinity for the extreme magnitudes."""

    name = "norm"
    cost = 2

    def infer(self, *operands: TensorType, **attrs: Attr) -> tuple[TensorType, ...]:
        order = attrs["ord"]
        self.expect(
            isinstance(order, int | float) and not isinstance(order, bool) and order != 0,
            f"ord is a number other than 0, got {order!r}",
        )
        inferred = super().infer(*operands, **attrs)
        self.expect_facts(operands, attrs)
        return inferred

    def facts(self, operands: Sequence[TensorType], attrs: dict[str, Attr]) -> list[Fact]:
        if not math.isinf(attrs["ord"]):
            return []
        return [_nonempty(self, operands[0], axis, attrs["axis"]) for axis in attrs["axis"]]

    def rule(self, xp: Any, *operands: Any, **attrs: Attr) -> Any:
        (x,) = operands
        order = attrs["ord"]
        over = {"axis": attrs["axis"], "keepdims": attrs["keepdims"]}
        if order == 2:
            return xp.sqrt(xp.sum(xp.square(x), **over))
        magnitude = xp.abs(x)
        if order == 1:
            return xp.sum(magnitude, **over)
        if math.isinf(order):
            return xp.max(magnitude, **over) if order > 0 else xp.min(magnitude, **over)
        return xp.sum(magnitude**order, **over) ** (1.0 / order)


def reduced_shape(shape: Sequence[Dim], axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """The shape that remains of ``shape`` when ``axes`` are reduced."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _nonempty(op: Op, x: TensorType, axis: int, axes: Sequence[int]) -> Fact:
    """The fact that ``axis``, one of the reduced ``axes``, has an element if there is a result."""
    results = prod(reduced_shape(x.shape, axes, keepdims=False))
    problem = f"{x} has no elements along axis {axis}, so there is no {op.name}"
    return Fact(x.shape[axis], 1, problem, results)


def _count(xp: Any, x: Any, axes: Sequence[int]) -> Any:
    """The number of elements reduced to one: a float, or a scalar of the graph if symbolic."""
    count = prod(x.shape[a] for a in axes)
    return float(count) if isinstance(count, int) else xp.cast(xp.dim_value(count), x.dtype)


def _mean(xp: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return xp.sum(x, axis=axis, keepdims=keepdims) / _count(xp, x, axis)


def _variance(xp: Any, x: Any, axis: tuple[int, ...], keepdims: bool, correction: float) -> Any:
    # Two passes: the difference of large squares would lose what is asked for.
    distance = x - _mean(xp, x, axis, True)
    total = xp.sum(distance * distance, axis=axis, keepdims=keepdims)
    freedom = _count(xp, x, axis) - correction
    return total / (max(freedom, 0.0) if isinstance(freedom, float) else xp.maximum(freedom, 0.0))


SUM, PROD, MAX, MIN, ANY, ALL = Sum(), Prod(), Max(), Min(), AnyTrue(), AllTrue()
ARGMAX, ARGMIN, CUMSUM, CUMPROD = Argmax(), Argmin(), Cumsum(), Cumprod()
CUMMAX, CUMMIN, LOGCUMSUMEXP = Cummax(), Cummin(), Logcumsumexp()
MEAN, VAR, STD, LOGSUMEXP, NORM = Mean(), Var(), Std(), Logsumexp(), Norm()

FAMILY: tuple[Op, ...] = (
    SUM,
    PROD,
    MAX,
    MIN,
    ANY,
    ALL,
    ARGMAX,
    ARGMIN,
    CUMSUM,
    CUMPROD,
    CUMMAX,
    CUMMIN,
    LOGCUMSUMEXP,
    MEAN,
    VAR,
    STD,
    LOGSUMEXP,
    NORM,
)

"""Reductions in registers: what they start from, how they grow, how lanes become one."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from llvmlite import ir

from ostinato.backends.cpu.llvm.kernel import stack_slot
from ostinato.backends.cpu.llvm.lanes import Lane, broadcast, intrinsic, is_nan, where
from ostinato.backends.cpu.llvm.memory import splat
from ostinato.backends.cpu.llvm.types import I32, Scalar, register_type
from ostinato.dtypes import BOOL, INT32, INT64, DType
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.lower.loopir.nodes import Reduce, Update

__all__ = ["RunningReduction", "State", "across_vectors", "finished", "updated"]

_BEYOND = {INT32: (1 << 31) - 1, INT64: (1 << 63) - 1}
"""Index before anything is found: any element that was really there has a lower index."""

State: TypeAlias = tuple[Lane, ...]
"""The value so far; for argmax and argmin, the extreme value and its index."""


@dataclass(frozen=True, eq=False)
class RunningReduction:
    """The state of one reduction in one vector, kept in stack slots that become registers."""

    builder: ir.IRBuilder
    reduction: Reduce
    width: int
    slots: tuple[ir.Value, ...]

    @staticmethod
    def start(builder: ir.IRBuilder, reduction: Reduce, width: int) -> RunningReduction:
        """A reduction of nothing yet."""
        made = RunningReduction(
            builder,
            reduction,
            width,
            tuple(stack_slot(builder, register_type(t, width)) for t in _dtypes(reduction)),
        )
        made._write(
            tuple(
                splat(builder, value, dtype, width)
                for value, dtype in zip(_neutral(reduction), _dtypes(reduction), strict=True)
            )
        )
        return made

    def add(self, state: State, mask: ir.Value | None) -> None:
        """Takes another element per lane in, where the mask allows."""
        old = self.state()
        given = (x.astype(y.dtype) for x, y in zip(state, old, strict=True))
        new = _combined(self.reduction, old, tuple(broadcast(x, self.width) for x in given))
        if mask is not None:
            flags = Lane(self.builder, mask, BOOL, self.width)
            new = tuple(where(flags, n, o) for n, o in zip(new, old, strict=True))
        self._write(new)

    def add_product(self, x: Lane, y: Lane) -> None:
        """Adds a product to a sum of floats, rounded once where the processor can."""
        (total,) = self.state()
        x, y = (broadcast(factor.astype(total.dtype), self.width) for factor in (x, y))
        # fmuladd, not fma: without the instruction, fma would be a library call.
        self._write((intrinsic("fmuladd", x, y, total),))

    def state(self) -> State:
        """The reduction of what has been taken in so far."""
        return tuple(
            Lane(
                self.builder,
                self.builder.load(slot, typ=register_type(dtype, self.width)),
                dtype,
                self.width,
            )
            for slot, dtype in zip(self.slots, _dtypes(self.reduction), strict=True)
        )

    def _write(self, state: State) -> None:
        for slot, lane in zip(self.slots, state, strict=True):
            self.builder.store(lane.value, slot)


def across_vectors(running: list[RunningReduction]) -> State:
    """One value of all lanes of a reduction that runs in several vectors."""
    reduction = running[0].reduction
    vectors = [f.state() for f in running if f.width == max(f.width for f in running)]
    while len(vectors) > 1:
        half = (len(vectors) + 1) // 2
        pairs = [_combined(reduction, a, b) for a, b in zip(vectors, vectors[half:], strict=False)]
        vectors = pairs + vectors[len(pairs) : half]
    state = vectors[0]
    while state[0].lanes > 1:
        low, high = (tuple(_half(x, part) for x in state) for part in (0, 1))
        state = _combined(reduction, low, high)
    singles = [f.state() for f in running if f.width == 1 and max(g.width for g in running) > 1]
    return reduce(lambda x, y: _combined(reduction, x, y), singles, state)


def finished(reduction: Reduce, state: State) -> Lane:
    """The result that a reduction's register holds."""
    return state[-1].astype(INT64) if len(state) == 2 else state[0]


def updated(update: Update, old: Lane, new: Lane) -> Lane:
    """The value that a store with this update leaves in memory."""
    match update:
        case "set":
            return new
        case "add":
            return old + new
        case "mul":
            return old * new
        case "min" | "max":
            return _extreme(update, old, new)


def _dtypes(reduction: Reduce) -> tuple[DType, ...]:
    value = reduction.value.dtype
    if reduction.op not in ("argmax", "argmin"):
        return (value,)
    return value, INT32 if bounds(reduction.index)[1] < _BEYOND[INT32] else INT64


def _neutral(reduction: Reduce) -> tuple[Scalar, ...]:
    dtype = reduction.value.dtype
    match reduction.op:
        case "sum" | "any":
            return (0,)
        case "prod" | "all":
            return (1,)
        case "max":
            return (dtype.lowest,)
        case "min":
            return (dtype.highest,)
        case "argmax":
            return (dtype.lowest, _BEYOND[_dtypes(reduction)[1]])
        case "argmin":
            return (dtype.highest, _BEYOND[_dtypes(reduction)[1]])


def _combined(reduction: Reduce, x: State, y: State) -> State:
    op = reduction.op
    match op:
        case "sum":
            return (x[0] + y[0],)
        case "prod":
            return (x[0] * y[0],)
        case "any":
            return (x[0] | y[0],)
        case "all":
            return (x[0] & y[0],)
        case "max" | "min":
            return (_extreme(op, x[0], y[0]),)
        case "argmax" | "argmin":
            return _first_extreme(op == "argmax", x, y)


def _extreme(op: str, x: Lane, y: Lane) -> Lane:
    """The greater or lesser, NaN before all."""
    if x.dtype.is_bool:
        return x | y if op == "max" else x & y
    if x.dtype.is_integer:
        return x.like(x.integers.extremum(op, x.value, y.value))
    # One instruction, which keeps x where either is NaN.
    larger = where(y > x if op == "max" else y < x, y, x)
    return where(is_nan(y), y, larger)


def _first_extreme(greatest: bool, x: State, y: State) -> State:
    """The extreme value with its index; NaN before all, and of equals the one that came first."""
    (a, i), (b, j) = x, y
    better = (b > a) if greatest else (b < a)
    equal = a == b
    if a.dtype.is_float:
        a_nan, b_nan = is_nan(a), is_nan(b)
        better = (better | b_nan) & ~a_nan
        equal = equal | (a_nan & b_nan)
    take = better | (equal & (j < i))
    return where(take, b, a), where(take, j, i)


def _half(lane: Lane, part: int) -> Lane:
    size = lane.lanes // 2
    if size == 1:
        element = lane.builder.extract_element(lane.value, I32(part))
        return Lane(lane.builder, element, lane.dtype, 1)
    chosen = ir.Constant(ir.VectorType(I32, size), [part * size + i for i in range(size)])
    half = lane.builder.shuffle_vector(lane.value, lane.value, chosen)
    return Lane(lane.builder, half, lane.dtype, size)

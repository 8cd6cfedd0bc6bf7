"""Reductions of few results over many elements, as two kernels.

The first one reduces sections of the elements, so that all multiprocessors have work; the second
one reduces what those have left. Both have a fixed order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.dtypes import INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Arg,
    Binding,
    Guard,
    Load,
    Number,
    Reduce,
    Ref,
    Stage,
    Store,
    extent_of,
    max_extent,
)
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.loopir.views import linear_index
from ostinato.lower.program import Call, LoweredBuffer
from ostinato.records import replace
from ostinato.variables import Expr, Symbol, axis, bounds, prod, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.nodes import Reduction, Scalar, Statement
    from ostinato.lower.program import Role
    from ostinato.variables import Dim

__all__ = ["split_reduction"]

#: Results that are so many give work to all multiprocessors.
_FEW_RESULTS = 64

#: Elements of a result that are worth two kernels, and elements of a section.
_MANY_ELEMENTS = 1 << 16
_SECTION = 1 << 13

#: Sections of a result, at most: the second kernel has a block of threads for each result.
_MOST_SECTIONS = 1024

#: Reductions that find an index, and those that find the value there.
_INDICES: dict[str, Reduction] = {"argmax": "max", "argmin": "min"}

#: The result of a reduction of nothing.
_NEUTRAL = {"sum": 0, "prod": 1, "any": False, "all": True}


def split_reduction(call: Call, partial: Role) -> list[Call]:
    """The call, or two that do the same.

    Args:
        call: of a loop nest.
        partial: the role of memory for the results of sections.
    """
    nest = call.kernel
    assert isinstance(nest, LoopNest)
    reductions = _reductions(nest)
    if not reductions:
        return [call]
    ((along,), count) = nest.stages[0].axes, max_extent(nest.stages[0].axes[0])
    sections = _sections(count)
    length = -(-count // sections)
    section, element = axis(f"{along.name}.section", sections), axis(f"{along.name}.in", length)
    outer = nest.outer_axes
    place = linear_index(
        [*map(extent_of, outer), sections], [*(_value(symbol) for symbol in outer), section]
    )
    size = bounds(prod([*map(extent_of, outer), sections]))[1]
    kept = [found for reduction in reductions for found in _kept(reduction)]
    temps = [
        LoweredBuffer(TensorType(_result(r), (size,)), partial, f"sections of {call.title}")
        for r in kept
    ]
    first = len(nest.args)
    at = section * length + element
    rewriter = Rewriter(index=lambda dim: substitute(dim, {along: at}))
    parts = [rewriter.statement(reduction) for reduction in kept]
    if count % sections:
        parts = [_within(part, count - 1 - at) for part in parts]
    stores = [Store(first + i, place, Ref(r.name, _result(r))) for i, r in enumerate(kept)]
    begin = (Stage(_axis_of(element), tuple(parts)), Stage((), tuple(stores)))
    numbers = {r.name: first + i for i, r in enumerate(kept)}
    joined = [_joined(r, numbers, place, section) for r in reductions]
    found = [_found(r, numbers, place, section) for r in reductions if r.op in _INDICES]
    end = (
        Stage(_axis_of(section), tuple(joined)),
        *([Stage((), tuple(found))] if found else []),
        *nest.stages[1:],
    )
    buffers = (*call.buffers, *temps)
    axes = (*nest.axes, *_axis_of(section))
    return [
        _call(call, axes, begin, buffers, call.flops),
        _call(call, nest.axes, end, buffers, 0),
    ]


def _reductions(nest: LoopNest) -> list[Reduce]:
    """The reductions of a nest that is worth two kernels; else none."""
    points = math.prod(map(max_extent, nest.outer_axes))
    if not nest.parallel or nest.temps or len(nest.stages) != 2 or points > _FEW_RESULTS:
        return []
    (first, last) = nest.stages
    if len(first.axes) != 1 or last.axes or not isinstance(extent_of(first.axes[0]), int):
        return []
    if max_extent(first.axes[0]) < _MANY_ELEMENTS:
        return []
    found = [s for s in first.statements if isinstance(s, Reduce)]
    whole = len(found) == len(first.statements)
    return found if whole and all(isinstance(s, Store) for s in last.statements) else []


def _kept(reduction: Reduce) -> list[Reduce]:
    """The reductions of a section: that itself, and of an index, the value there, too."""
    if reduction.op not in _INDICES:
        return [reduction]
    op, dtype = _INDICES[reduction.op], reduction.value.dtype
    return [reduction, Reduce(f"{reduction.name}.value", op, reduction.value, dtype)]


def _result(reduction: Reduce) -> DType:
    """The dtype of a reduction's result."""
    return INT64 if reduction.op in _INDICES else reduction.dtype


def _joined(reduction: Reduce, numbers: Mapping[str, int], place: Dim, section: Dim) -> Reduce:
    """The reduction of what sections have left; of an index, the number of the section.

    Args:
        reduction: of all elements.
        numbers: by name of a reduction, the buffer with the results of its sections.
        place: the position of a section's result.
        section: its number.
    """
    if reduction.op not in _INDICES:
        load = Load(numbers[reduction.name], place, reduction.dtype)
        return Reduce(reduction.name, reduction.op, load, reduction.dtype)
    values = numbers[f"{reduction.name}.value"]
    load = Load(values, place, reduction.value.dtype)
    return Reduce(f"{reduction.name}.section", reduction.op, load, reduction.dtype, section)


def _found(reduction: Reduce, numbers: Mapping[str, int], place: Dim, section: Dim) -> Reduce:
    """The index that the section has left which :func:`_joined` finds."""
    (symbol,) = symbols(section)
    chosen = Symbol(f"{symbol.name}.found", 0, bounds(section)[1])
    bound = Binding(chosen, Ref(f"{reduction.name}.section", INT64))
    at = substitute(place, {symbol: _value(chosen)})
    load = Load(numbers[reduction.name], at, INT64, (bound,))
    return Reduce(reduction.name, "sum", load, INT64)


def _sections(count: int) -> int:
    """The number of sections: one that divides ``count``, if there is one of about that size."""
    most = min(-(-count // _SECTION), _MOST_SECTIONS)
    for sections in range(most, most // 2, -1):
        if count % sections == 0:
            return sections
    return most


def _axis_of(index: Dim) -> tuple[Symbol, ...]:
    """The axis that an index is; none if it is a constant."""
    return tuple(symbols(index))


def _value(symbol: Symbol) -> Dim:
    return Expr({(symbol,): 1}, 0)


def _within(statement: Statement, condition: Dim) -> Statement:
    """A reduction of elements that are there, in a section that may reach beyond them."""
    assert isinstance(statement, Reduce)
    value = statement.value
    guarded = Guard((condition,), value, _neutral(statement), value.dtype)
    return replace(statement, value=guarded, fused=False)


def _neutral(reduction: Reduce) -> Number:
    dtype = reduction.value.dtype
    if reduction.op in _NEUTRAL:
        return Number(_NEUTRAL[reduction.op], dtype)
    least = reduction.op in ("max", "argmax")
    if dtype.is_float:
        return Number(-math.inf if least else math.inf, dtype)
    if dtype.is_bool:
        return Number(not least, dtype)
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    return Number(low if least else low + (1 << dtype.bits) - 1, dtype)


def _call(
    call: Call,
    axes: Sequence[Symbol],
    stages: Sequence[Stage],
    buffers: Sequence[LoweredBuffer],
    flops: Dim,
) -> Call:
    """A call with those of the buffers that its stages use."""
    statements = [statement for stage in stages for statement in stage.statements]
    starts: list[Scalar] = [root for statement in statements for root in roots(statement)]
    read = {scalar.buffer for scalar in reached(starts) if isinstance(scalar, Load)}
    written = {s.buffer for s in statements if isinstance(s, Store)}
    used = sorted(read | written)
    rewriter = Rewriter(buffer=used.index)
    nest = call.kernel
    assert isinstance(nest, LoopNest)
    done = tuple(
        Stage(stage.axes, tuple(map(rewriter.statement, stage.statements))) for stage in stages
    )
    args = tuple(Arg(buffers[i].type.dtype, i in read, i in written) for i in used)
    kernel = LoopNest(args, tuple(axes), done, inner_axis=nest.inner_axis, variables=nest.variables)
    return replace(call, kernel=kernel, buffers=tuple(buffers[i] for i in used), flops=flops)

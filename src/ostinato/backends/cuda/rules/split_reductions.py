"""Reductions of few results over many elements, as two kernels.

The first one reduces sections of the elements, so that all multiprocessors have work; the second
one reduces what those have left. Both have a fixed order. Where the position of an extreme is
wanted, sections leave the extreme, too: the second kernel finds the section with the greatest or
least one, then takes its position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ostinato.dtypes import BOOL, INT64
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nest import LoopNest
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Guard,
    IndexValue,
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
from ostinato.variables import Expr, axis, bounds, prod, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ostinato.lower.loopir.nodes import Reduction, Scalar, Statement
    from ostinato.lower.program import Role
    from ostinato.variables import Dim, Symbol

__all__ = ["split_reduction"]

#: Results that are so many give work to all multiprocessors.
_FEW_RESULTS = 64

#: Elements of a result that are worth two kernels, and elements of a section.
_MANY_ELEMENTS = 1 << 16
_SECTION = 1 << 13

#: Sections of a result, at most: the second kernel has a block of threads for each result.
_MOST_SECTIONS = 1024

#: Reductions whose results are positions, and those whose results are the elements there.
_EXTREMES: dict[str, Reduction] = {"argmax": "max", "argmin": "min"}

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
    left = [*reductions, *map(_extreme, _of_positions(reductions))]
    types = [INT64 if r.op in _EXTREMES else r.dtype for r in left]
    temps = [
        LoweredBuffer(TensorType(dtype, (size,)), partial, f"sections of {call.title}")
        for dtype in types
    ]
    first = len(nest.args)
    at = section * length + element
    rewriter = Rewriter(index=lambda dim: substitute(dim, {along: at}))
    parts = [rewriter.statement(reduction) for reduction in left]
    if count % sections:
        parts = [_within(part, count - 1 - at) for part in parts]
    stores = [
        Store(first + i, place, Ref(r.name, dtype))
        for i, (r, dtype) in enumerate(zip(left, types, strict=True))
    ]
    begin = (Stage(_axis_of(element), tuple(parts)), Stage((), tuple(stores)))
    loads = {
        r.name: Load(first + i, place, dtype)
        for i, (r, dtype) in enumerate(zip(left, types, strict=True))
    }
    end = (*_joined(reductions, loads, section), *nest.stages[1:])
    buffers = (*call.buffers, *temps)
    axes = (*nest.axes, *_axis_of(section))
    return [
        _call(call, axes, begin, buffers, call.flops),
        _call(call, nest.axes, end, buffers, 0),
    ]


def _of_positions(reductions: Sequence[Reduce]) -> list[Reduce]:
    """Those whose results are positions."""
    return [reduction for reduction in reductions if reduction.op in _EXTREMES]


def _extreme(reduction: Reduce) -> Reduce:
    """The element at the position that a reduction finds."""
    op = _EXTREMES[reduction.op]
    return replace(reduction, name=f"{reduction.name}.extreme", op=op, index=0)


def _joined(
    reductions: Sequence[Reduce], loads: Mapping[str, Load], section: Dim
) -> Iterator[Stage]:
    """The stages that reduce what sections have left.

    Args:
        reductions: of the whole.
        loads: by name of a reduction of sections, what it has left.
        section: the axis of sections.
    """
    joined = []
    for reduction in reductions:
        if reduction.op in _EXTREMES:
            load = loads[_extreme(reduction).name]
            name = f"{reduction.name}.section"
            joined.append(replace(reduction, name=name, value=load, index=section))
        else:
            joined.append(replace(reduction, value=loads[reduction.name], fused=False))
    yield Stage(_axis_of(section), tuple(joined))
    if not (positions := _of_positions(reductions)):
        return
    again = axis("section.again", _extent(section))
    rewriter = Rewriter(index=lambda dim: substitute(dim, dict.fromkeys(_axis_of(section), again)))
    taken = []
    for reduction in positions:
        found = Ref(f"{reduction.name}.section", INT64)
        own = Apply("equal", (IndexValue(again, INT64), found), BOOL)
        terms = own, rewriter.scalar(loads[reduction.name]), Number(0, INT64)
        taken.append(Reduce(reduction.name, "sum", Apply("where", terms, INT64), INT64))
    yield Stage(_axis_of(again), tuple(taken))


def _extent(index: Dim) -> Dim:
    """The number of values of an axis."""
    return prod(extent_of(symbol) for symbol in _axis_of(index))


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

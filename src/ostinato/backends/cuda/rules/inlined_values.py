"""Values of elementwise nests that one other nest reads: it computes them where it reads them.

Rope of the new key is followed by a copy of its row into the state. As one nest they are one part
of a segment, and the value between them has no memory. Positions that cannot leave their bounds
need no clamps then.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import (
    Apply,
    Arg,
    Binding,
    IndexValue,
    Load,
    Number,
    Scalar,
    Stage,
    Statement,
    Store,
    extent_of,
    max_extent,
)
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.loopir.views import linear_index, unravel
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import replace
from ostinato.variables import Expr, bounds, substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from ostinato.variables import Dim, Symbol

__all__ = ["with_inlined_values"]

#: Arguments of a nest, at most.
_MOST_ARGUMENTS = 12


def with_inlined_values(calls: Sequence[Call], outside: Set[LoweredBuffer]) -> list[Call]:
    """The calls of a segment, whose elementwise nests compute what only they read of others.

    Args:
        calls: in order.
        outside: buffers that are read elsewhere.
    """
    found = list(map(_without_clamps, calls))
    position = 0
    while position < len(found):
        reader = _only_reader(found[position], found, outside)
        joined = None if reader is None else _joined(found[position], reader)
        if reader is None or joined is None:
            position += 1
            continue
        found[found.index(reader)] = joined  # which another one may compute in turn
        del found[position]
    return found


# -- positions ------------------------------------------------------------------------------------


def _without_clamps(call: Call) -> Call:
    """An elementwise nest without the clamps of positions that are in bounds anyway."""
    kernel = call.kernel
    if not _is_elementwise(kernel):
        return call
    assert isinstance(kernel, CudaLoopNest)
    (stage,) = kernel.stages
    rewriter = _Positions()
    statements = tuple(map(rewriter.statement, stage.statements))
    return replace(call, kernel=replace(kernel, stages=(Stage((), statements),)))


class _Positions(Rewriter):
    """Puts index expressions in the places of data symbols that stand for them."""

    def statement(self, statement: Statement) -> Statement:
        made = super().statement(statement)
        if isinstance(made, Store) and made.bindings:
            known, left = _known(made.bindings)
            conditions = tuple(substitute(dim, known) for dim in made.conditions)
            index = substitute(made.index, known)
            return replace(made, index=index, conditions=conditions, bindings=left)
        return made

    def _rebuild(self, scalar: Scalar) -> Scalar:
        made = super()._rebuild(scalar)
        match made:
            case Load() | IndexValue() if made.bindings:
                known, left = _known(made.bindings)
                return replace(made, index=substitute(made.index, known), bindings=left)
            case Apply():
                return _extreme(made)
        return made


def _known(bindings: tuple[Binding, ...]) -> tuple[dict[Symbol, Dim], tuple[Binding, ...]]:
    """The index expressions that data symbols stand for, and the bindings of all others."""
    known = {
        binding.symbol: binding.value.index
        for binding in bindings
        if isinstance(binding.value, IndexValue) and not binding.value.bindings
    }
    return known, tuple(binding for binding in bindings if binding.symbol not in known)


def _extreme(scalar: Apply) -> Scalar:
    """The operand that always is the smaller one, or the greater one, if one is."""
    if scalar.op not in ("minimum", "maximum"):
        return scalar
    one, other = scalar.operands
    first, second = _range(one), _range(other)
    if first is None or second is None:
        return scalar
    if scalar.op == "maximum":
        one, other = other, one
    if first[1] <= second[0]:
        return one
    return other if second[1] <= first[0] else scalar


def _range(scalar: Scalar) -> tuple[int, int] | None:
    """The bounds of an integer that is known from axes and Variables."""
    if isinstance(scalar, IndexValue):
        return bounds(scalar.index)
    if isinstance(scalar, Number) and isinstance(scalar.value, int):
        return scalar.value, scalar.value
    return None


# -- values ---------------------------------------------------------------------------------------


def _only_reader(call: Call, calls: Sequence[Call], outside: Set[LoweredBuffer]) -> Call | None:
    """The nest that alone reads what an elementwise one writes, if nothing between them matters."""
    if not _is_elementwise(call.kernel) or len(call.writes()) != 1:
        return None
    (buffer,) = call.writes()
    users = [other for other in calls if other is not call and buffer in other.buffers]
    own = buffer.role is Role.TEMP and buffer.home is None and buffer not in outside
    if not own or buffer in call.reads() or len(users) != 1:
        return None
    (reader,) = users
    first, last = calls.index(call), calls.index(reader)
    written = {buffer for other in calls[first + 1 : last + 1] for buffer in other.writes()}
    apart = not written & {*call.reads()} and buffer not in written
    plain = _is_elementwise(reader.kernel) and reader.buffers.count(buffer) == 1
    return reader if last > first and apart and plain else None


def _joined(call: Call, reader: Call) -> Call | None:
    """A nest that computes what it read of another one, if each of its points does so once."""
    writer, kernel = call.kernel, reader.kernel
    assert isinstance(writer, CudaLoopNest)
    assert isinstance(kernel, CudaLoopNest)
    (store,) = writer.stages[0].statements
    assert isinstance(store, Store)
    extents = [extent_of(axis) for axis in writer.outer_axes]
    axes = [Expr({(axis,): 1}, 0) for axis in writer.outer_axes]
    if store.update != "set" or store.bindings or store.conditions:
        return None
    if store.index != linear_index(extents, axes) or _points(writer) != _points(kernel):
        return None
    (buffer,) = call.writes()
    number = reader.buffers.index(buffer)
    loads = [s for s in _scalars(kernel) if isinstance(s, Load) and s.buffer == number]
    if len(loads) != 1 or loads[0].bindings:
        return None
    buffers = [b for b in reader.buffers if b is not buffer]
    buffers += [b for b in call.reads() if b not in buffers]
    if len(buffers) > _MOST_ARGUMENTS:
        return None
    places = dict(zip(writer.outer_axes, unravel(extents, loads[0].index), strict=True))
    apart = _apart(_data_symbols(writer), _data_symbols(kernel))
    inner = _Moving(places, apart, lambda n: buffers.index(call.buffers[n]))
    value = inner.scalar(store.value)
    known: dict[Scalar, Scalar] = {loads[0]: value}
    rewriter = Rewriter(buffer=lambda n: buffers.index(reader.buffers[n]), scalars=known)
    statements = tuple(map(rewriter.statement, kernel.stages[0].statements))
    reads, writes = {*reader.reads(), *call.reads()}, {*reader.writes()}
    args = tuple(Arg(b.type.dtype, b in reads, b in writes) for b in buffers)
    made = replace(kernel, args=args, stages=(Stage((), statements),))
    nodes = tuple(dict.fromkeys((*call.nodes, *reader.nodes)))
    return Call(made, tuple(buffers), nodes, reader.title, call.flops + reader.flops)


def _data_symbols(kernel: CudaLoopNest) -> list[Symbol]:
    """The data symbols of an elementwise nest, each once."""
    holders = [*_scalars(kernel), *kernel.stages[0].statements]
    found = [b.symbol for holder in holders for b in getattr(holder, "bindings", ())]
    return list(dict.fromkeys(found))


def _apart(symbols: Sequence[Symbol], others: Sequence[Symbol]) -> dict[Symbol, Symbol]:
    """Symbols for these that have other names than the others: kernels number theirs from 0."""
    taken = {symbol.name for symbol in others}
    names = (name for name in map("d{}".format, count()) if name not in taken)
    return {symbol: replace(symbol, name=next(names)) for symbol in symbols}


class _Moving(Rewriter):
    """Moves scalars into another kernel.

    Args:
        places: the index expressions that axes become.
        symbols: the data symbols that others become.
        buffer: what buffer numbers become.
    """

    def __init__(
        self,
        places: Mapping[Symbol, Dim],
        symbols: Mapping[Symbol, Symbol],
        buffer: Callable[[int], int],
    ) -> None:
        known = {**places, **{old: Expr({(new,): 1}, 0) for old, new in symbols.items()}}
        super().__init__(lambda dim: substitute(dim, known), buffer)
        self._symbols = symbols

    def _binding(self, binding: Binding) -> Binding:
        known = self._bindings.get(binding)
        if known is None:
            known = Binding(self._symbols[binding.symbol], self.scalar(binding.value))
            self._bindings[binding] = known
        return known


def _is_elementwise(kernel: object) -> bool:
    """Whether a kernel is a nest whose points store some elements each, one after the other."""
    return (
        type(kernel) is CudaLoopNest
        and kernel.parallel
        and not kernel.scratch_groups
        and not kernel.temps
        and len(kernel.stages) == 1
        and not kernel.stages[0].axes
        and all(isinstance(statement, Store) for statement in kernel.stages[0].statements)
    )


def _points(kernel: CudaLoopNest) -> int:
    return math.prod(map(max_extent, kernel.outer_axes))


def _scalars(kernel: CudaLoopNest) -> list[Scalar]:
    return list(reached([root for s in kernel.stages[0].statements for root in roots(s)]))

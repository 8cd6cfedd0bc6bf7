"""Small parts of a segment whose results attention reads share by share.

A block of a decode step's attention has one head of keys, and the queries of a few heads. What it
needs of the parts that every block runs for itself (rope, the rows that are appended to states) and
of the values that it receives is a share: the same part of each array, one behind the other. So it
computes, writes and receives that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.backends.cuda.rules.attention_kernel import PointKernel
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Guard, IndexValue, Load, Stage, Store, extent_of, max_extent
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.records import dataclass, replace
from ostinato.variables import Expr, axis, bounds, coefficient, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ostinato.lower.program import Call, LoweredBuffer
    from ostinato.variables import Dim, Symbol

__all__ = ["Share", "Shares"]


@dataclass(frozen=True, eq=False)
class Share:
    """A call that is run for one share at a time.

    Attributes:
        reader: the call of attention whose points are the shares.
        kernel: computes the first share.
        strides: by argument, elements from one share to the next.
    """

    reader: Call
    kernel: CudaLoopNest
    strides: tuple[int, ...]


class Shares:
    """The calls of a segment that blocks run for shares.

    Args:
        calls: of the segment, in order.
        among: the calls that blocks may run for themselves.

    Attributes:
        of: by call, its share.
        sizes: by value that only attention and its shares read, and that they read share by share,
            the call of attention, and the elements of a share. Values that a block computes for
            itself as a whole are not among them.
    """

    def __init__(self, calls: Sequence[Call], among: Collection[Call]) -> None:
        self.of: dict[Call, Share] = {}
        self.sizes: dict[LoweredBuffer, tuple[Call, int]] = {}
        readers: dict[LoweredBuffer, list[Call]] = {}
        for call in calls:
            for buffer in call.reads():
                readers.setdefault(buffer, []).append(call)
        for position, call in enumerate(calls):
            if isinstance(call.kernel, PointKernel):
                before = [earlier for earlier in calls[:position] if earlier in among]
                self._divide(before, call, call.kernel, readers)

    def count(self, buffer: LoweredBuffer) -> int:
        """The shares of a value; 1: it is not divided."""
        if buffer not in self.sizes:
            return 1
        attention = self.sizes[buffer][0].kernel
        assert isinstance(attention, PointKernel)
        return bounds(attention.points)[1]

    def _divide(
        self,
        before: Sequence[Call],
        reader: Call,
        attention: PointKernel,
        readers: Mapping[LoweredBuffer, Sequence[Call]],
    ) -> None:
        """Divide what a call of attention reads."""
        count = attention.points
        wide = [symbol for symbol in attention.point_axes if max_extent(symbol) > 1]
        if not isinstance(count, int) or not wide:
            return
        loads = [s for s in reached(attention.read_elements) if isinstance(s, Load)]
        pools = attention.head_pools
        sizes: dict[LoweredBuffer, int] = {}
        in_pools = {reader.buffers[number]: size for number, size in pools.items()}
        for number, buffer in enumerate(reader.buffers):
            indices = [load.index for load in loads if load.buffer == number]
            if indices:
                _limit(sizes, buffer, pools.get(number) or _point_size(indices, wide))
        own: dict[Call, Share] = {}
        for call in reversed(before):
            if not all(
                sizes.get(buffer) and all(r is reader or r in own for r in readers.get(buffer, ()))
                for buffer in call.writes()
            ):
                continue
            share = _share(reader, call, count, sizes, in_pools)
            if share is None:
                continue
            own[call] = share
        self.of |= own
        whole = {
            buffer
            for call in before
            if isinstance(call.kernel, CudaLoopNest) and call not in own
            for buffer in call.writes()
        }
        for buffer, size in sizes.items():
            apart = buffer not in whole and all(r is reader or r in own for r in readers[buffer])
            apart = apart and buffer not in in_pools
            if size and apart:
                self.sizes[buffer] = reader, size


def _limit(sizes: dict[LoweredBuffer, int], buffer: LoweredBuffer, size: int) -> None:
    """Note the size of a buffer's share for one more reader: 0 if there is no one size."""
    sizes[buffer] = size if sizes.get(buffer, size) == size else 0


def _point_size(indices: Sequence[Dim], wide: Sequence[Symbol]) -> int:
    """The elements between points, whose axes are ``wide``, if these are apart; or 0."""
    *outer, inner = wide
    rest: list[Dim] = list(indices)
    step, count = _step(indices[0], inner), max_extent(inner)
    for symbol in reversed(outer):
        if step is None or any(_step(index, symbol) != count * step for index in indices):
            return 0
        rest = [substitute(index, {symbol: 0}) for index in rest]
        count *= max_extent(symbol)
    return _share_size(rest, inner, 1)


def _share_size(indices: Sequence[Dim], symbol: Symbol, values: int) -> int:
    """The elements between shares of ``values`` values of a symbol, if these are apart; or 0."""
    found = {_step(index, symbol) for index in indices}
    if len(found) != 1:
        return 0
    (step,) = found
    for index in indices:
        low, high = bounds(substitute(index, {symbol: 0}))
        if step is None or low < 0 or high + step * (values - 1) >= step * values:
            return 0
    return 0 if step is None else step * values


def _pool_size(indices: Sequence[Dim], symbol: Symbol, wanted: int, count: int) -> int:
    """The elements of a point in each row of a pool, if these are between shares; or 0.

    Args:
        indices: into the pool.
        symbol: the number of a share.
        wanted: the elements of a point.
        count: of the points: a row has the elements of all.
    """
    for index in indices:
        rest = substitute(index, {symbol: 0})
        terms = () if isinstance(rest, int) else rest.terms
        rows = [Expr(dict([term]), 0) for term in terms if term[1] % (count * wanted) == 0]
        low, high = bounds(rest - sum(rows, start=0 * rest))
        if _step(index, symbol) != wanted or low < 0 or high >= wanted:
            return 0
    return wanted


def _step(index: Dim, symbol: Symbol) -> int | None:
    """The elements that an index moves with each value of a symbol; ``None``: it depends."""
    found = coefficient(index, symbol)
    return found[0] if found is not None and isinstance(found[0], int) else None


def _share(
    reader: Call,
    call: Call,
    count: int,
    sizes: dict[LoweredBuffer, int],
    pools: Mapping[LoweredBuffer, int],
) -> Share | None:
    """A call divided along an outer axis, if it writes the shares of ``sizes``.

    What it reads is added to these. Of ``pools``, a share is a part of each row.
    """
    nest = call.kernel
    if not isinstance(nest, CudaLoopNest) or nest.scratch_groups:
        return None
    if nest.temps or any(stage.axes for stage in nest.stages):
        return None
    every = [s for stage in nest.stages for s in stage.statements]
    statements = [s for s in every if isinstance(s, Store)]
    if len(statements) < len(every):
        return None
    for symbol in nest.outer_axes:
        extent = extent_of(symbol)
        if not isinstance(extent, int) or extent % count or extent == 0:
            continue
        values, number = extent // count, axis("share", count)
        part = axis(symbol.name, values) if values > 1 else 0
        (share,) = symbols(number)
        at = {symbol: number * values + part}
        accesses: dict[int, list[Dim]] = {}
        for argument, index in _accesses(statements):
            accesses.setdefault(argument, []).append(substitute(index, at))
        steps = {n: {_step(i, share) for i in indices} for n, indices in accesses.items()}
        if any(len(found) != 1 or None in found for found in steps.values()):
            continue
        if any(share in symbols(substitute(dim, at)) for dim in _others(statements)):
            continue
        shares = {
            n: _pool_size(indices, share, wanted, count)
            if (wanted := pools.get(call.buffers[n]))
            else _share_size(indices, share, 1)
            for n, indices in accesses.items()
        }
        written = [n for n, arg in enumerate(nest.args) if arg.writes]
        if any(shares.get(n) != sizes[call.buffers[n]] for n in written):
            continue
        for argument, buffer in enumerate(call.buffers):
            if argument in shares and argument not in written:
                _limit(sizes, buffer, shares[argument])
        strides = tuple(next(iter(steps.get(n, {0}))) or 0 for n in range(len(nest.args)))
        return Share(reader, _first_share(nest, symbol, part, share), strides)
    return None


def _accesses(statements: Sequence[Store]) -> Iterator[tuple[int, Dim]]:
    """The buffer numbers and the indices of all that statements read and write."""
    for store in statements:
        yield store.buffer, store.index
    for scalar in reached([root for store in statements for root in roots(store)]):
        if isinstance(scalar, Load):
            yield scalar.buffer, scalar.index


def _others(statements: Sequence[Store]) -> Iterator[Dim]:
    """The other index expressions of statements."""
    for store in statements:
        yield from store.conditions
    for scalar in reached([root for store in statements for root in roots(store)]):
        if isinstance(scalar, IndexValue):
            yield scalar.index
        elif isinstance(scalar, Guard):
            yield from scalar.conditions


def _first_share(nest: CudaLoopNest, symbol: Symbol, part: Dim, share: Symbol) -> CudaLoopNest:
    """A nest at the first values of an outer axis."""

    def first(dim: Dim) -> Dim:
        # By way of the number of a share, so that quotients and remainders by its size vanish.
        whole = substitute(dim, {symbol: Expr({(share,): _extent(part)}, 0) + part})
        return substitute(whole, {share: 0})

    rewriter = Rewriter(index=first)
    stages = tuple(
        Stage(stage.axes, tuple(map(rewriter.statement, stage.statements))) for stage in nest.stages
    )
    axes: list[Symbol] = []
    for own in nest.axes:
        axes += symbols(part) if own == symbol else [own]
    inner = nest.inner_axis
    if inner == symbol:
        inner = next(iter(symbols(part)), None)
    return replace(nest, axes=tuple(axes), stages=stages, inner_axis=inner)


def _extent(part: Dim) -> int:
    """The values of a part."""
    return 1 if isinstance(part, int) else bounds(part)[1] + 1

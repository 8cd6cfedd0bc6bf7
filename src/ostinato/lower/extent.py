"""Which kernels may stop after the first rows, when not all rows of a graph's inputs are in use.

A graph compiled for ``upper`` rows may be run on fewer: rows beyond hold nothing that matters, and
computing them is a waste. A kernel is *cut* to the first rows only if that cannot be seen: each row
of what it writes comes from the same row of what it reads, and whoever reads its results is cut
itself or, if it is the caller, gets them as an output of ``upper`` rows. A kernel that mixes rows,
such as a sum over the batch, therefore runs in full, and so does everything that it depends on:
its result is that of the whole batch, whatever the inputs hold beyond the rows in use.

A *row* of a buffer is one of ``upper`` equal parts of it, in memory order. That is a row of axis 0
for an input of ``upper`` rows, and after a reshape still what that row became.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.attention import AttentionKernel
from ostinato.lower.contraction import Contraction
from ostinato.lower.joint import JointProduct
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Load, LoopNest, Scalar, Scan, Statement, Store, extent_of
from ostinato.lower.program import Role
from ostinato.records import dataclass
from ostinato.variables import (
    Dim,
    Symbol,
    axis,
    ceil_div,
    coefficient,
    prod,
    provably_less,
    provably_nonnegative,
    substitute,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ostinato.lower.program import Call, Kernel, LoweredBuffer, Program

__all__ = ["Cut", "LeadingRows"]


@dataclass(frozen=True)
class Cut:
    """How far a kernel runs.

    Attributes:
        extent: steps of its parallel range.
        idle: what its :attr:`~ostinato.lower.contraction.Contraction.idle` is to hold.
    """

    extent: int
    idle: int


class LeadingRows:
    """The analysis of one program for one number of rows.

    Args:
        program: without Variables in the kernels that are to be cut; others run in full.
        upper: how many rows it was compiled for.
    """

    def __init__(self, program: Program, upper: int) -> None:
        self.upper = upper
        self._calls = program.calls
        self._walks: dict[int, _Walk] = {}
        accesses = [_accesses(call) for call in program.calls]
        for position in reversed(range(len(program.calls))):
            walk = _walk(program.calls[position].kernel)
            if walk is not None and self._may_cut(position, walk, accesses):
                self._walks[position] = walk

    def cuts(self, actual: int) -> list[Cut | None]:
        """For each call, how far it must run to give ``actual`` rows; ``None``: in full."""
        return [
            self._walks[position].cut(call.kernel, actual, self.upper)
            if position in self._walks
            else None
            for position, call in enumerate(self._calls)
        ]

    def _may_cut(self, position: int, walk: _Walk, accesses: Sequence[Sequence[_Access]]) -> bool:
        """Whether no one can tell, given what was decided of the calls behind it."""
        if walk.size % self.upper:
            return False
        written = [a.buffer for a in accesses[position] if a.writes]
        if not all(self._is_private(buffer) for buffer in written):
            return False
        return all(
            (reader == position or reader in self._walks)
            and _stays_in_row(access, walk if reader == position else self._walks[reader], self)
            for reader, listed in enumerate(accesses)
            for access in listed
            if access.buffer in written and (reader == position or not access.writes)
        )

    def _is_private(self, buffer: LoweredBuffer) -> bool:
        """Whether rows beyond those in use are nobody's business."""
        if buffer.role is Role.OUTPUT:
            return buffer.type.shape[:1] == (self.upper,)
        return buffer.role is Role.TEMP


@dataclass(frozen=True)
class _Access:
    """An element that a kernel reads or writes."""

    buffer: LoweredBuffer
    index: Dim
    writes: bool


@dataclass(frozen=True)
class _Walk:
    """How a kernel comes past its rows.

    Attributes:
        symbol: the outermost axis of its parallel range, or a contraction's rows, where some may
            be left out.
        size: how many values that axis takes.
    """

    symbol: Symbol
    size: int

    def cut(self, kernel: Kernel, actual: int, upper: int) -> Cut:
        """The range that covers the first ``actual`` of ``upper`` parts of the axis."""
        wanted = actual * (self.size // upper)
        if isinstance(kernel, Contraction | JointProduct) and kernel.idle is not None:
            extent = kernel.extent_for(wanted)
        elif isinstance(kernel, LoopNest) and not kernel.axes:
            extent = ceil_div(wanted, kernel.block)
        else:
            assert isinstance(kernel.extent, int)
            extent = kernel.extent // self.size * wanted
        assert isinstance(extent, int)
        return Cut(extent, self.size - wanted)


def _stays_in_row(access: _Access, walk: _Walk, rows: LeadingRows) -> bool:
    """Whether a kernel touches only row ``r`` of the buffer while it is at row ``r`` itself."""
    elements = access.buffer.type.size
    if not isinstance(elements, int) or elements % rows.upper:
        return False
    row_size, steps = elements // rows.upper, walk.size // rows.upper
    row, inside = axis("row", rows.upper), axis("row.step", steps)
    place = row * steps + (inside if steps > 1 else 0)
    ((symbol,), _) = row.terms[0]
    assert isinstance(symbol, Symbol)
    parts = coefficient(substitute(access.index, {walk.symbol: place}), symbol)
    if parts is None or parts[0] != row_size:
        return False
    return provably_nonnegative(parts[1]) and provably_less(parts[1], row_size)


# -- what kernels do, kind by kind -----------------------------------------------------------------


def _walk(kernel: Kernel) -> _Walk | None:
    """How ``kernel`` comes past its rows, if it can be stopped after some of them."""
    axes: tuple[Symbol, ...] = ()
    match kernel:
        case LoopNest():
            axes = (*kernel.axes, *([kernel.lane_axis] if kernel.lane_axis else []))
        case Contraction():
            axes = kernel.batch or ((kernel.m,) if kernel.idle is not None else ())
        case JointProduct():
            axes = (kernel.first.m,) if kernel.idle is not None else ()
        case AttentionKernel():
            axes = kernel.batch
    sizes = [extent_of(symbol) for symbol in axes]
    if not sizes or not all(isinstance(size, int) for size in (*sizes, kernel.extent)):
        return None
    assert isinstance(sizes[0], int)
    return _Walk(axes[0], sizes[0])


def _accesses(call: Call) -> list[_Access]:
    """All that a call reads and writes.

    An argument that it does not account for counts as read at an unknown place.
    """
    found = [
        _Access(call.buffers[number], index, writes)
        for number, index, writes in _indices(call.kernel)
        if number < len(call.buffers)
    ]
    accounted = {(access.buffer, access.writes) for access in found}
    for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
        if arg.reads and (buffer, False) not in accounted:
            found.append(_Access(buffer, -1, writes=False))
        if arg.writes and (buffer, True) not in accounted:
            found.append(_Access(buffer, -1, writes=True))
    return found


def _indices(kernel: Kernel) -> Iterator[tuple[int, Dim, bool]]:
    """The buffer numbers and indices of what ``kernel`` reads and (``True``) writes."""
    match kernel:
        case LoopNest():
            for stage in kernel.stages:
                yield from _of_statements(stage.statements)
        case Contraction():
            yield from _of_product(kernel)
        case JointProduct():
            for product in kernel.products:
                yield from _of_product(product)
        case AttentionKernel():
            operands = (kernel.q, kernel.k, kernel.v, kernel.mask)
            yield from _of_scalars(scalar for scalar in operands if scalar is not None)
            yield from _of_statements((kernel.store,))


def _of_product(product: Contraction) -> Iterator[tuple[int, Dim, bool]]:
    yield product.a, product.a_index, False
    group = prod((product.panels, product.panel_size))
    yield product.b, product.b_group * group + axis("panel.element", group), False
    if (scales := product.scales) is not None:
        blocks = product.depth // scales.size
        yield scales.a, scales.a_index + axis("block", blocks), False
    yield from _of_statements(product.epilogue)


def _of_statements(statements: Iterable[Statement]) -> Iterator[tuple[int, Dim, bool]]:
    for statement in statements:
        yield from _of_scalars(roots(statement))
        if isinstance(statement, Store | Scan):
            yield statement.buffer, statement.index, True
            if isinstance(statement, Store) and statement.update != "set":
                yield statement.buffer, statement.index, False


def _of_scalars(scalars: Iterable[Scalar]) -> Iterator[tuple[int, Dim, bool]]:
    for scalar in reached(scalars):
        if isinstance(scalar, Load):
            yield scalar.buffer, scalar.index, False

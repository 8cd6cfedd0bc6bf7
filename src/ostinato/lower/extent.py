"""Partial runs: the kernels that may stop after the first rows, when not all rows are in use.

A graph compiled for ``upper`` rows may be run on fewer: rows beyond hold nothing that matters, and
computing them is a waste. A kernel is *cut* to the first rows only if that cannot be seen: each row
of what it writes comes from the same row of what it reads, and whatever reads its results is cut
itself or, if it is the caller, gets them as an output of ``upper`` rows. A kernel that mixes rows,
such as a sum over the batch, therefore runs in full, and so does everything that it depends on:
its result is that of the whole batch, whatever the inputs hold beyond the rows in use.

A *row* of a buffer is one of ``upper`` equal parts of it, in memory order. That is a row of axis 0
for an input of ``upper`` rows, and after a reshape still what that row became.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ostinato.lower.loopir.nodes import extent_of
from ostinato.lower.program import Role
from ostinato.records import dataclass
from ostinato.variables import (
    Dim,
    Symbol,
    axis,
    coefficient,
    provably_less,
    provably_nonnegative,
    substitute,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.program import Call, LoweredBuffer, Program

__all__ = ["RowwiseCalls", "buffers_behind"]


def buffers_behind(program: Program, upper: int) -> set[LoweredBuffer]:
    """The inputs of ``upper`` rows, and the buffers that derive from them in any way."""
    found = {b for b in program.inputs.values() if b.type.shape[:1] == (upper,)}
    for call in program.calls:
        if not found.isdisjoint(call.reads()):
            found.update(call.writes())
    return found


class RowwiseCalls:
    """The calls of a program that may stop after the first rows.

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

    def steps(self, actual: int) -> list[tuple[int, int] | None]:
        """For each call, how far its :attr:`~.Kernel.row_axis` must run to give ``actual`` rows.

        Each entry is the number of values wanted and the number of all; ``None``: in full.
        """
        return [
            (actual * (walk.size // self.upper), walk.size)
            if (walk := self._walks.get(position)) is not None
            else None
            for position in range(len(self._calls))
        ]

    def _may_cut(self, position: int, walk: _Walk, accesses: Sequence[Sequence[_Touch]]) -> bool:
        """Whether a cut cannot be seen, given what was decided of the calls behind it."""
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
        """Whether rows beyond those in use are never looked at."""
        if buffer.role is Role.OUTPUT:
            return buffer.type.shape[:1] == (self.upper,)
        return buffer.role is Role.TEMP


@dataclass(frozen=True)
class _Touch:
    """An element of a buffer that a call reads or writes."""

    buffer: LoweredBuffer
    index: Dim
    writes: bool


class _Walk(NamedTuple):
    """A kernel's way past its rows: the axis that some may be left out of, and its size."""

    symbol: Symbol
    size: int


def _stays_in_row(access: _Touch, walk: _Walk, rows: RowwiseCalls) -> bool:
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


def _walk(kernel: Kernel) -> _Walk | None:
    """The way of ``kernel`` past its rows, if it can be stopped after some of them."""
    symbol = kernel.row_axis
    if symbol is None:
        return None
    size = extent_of(symbol)
    assert isinstance(size, int)
    return _Walk(symbol, size)


def _accesses(call: Call) -> list[_Touch]:
    """All that a call reads and writes.

    An argument that it does not account for counts as read at an unknown place.
    """
    found = [
        _Touch(call.buffers[access.position], access.index, access.writes)
        for access in call.kernel.accesses()
        if access.position < len(call.buffers)
    ]
    accounted = {(access.buffer, access.writes) for access in found}
    for arg, buffer in zip(call.kernel.args, call.buffers, strict=True):
        if arg.reads and (buffer, False) not in accounted:
            found.append(_Touch(buffer, -1, writes=False))
        if arg.writes and (buffer, True) not in accounted:
            found.append(_Touch(buffer, -1, writes=True))
    return found

"""Rows of constants that several parts of a segment read at a place that Variables give.

The cosines and sines of a position are read by rope in every layer, each time from memory, which is
busy with weights. A part in front of all others copies such a row into the memory of each block.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ostinato.backends.cuda.kernel import CudaLoopNest
from ostinato.ir.types import TensorType
from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Arg, Load, Stage, Store
from ostinato.lower.loopir.rewrite import Rewriter
from ostinato.lower.program import Call, LoweredBuffer, Role
from ostinato.records import dataclass, replace
from ostinato.variables import Expr, axis, bounds, symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.lower.loopir.nodes import Scalar
    from ostinato.variables import Dim

__all__ = ["with_copied_rows"]

#: Elements of a row, at most.
_MOST_ELEMENTS = 256


@dataclass(frozen=True)
class _Row:
    """A row of a constant.

    Attributes:
        buffer: the constant.
        start: of Variables alone.
        first, last: the elements that are read, counted from there.
    """

    buffer: LoweredBuffer
    start: Dim
    first: int
    last: int


def with_copied_rows(calls: Sequence[Call]) -> list[Call]:
    """The calls of a segment, with copies of rows in front that several of them read."""
    written = {buffer for call in calls for buffer in call.writes()}
    found = {call: _rows(call, written) for call in calls}
    count = Counter(row for rows in found.values() for row in rows.values())
    copies = {row: _copy(row, calls[0]) for row, times in count.items() if times > 1}
    return [
        *copies.values(),
        *(
            _reader(
                call, {n: (row, copies[row]) for n, row in found[call].items() if row in copies}
            )
            for call in calls
        ),
    ]


def _rows(call: Call, written: set[LoweredBuffer]) -> dict[int, _Row]:
    """By argument of a small loop nest, the row that is all that it reads of it."""
    kernel = call.kernel
    if type(kernel) is not CudaLoopNest or kernel.scratch_groups:
        return {}
    found: dict[int, _Row] = {}
    for number, buffer in enumerate(call.buffers):
        if buffer in written or call.buffers.count(buffer) != 1:
            continue
        loads = [s for s in _loads(kernel) if s.buffer == number]
        parts = [_parts(load, call) for load in loads]
        starts = {part[0] for part in parts if part is not None}
        if None in parts or len(starts) != 1:
            continue
        (start,) = starts
        ranges = [bounds(part[1]) for part in parts if part is not None]
        first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
        if last - first < _MOST_ELEMENTS:
            found[number] = _Row(buffer, start, first, last)
    return found


def _loads(kernel: CudaLoopNest) -> list[Load]:
    starts = [root for stage in kernel.stages for s in stage.statements for root in roots(s)]
    return [scalar for scalar in reached(starts) if isinstance(scalar, Load)]


def _parts(load: Load, call: Call) -> tuple[Dim, Dim] | None:
    """The part of an index that is made of Variables, and that of axes, if these are all."""
    if load.bindings or isinstance(load.index, int):
        return None
    variables = set(call.kernel.variables)
    start: Dim = 0
    rest: Dim = load.index.const
    for monomial, factor in load.index.terms:
        term = Expr({monomial: factor}, 0)
        own = symbols(term)
        if own <= variables:
            start = start + term
        elif own & variables:
            return None
        else:
            rest = rest + term
    return None if isinstance(start, int) else (start, rest)


def _copy(row: _Row, first: Call) -> Call:
    """The call that copies a row."""
    dtype, count = row.buffer.type.dtype, row.last - row.first + 1
    at = axis("i", count)
    (inner,) = symbols(at) if count > 1 else (None,)
    load = Load(0, row.start + row.first + (at if inner else 0), dtype)
    kernel = CudaLoopNest(
        (Arg(dtype), Arg(dtype, reads=False, writes=True)),
        (inner,) if inner else (),
        (Stage((), (Store(1, at if inner else 0, load),)),),
        variables=first.kernel.variables,
    )
    target = LoweredBuffer(TensorType(dtype, (count,)), Role.TEMP, f"a row of {row.buffer.name}")
    return Call(kernel, (row.buffer, target), (), "copy of a row")


class _Moving(Rewriter):
    """Reads rows where they have been copied to.

    Args:
        rows: by argument.
        call: whose kernel it is.
    """

    def __init__(self, rows: dict[int, tuple[_Row, Call]], call: Call) -> None:
        super().__init__()
        self._rows = rows
        self._call = call

    def _rebuild(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Load) and scalar.buffer in self._rows:
            row, _ = self._rows[scalar.buffer]
            parts = _parts(scalar, self._call)
            assert parts is not None
            return Load(scalar.buffer, parts[1] - row.first, scalar.dtype)
        return super()._rebuild(scalar)


def _reader(call: Call, rows: dict[int, tuple[_Row, Call]]) -> Call:
    """A call that reads copies of rows."""
    if not rows:
        return call
    kernel, rewriter = call.kernel, _Moving(rows, call)
    assert isinstance(kernel, CudaLoopNest)
    stages = tuple(
        Stage(stage.axes, tuple(map(rewriter.statement, stage.statements)))
        for stage in kernel.stages
    )
    buffers = [
        rows[n][1].buffers[1] if n in rows else buffer for n, buffer in enumerate(call.buffers)
    ]
    return replace(call, kernel=replace(kernel, stages=stages), buffers=tuple(buffers))

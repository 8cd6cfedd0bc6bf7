"""Reads and writes of statements, which decide in what order their code stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.dependences import reached, roots
from ostinato.lower.loopir.nodes import Apply, Load, Reduce

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ostinato.lower.loopir.nodes import Scalar, Stage, Statement

__all__ = ["evaluated", "interleaves", "stage_buffers"]


def evaluated(statement: Statement) -> Iterator[Scalar]:
    """The expressions that are computed before a statement takes effect."""
    if isinstance(statement, Reduce) and statement.fused:
        assert isinstance(statement.value, Apply)
        yield from statement.value.operands
    else:
        yield from roots(statement)


def interleaves(statements: Sequence[Statement]) -> bool:
    """Whether a statement reads a buffer that one before it writes."""
    written: set[int] = set()
    for statement in statements:
        read = {n.buffer for n in reached(roots(statement)) if isinstance(n, Load)}
        if read & written:
            return True
        if not isinstance(statement, Reduce):
            written.add(statement.buffer)
    return False


def stage_buffers(stage: Stage) -> tuple[set[int], set[int]]:
    """The numbers of the buffers that a stage reads, and that it writes."""
    read = {n.buffer for s in stage.statements for n in reached(roots(s)) if isinstance(n, Load)}
    written = {s.buffer for s in stage.statements if not isinstance(s, Reduce)}
    return read, written

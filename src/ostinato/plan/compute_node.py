"""The nodes of a recorded session: a formula on operands, and what it reads and writes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ostinato.plan.hazards import overlap
from ostinato.plan.prepared import Copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ostinato.plan.buffer import Buffer
    from ostinato.plan.formula import Formula
    from ostinato.plan.prepared import PreparedOp
    from ostinato.plan.region import Operand
    from ostinato.plan.routine import Routine

__all__ = ["ComputeNode"]


class ComputeNode:
    """One dispatch: a formula, then copies of its results to where they are wanted.

    Nodes are never changed. Each touches the bytes that :attr:`reads` and :attr:`writes` say, and
    no others.

    Attributes:
        formula: what it computes; ``None``: it only copies.
        operands: what the formula reads, buffers by reference.
        results: what it writes; for one that works in place, nothing but its first operand.
        copies: pairs of source and target.
    """

    __slots__ = ("__dict__", "copies", "formula", "operands", "results")

    def __init__(
        self,
        formula: Formula | None,
        operands: tuple[Operand, ...],
        results: tuple[Operand, ...],
        copies: tuple[tuple[Operand, Operand], ...] = (),
    ) -> None:
        self.formula = formula
        self.operands = operands
        self.results = results
        self.copies = copies

    @property
    def name(self) -> str:
        """What it computes, in a word or two (``"exp+add"``)."""
        return "copy" if self.formula is None else self.formula.name

    @cached_property
    def reads(self) -> tuple[Operand, ...]:
        """The bytes that it reads, but for those that it wrote itself before."""
        return (*self.operands, *(source for source, _ in self.copies if self._brought(source)))

    @cached_property
    def writes(self) -> tuple[Operand, ...]:
        """The bytes that it writes."""
        if not self.copies:
            return self.results
        return (*self.results, *(target for _, target in self.copies))

    def _brought(self, source: Operand) -> bool:
        return not any(overlap(source, result) for result in self.results)

    def ops(
        self,
        first_id: int,
        routine: Routine | None,
        temps: Sequence[Buffer],
        find: Callable[[Operand], Buffer],
    ) -> list[PreparedOp]:
        """The node as prepared ops.

        Args:
            first_id: number of the first one.
            routine: the formula, compiled.
            temps: memory for its temps.
            find: the buffer of what a node reads or writes.
        """
        ops: list[PreparedOp] = []
        if routine is not None:
            brought = (*self.operands, *(() if self._in_place else self.results))
            ops += routine.ops(first_id, [*(find(operand) for operand in brought), *temps])
        for source, target in self.copies:
            number = first_id + len(ops)
            ops.append(Copy(id=number, source=find(source), target=find(target)))
        return ops

    @property
    def _in_place(self) -> bool:
        return self.formula is not None and self.formula.in_place

    def __repr__(self) -> str:
        read = ", ".join(str(operand.type) for operand in self.reads)
        written = ", ".join(str(operand.type) for operand in self.writes)
        return f"{self.name}({read}) -> {written}"

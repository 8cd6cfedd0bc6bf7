"""Bytes that a kernel moves, each element counted once, as far as its index expressions tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.lower.loopir.dependences import Dependences, accesses_of_statements
from ostinato.lower.loopir.nodes import extent_of
from ostinato.variables import Dim, Symbol, minimum, prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.types import TensorType
    from ostinato.lower.loopir.kernel import Kernel
    from ostinato.lower.loopir.nodes import Stage

__all__ = ["Reach", "traffic"]


def traffic(kernel: Kernel, types: Sequence[TensorType]) -> Dim:
    """Bytes read and bytes written, an element that is used often counted once.

    A loop nest that gathers from a large table, or writes a row of a large state, moves what its
    indices can reach, and a grouped matmul the matrices of as many experts as can have rows;
    every other kernel goes over its buffers from end to end.

    Args:
        kernel: its arguments.
        types: what each argument holds.
    """
    total: Dim = 0
    for position, (arg, type_) in enumerate(zip(kernel.args, types, strict=True)):
        for used, writes in ((arg.reads, False), (arg.writes, True)):
            if used:
                limit = kernel.elements(position, writes=writes)
                size = type_.size if limit is None else minimum(type_.size, limit)
                total = total + size * type_.dtype.itemsize
    return total


class Reach:
    """The number of elements that the indices of some stages can reach, by argument."""

    def __init__(self, stages: Sequence[Stage], variables: Sequence[Symbol]) -> None:
        self._dependences = Dependences(stages)
        self._variables = frozenset(variables)
        self._indices: dict[tuple[int, bool], set[Dim]] = {}
        for access in accesses_of_statements(s for stage in stages for s in stage.statements):
            self._indices.setdefault((access.position, access.writes), set()).add(access.index)

    def elements(self, position: int, *, writes: bool) -> Dim | None:
        """An upper bound on the elements of an argument that are touched; ``None``: unknown."""
        total: Dim = 0
        for index in self._indices.get((position, writes), ()):
            found = self._dependences.of_index(index)
            if any(isinstance(dependence, str) for dependence in found):
                return None
            axes = [d for d in found if isinstance(d, Symbol) and d not in self._variables]
            total = total + prod(extent_of(axis) for axis in axes)
        return total

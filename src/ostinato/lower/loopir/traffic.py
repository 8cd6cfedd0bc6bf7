"""How many bytes a kernel moves, each element once, as far as its loops tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ostinato.lower.loopir.dependences import Dependences, reached, roots
from ostinato.lower.loopir.nodes import Load, LoopNest, Scan, Store, extent_of
from ostinato.variables import Dim, Symbol, minimum, prod

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.ir.types import TensorType
    from ostinato.lower.program import Kernel

__all__ = ["traffic"]


def traffic(kernel: Kernel, types: Sequence[TensorType]) -> Dim:
    """Bytes read and bytes written, an element that is used often counted once.

    A loop nest that gathers from a large table, or writes a row of a large state, moves what its
    indices can reach, and a grouped product the matrices of as many experts as can have rows;
    every other kernel goes over its buffers from end to end.

    Args:
        kernel: its arguments.
        types: what each argument holds.
    """
    limits: _Limits | None = None
    if isinstance(kernel, LoopNest):
        limits = _Reach(kernel)
    elif isinstance(kernel, _Limits):  # as a grouped product does
        limits = kernel
    total: Dim = 0
    for position, (arg, type_) in enumerate(zip(kernel.args, types, strict=True)):
        for used, writes in ((arg.reads, False), (arg.writes, True)):
            if used:
                limit = None if limits is None else limits.elements(position, writes=writes)
                size = type_.size if limit is None else minimum(type_.size, limit)
                total = total + size * type_.dtype.itemsize
    return total


@runtime_checkable
class _Limits(Protocol):
    def elements(self, buffer: int, *, writes: bool) -> Dim | None: ...


class _Reach:
    """How many elements the indices of a nest can reach, by argument."""

    def __init__(self, nest: LoopNest) -> None:
        self._dependences = Dependences(nest)
        self._variables = frozenset(nest.variables)
        self._indices: dict[tuple[int, bool], set[Dim]] = {}
        statements = [s for stage in nest.stages for s in stage.statements]
        for statement in statements:
            if isinstance(statement, Store | Scan):
                self._note(statement.buffer, statement.index, writes=True)
                if isinstance(statement, Store) and statement.update != "set":
                    self._note(statement.buffer, statement.index, writes=False)
        for scalar in reached(root for s in statements for root in roots(s)):
            if isinstance(scalar, Load):
                self._note(scalar.buffer, scalar.index, writes=False)

    def _note(self, buffer: int, index: Dim, *, writes: bool) -> None:
        self._indices.setdefault((buffer, writes), set()).add(index)

    def elements(self, buffer: int, *, writes: bool) -> Dim | None:
        """At most how many elements of an argument are touched; ``None``: who knows."""
        total: Dim = 0
        for index in self._indices.get((buffer, writes), ()):
            found = self._dependences.of_index(index)
            if any(isinstance(dependence, str) for dependence in found):
                return None
            axes = [d for d in found if isinstance(d, Symbol) and d not in self._variables]
            total = total + prod(extent_of(axis) for axis in axes)
        return total

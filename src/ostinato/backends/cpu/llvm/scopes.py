"""Scopes: what is known at a point of the code being emitted.

A scope stands for a region of code that its parents dominate: whatever was computed in a parent
may be used in it. There is one per loop level, and beneath the level at which lanes start, one per
vector that an unrolled loop body works on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite import ir

    from ostinato.backends.cpu.llvm.lanes import Lane
    from ostinato.variables import Dim, Symbol

__all__ = ["Mask", "Scope"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Mask:
    """The mask of lanes in use.

    Attributes:
        value: an ``i1`` per lane.
        nonempty: whether at least one lane is known to be in use, so that what all lanes share
            may be read.
    """

    value: ir.Value
    nonempty: bool


@dataclass(eq=False)
class Scope:
    """A region of code, and what is known in it.

    Attributes:
        parents: the scopes that dominate this one, nearest first.
        lane: the axis that vectors run along, if any; its value in ``symbols`` is that of lane 0.
        width: lanes of a vector.
        mask: the lanes in use, ``None`` for all of them.
        symbols: the values of axes and Variables that become known here.
        values: scalar expressions computed here, by identity.
        indices: index expressions computed here.
        refs: finished reductions.
    """

    parents: tuple[Scope, ...] = ()
    lane: Symbol | None = None
    width: int = 1
    mask: Mask | None = None
    symbols: dict[Symbol, ir.Value] = field(default_factory=dict)
    values: dict[int, Lane] = field(default_factory=dict)
    indices: dict[Dim, ir.Value] = field(default_factory=dict)
    refs: dict[str, Lane] = field(default_factory=dict)

    def child(
        self,
        *others: Scope,
        symbols: dict[Symbol, ir.Value] | None = None,
        mask: Mask | None = None,
    ) -> Scope:
        """A scope inside this one (and ``others``), with the same lanes."""
        return Scope((self, *others), self.lane, self.width, mask or self.mask, dict(symbols or {}))

    def find(self, lookup: Callable[[Scope], T | None]) -> T | None:
        """The first answer of ``lookup`` that is not ``None``, from here outwards."""
        found = lookup(self)
        for parent in self.parents:
            if found is not None:
                return found
            found = parent.find(lookup)
        return found

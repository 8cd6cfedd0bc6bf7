"""Values that are known at a point of a kernel's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ostinato.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from ostinato.backends.common.clike.values import CValue
    from ostinato.variables import Dim, Symbol

__all__ = ["Index", "Scope"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Index:
    """An integer in a local variable, or a literal.

    Attributes:
        text: an expression that is as cheap as a variable.
        wide: whether it has 64 bits, not 32.
    """

    text: str
    wide: bool


@dataclass(eq=False)
class Scope:
    """Values computed in a block of code, and in the blocks around it.

    Attributes:
        parent: the block around it.
        symbols: the values of axes, Variables and data symbols.
        indices: the values of index expressions.
        values: those of scalar expressions, by identity.
        refs: the results of reductions, by name.
    """

    parent: Scope | None = None
    symbols: dict[Symbol, Index] = field(default_factory=dict)
    indices: dict[Dim, Index] = field(default_factory=dict)
    values: dict[int, CValue] = field(default_factory=dict)
    refs: dict[str, CValue] = field(default_factory=dict)

    def child(self, symbols: dict[Symbol, Index] | None = None) -> Scope:
        """The scope of a block inside."""
        return Scope(self, dict(symbols or {}))

    def find(self, look: Callable[[Scope], _T | None]) -> _T | None:
        """The first thing that is found, from this block outwards."""
        scope: Scope | None = self
        while scope is not None:
            found = look(scope)
            if found is not None:
                return found
            scope = scope.parent
        return None

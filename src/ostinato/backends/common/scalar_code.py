"""Scalar expressions as code, in any language: each is written once in the scopes that need it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ostinato.errors import OstinatoError
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    IndexValue,
    Load,
    Number,
    Ref,
    Scalar,
    operands,
)
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.variables import bounds, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ostinato.dtypes import DType
    from ostinato.lower.loopir.dependences import Dependence, Dependences
    from ostinato.variables import Dim

__all__ = ["ScalarCode"]

V = TypeVar("V")


class ScopeOf(Protocol[V]):
    """A part of a kernel in which values are known.

    Attributes:
        values: by the identity of an expression, its value.
        refs: by name, the results of reductions.
    """

    values: dict[int, V]
    refs: dict[str, V]

    def find(self, look: Callable[[Any], V | None], /) -> V | None:
        """The first that is found in this scope, or in those around it."""


S = TypeVar("S", bound=ScopeOf[Any])


class ScalarCode(ABC, Generic[V, S]):
    """Writes scalar expressions.

    Args:
        namespace: the ``xp`` of the ops' rules.
        dependences: of the nest that the expressions belong to.

    Attributes:
        dependences: see above.
    """

    def __init__(self, namespace: Any, dependences: Dependences) -> None:
        self.dependences = dependences
        self._namespace = namespace

    # -- what a language hands in ------------------------------------------------------------------

    @abstractmethod
    def _number(self, value: Any, dtype: DType) -> V:
        """A constant."""

    @abstractmethod
    def _result(self, found: Any, dtype: DType) -> V:
        """The result of an op's rule, a number or a value, rounded to ``dtype``."""

    @abstractmethod
    def load(self, buffer: int, dtype: DType, index: Dim, scope: S) -> V:
        """The element at ``index``."""

    @abstractmethod
    def _position(self, scalar: IndexValue, scope: S) -> V:
        """An index expression as a number."""

    @abstractmethod
    def _choice(self, guard: Guard, conditions: Sequence[Dim], scope: S) -> V:
        """The value of a guard that holds where all of some conditions are ``>= 0``."""

    # -- values ------------------------------------------------------------------------------------

    def value(self, scalar: Scalar, scope: S) -> V:
        """``scalar`` in ``scope``: computed once, and found again in the scopes beneath."""
        known: V | None = scope.find(lambda s: s.values.get(id(scalar)))
        if known is None:
            known = scope.values[id(scalar)] = self._compute(scalar, scope)
        return known

    def hoist(self, scalars: Iterable[Scalar], scope: S, blocked: frozenset[Dependence]) -> None:
        """Compute in ``scope`` all parts of ``scalars`` that depend on nothing in ``blocked``.

        What stands under a guard that cannot move as a whole stays where it is: it may be
        readable only there.
        """
        seen: set[int] = set()
        waiting = list(scalars)[::-1]
        while waiting:
            scalar = waiting.pop()
            if id(scalar) in seen or isinstance(scalar, Number | Ref):
                continue
            seen.add(id(scalar))
            if self.dependences.of(scalar).isdisjoint(blocked):
                self.value(scalar, scope)
            elif not isinstance(scalar, Guard):
                waiting.extend(list(operands(scalar))[::-1])

    def _compute(self, scalar: Scalar, scope: S) -> V:
        match scalar:
            case Number():
                return self._number(scalar.value, scalar.dtype)
            case Load():
                return self.load(scalar.buffer, scalar.dtype, scalar.index, scope)
            case Apply():
                return self._apply(scalar, scope)
            case Guard():
                return self._guard(scalar, scope)
            case IndexValue():
                return self._position(scalar, scope)
            case Ref():
                known: V | None = scope.find(lambda s: s.refs.get(scalar.name))
                if known is not None:
                    return known
        raise OstinatoError(f"{scalar} has no value at this point of the kernel")

    def _apply(self, scalar: Apply, scope: S) -> V:
        values = [self.value(operand, scope) for operand in scalar.operands]
        rule, attrs = ELEMENTWISE[scalar.op], dict(scalar.attrs)
        return self._result(rule.evaluate(self._namespace, *values, **attrs), scalar.dtype)

    def _guard(self, guard: Guard, scope: S) -> V:
        conditions = [c for c in guard.conditions if not provably_nonnegative(c)]
        if not conditions:
            return self.value(guard.body, scope)
        if any(bounds(c)[1] < 0 for c in conditions):
            return self.value(guard.otherwise, scope)
        return self._choice(guard, conditions, scope)

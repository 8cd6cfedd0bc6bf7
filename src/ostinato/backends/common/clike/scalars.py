"""Scalar expressions and the stores that they feed as code, at a point of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.clike.indices import Indices, is_wide
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.values import CValue, function, round_to
from ostinato.dtypes import INT32, INT64, DType
from ostinato.errors import OstinatoError
from ostinato.lower.loopir.nodes import (
    Apply,
    Guard,
    IndexValue,
    Load,
    Number,
    Ref,
    Scalar,
    Store,
    operands,
)
from ostinato.ops.elementwise import ELEMENTWISE
from ostinato.variables import Dim, Expr, Symbol, bounds, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.backends.common.clike.arrays import Arrays
    from ostinato.backends.common.clike.values import Code
    from ostinato.lower.loopir.dependences import Dependence, Dependences

__all__ = ["Scalars"]

_UPDATES = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


class Scalars:
    """Writes scalar expressions and the memory accesses of statements.

    Args:
        code: where they are written.
        namespace: the ``xp`` of the ops' rules.
        arrays: the arguments, then the temps.
        dependences: of the nest that the expressions belong to.
    """

    def __init__(
        self, code: Code, namespace: Any, arrays: Arrays, dependences: Dependences
    ) -> None:
        self.code = code
        self.dependences = dependences
        self.indices = Indices(code, self)
        self._namespace = namespace
        self._arrays = arrays

    # -- values -----------------------------------------------------------------------------

    def value(self, scalar: Scalar, scope: Scope) -> CValue:
        """``scalar`` in ``scope``: computed once, and found again in the scopes beneath."""
        known = scope.find(lambda s: s.values.get(id(scalar)))
        if known is None:
            known = scope.values[id(scalar)] = self._compute(scalar, scope)
        return known

    def hoist(
        self, scalars: Iterable[Scalar], scope: Scope, blocked: frozenset[Dependence]
    ) -> None:
        """Computes in ``scope`` all parts of ``scalars`` that depend on nothing in ``blocked``.

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

    def data(self, symbol: Symbol, scope: Scope) -> Index:
        """The value of a data symbol."""
        value = self.value(self.dependences.value_of(symbol), scope)
        wide = is_wide(Expr({(symbol,): 1}, 0))
        return Index(value.astype(INT64 if wide else INT32).text, wide)

    def _compute(self, scalar: Scalar, scope: Scope) -> CValue:
        match scalar:
            case Number():
                return self.code.constant(scalar.dtype, scalar.value)
            case Load():
                return self.load(scalar.buffer, scalar.dtype, scalar.index, scope)
            case Apply():
                return self._apply(scalar, scope)
            case Guard():
                return self._guard(scalar, scope)
            case IndexValue():
                return self.index_value(scalar.index, scope).astype(scalar.dtype)
            case Ref():
                known = scope.find(lambda s: s.refs.get(scalar.name))
                if known is not None:
                    return known
        raise OstinatoError(f"{scalar} has no value at this point of the kernel")

    def index_value(self, dim: Dim, scope: Scope) -> CValue:
        """An index expression as a number."""
        index = self.indices.value(dim, scope)
        return CValue(self.code, index.text, INT64 if index.wide else INT32)

    def _apply(self, scalar: Apply, scope: Scope) -> CValue:
        if (joined := self._with_operand(scalar, scope)) is not None:
            return joined
        values = [self.value(operand, scope) for operand in scalar.operands]
        result = ELEMENTWISE[scalar.op].evaluate(self._namespace, *values, **dict(scalar.attrs))
        if not isinstance(result, CValue):
            return self.code.constant(scalar.dtype, result)
        return round_to(result, scalar.dtype)

    def _with_operand(self, scalar: Apply, scope: Scope) -> CValue | None:
        """The value of an op and of its operand by one function, if the dialect has one."""
        inner, dialect = scalar.operands[0], self.code.dialect
        if not isinstance(inner, Apply) or len(scalar.operands) > 1 or scalar.attrs or inner.attrs:
            return None
        if any(operand.dtype != scalar.dtype for operand in (inner, *inner.operands)):
            return None
        name = dialect.function_of_both(scalar.op, inner.op, scalar.dtype)
        if name is None or scope.find(lambda s: s.values.get(id(inner))) is not None:
            return None
        texts = [self.value(operand, scope).text for operand in inner.operands]
        return self.code.keep(scalar.dtype, dialect.call(name, scalar.dtype, *texts))

    def _guard(self, guard: Guard, scope: Scope) -> CValue:
        conditions = [c for c in guard.conditions if not provably_nonnegative(c)]
        if not conditions:
            return self.value(guard.body, scope)
        if any(bounds(c)[1] < 0 for c in conditions):
            return self.value(guard.otherwise, scope)
        code = self.code
        holds = self.conditions(conditions, scope)
        name = code.writer.fresh("g")
        code.writer.line(code.dialect.declare(code.dialect.register_type(guard.dtype), name))
        for head, branch in ((f"if ({holds})", guard.body), ("else", guard.otherwise)):
            with code.writer.block(head):
                value = self.value(branch, scope.child()).astype(guard.dtype)
                code.writer.line(f"{name} = {value.text};")
        return CValue(code, name, guard.dtype)

    def conditions(self, conditions: Sequence[Dim], scope: Scope) -> str:
        """An expression for whether all of the conditions are ``>= 0``."""
        found = [self.indices.value(condition, scope) for condition in conditions]
        dialect = self.code.dialect
        return " && ".join(dialect.is_nonnegative(index.text, index.wide) for index in found)

    # -- memory -----------------------------------------------------------------------------

    def load(self, buffer: int, dtype: DType, index: Dim, scope: Scope) -> CValue:
        """The element at ``index``."""
        element = self._arrays.load(buffer, dtype, self.indices.value(index, scope))
        return self.code.keep(dtype, element, rounded=True)

    def put(self, buffer: int, dtype: DType, index: Dim, value: CValue, scope: Scope) -> None:
        """Writes ``value`` at ``index``."""
        at = self.indices.value(index, scope)
        for line in self._arrays.store(buffer, dtype, at, value.astype(dtype).text):
            self.code.writer.line(line)

    def store(self, statement: Store, dtype: DType, scope: Scope) -> None:
        """Writes, or updates, the element of a store in an array of ``dtype``, if it is to be."""
        conditions = [c for c in statement.conditions if not provably_nonnegative(c)]
        if not conditions:
            self._write(statement, dtype, scope)
            return
        with self.code.writer.block(f"if ({self.conditions(conditions, scope)})"):
            self._write(statement, dtype, scope.child())

    def _write(self, statement: Store, dtype: DType, scope: Scope) -> None:
        value = self.value(statement.value, scope).astype(dtype)
        if statement.update != "set":
            old = self.load(statement.buffer, dtype, statement.index, scope)
            value = function(_UPDATES[statement.update], old, value)
        self.put(statement.buffer, dtype, statement.index, value, scope)

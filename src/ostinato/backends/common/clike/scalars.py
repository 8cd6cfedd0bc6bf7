"""Scalar expressions and the stores that they feed as code, at a point of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ostinato.backends.common.clike.indices import Indices, is_wide
from ostinato.backends.common.clike.scopes import Index, Scope
from ostinato.backends.common.clike.values import CValue, function, round_to
from ostinato.backends.common.scalar_code import ScalarCode
from ostinato.dtypes import INT32, INT64, DType
from ostinato.variables import Dim, Expr, Symbol, provably_nonnegative

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.backends.common.clike.arrays import Arrays
    from ostinato.backends.common.clike.values import Code
    from ostinato.lower.loopir.dependences import Dependences
    from ostinato.lower.loopir.nodes import Apply, Guard, IndexValue, Scalar, Store

__all__ = ["Scalars"]

_UPDATES = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


class Scalars(ScalarCode[CValue, Scope]):
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
        super().__init__(namespace, dependences)
        self.code = code
        self.indices = Indices(code, self)
        self._arrays = arrays

    # -- values -----------------------------------------------------------------------------

    def data(self, symbol: Symbol, scope: Scope) -> Index:
        """The value of a data symbol."""
        value = self.value(self.dependences.value_of(symbol), scope)
        wide = is_wide(Expr({(symbol,): 1}, 0))
        return Index(value.astype(INT64 if wide else INT32).text, wide)

    def _number(self, value: Any, dtype: DType) -> CValue:
        return self.code.constant(dtype, value)

    def _result(self, found: Any, dtype: DType) -> CValue:
        if isinstance(found, CValue):
            return round_to(found, dtype)
        return self.code.constant(dtype, found)

    def _position(self, scalar: IndexValue, scope: Scope) -> CValue:
        return self.index_value(scalar.index, scope).astype(scalar.dtype)

    def index_value(self, dim: Dim, scope: Scope) -> CValue:
        """An index expression as a number."""
        index = self.indices.value(dim, scope)
        return CValue(self.code, index.text, INT64 if index.wide else INT32)

    def _apply(self, scalar: Apply, scope: Scope) -> CValue:
        joined = self._with_operands(scalar, scope)
        return super()._apply(scalar, scope) if joined is None else joined

    def _with_operands(self, scalar: Apply, scope: Scope) -> CValue | None:
        """The value of an op and of those that it reads by one function, if the dialect has one."""
        dialect = self.code.dialect
        joined = dialect.joined(scalar)
        if joined is None or any(self._is_known(inner, scope) for inner in joined.inner):
            return None
        texts = [self.value(operand, scope).text for operand in joined.operands]
        return self.code.keep(scalar.dtype, dialect.call(joined.function, scalar.dtype, *texts))

    @staticmethod
    def _is_known(scalar: Scalar, scope: Scope) -> bool:
        """Whether there is a variable with a value."""
        return scope.find(lambda s: s.values.get(id(scalar))) is not None

    def _choice(self, guard: Guard, conditions: Sequence[Dim], scope: Scope) -> CValue:
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
        for line in self._arrays.store(buffer, at, value.astype(dtype)):
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

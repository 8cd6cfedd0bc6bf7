"""Reductions in CUDA C++: the state of a thread, and how the states of a group become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import CValue
from ostinato.dtypes import INT32, INT64, DType
from ostinato.lower.loopir.nodes import Apply, Reduce
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.cuda.render.code import NestCode

__all__ = ["OPERATORS", "RunningReduction"]

#: The functors of ``groups.cuh``.
OPERATORS = {
    "sum": "ost::plus()",
    "prod": "ost::times()",
    "max": "ost::greater()",
    "min": "ost::lesser()",
    "any": "ost::either()",
    "all": "ost::both()",
    "logsumexp": "ost::log_plus()",
    "argmax": "ost::first_extreme<true>()",
    "argmin": "ost::first_extreme<false>()",
}


@dataclass(frozen=True, eq=False)
class RunningReduction:
    """The state of a reduction in each thread: a variable.

    Attributes:
        code: the function.
        reduction: the statement.
        name: of the variable.
    """

    code: NestCode
    reduction: Reduce
    name: str

    @staticmethod
    def start(code: NestCode, reduction: Reduce) -> RunningReduction:
        """A reduction of nothing yet."""
        running = RunningReduction(code, reduction, code.writer.fresh("r"))
        code.writer.line(f"{running.type} {running.name} = {running.neutral};")
        return running

    @property
    def operator(self) -> str:
        return OPERATORS[self.reduction.op]

    @property
    def type(self) -> str:
        """The type of the state: a value, or an extreme value with its index."""
        dialect = self.code.dialect
        held = dialect.register_type(self.reduction.value.dtype)
        if not self._finds_index:
            return held
        return f"ost::extreme<{held}, {dialect.register_type(self._index_dtype)}>"

    @property
    def neutral(self) -> str:
        """The state of a reduction of nothing."""
        dialect, dtype = self.code.dialect, self.reduction.value.dtype
        match self.reduction.op:
            case "sum" | "any":
                return dialect.literal(dtype, 0)
            case "prod" | "all":
                return dialect.literal(dtype, 1)
            case "max" | "argmax":
                value = dialect.literal(dtype, dtype.lowest)
            case _:
                value = dialect.literal(dtype, dtype.highest)
        if not self._finds_index:
            return value
        beyond = dialect.literal(self._index_dtype, (1 << (self._index_dtype.bits - 1)) - 1)
        return f"{self.type}{{{value}, {beyond}}}"

    def add(self, scope: Scope) -> None:
        """Takes the value at a point in."""
        scalars, reduction = self.code.scalars, self.reduction
        if reduction.fused:
            assert isinstance(reduction.value, Apply)
            factors = [
                scalars.value(factor, scope).astype(reduction.value.dtype).text
                for factor in reduction.value.operands
            ]
            dtype = reduction.value.dtype
            added = self.code.dialect.call("multiply_add", dtype, *factors, self.name)
            self.code.writer.line(f"{self.name} = {added};")
            return
        value = scalars.value(reduction.value, scope).text
        if self._finds_index:
            index = scalars.index_value(reduction.index, scope).astype(self._index_dtype)
            value = f"{self.type}{{{value}, {index.text}}}"
        self.code.writer.line(f"{self.name} = {self.operator}({self.name}, {value});")

    def result(self, scope: Scope) -> None:
        """Makes the state the value that refs of ``scope`` find."""
        name, dtype = self.name, self.reduction.value.dtype
        if self._finds_index:
            value = CValue(self.code.code, f"{name}.index", self._index_dtype).astype(INT64)
        else:
            value = CValue(self.code.code, name, dtype)
        scope.refs[self.reduction.name] = value

    @property
    def _finds_index(self) -> bool:
        return self.reduction.op in ("argmax", "argmin")

    @property
    def _index_dtype(self) -> DType:
        return INT32 if bounds(self.reduction.index)[1] < (1 << 31) - 1 else INT64

"""Reductions: the state of a thread, and how the states of several become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.backends.common.clike.values import CValue, is_nan, where
from ostinato.backends.webgpu.render.code import NAMESPACE
from ostinato.dtypes import BOOL, INT32, INT64, DType
from ostinato.lower.loopir.nodes import Apply, Reduce
from ostinato.records import dataclass
from ostinato.variables import bounds

if TYPE_CHECKING:
    from ostinato.backends.common.clike.scopes import Scope
    from ostinato.backends.webgpu.render.code import KernelCode

__all__ = ["RunningReduction", "combined"]

#: Threads that share a point up to which they exchange values by subgroups: with more, workgroup
#: memory alone is faster.
_MOST_BY_LANES = 128

#: The function that takes a value into a result so far.
_FUNCTIONS = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "any": "logical_or",
    "all": "logical_and",
    "logsumexp": "logaddexp",
}


def combined(op: str, left: CValue, right: CValue) -> CValue:
    """Two results of a reduction as one."""
    result: CValue = getattr(NAMESPACE, _FUNCTIONS[op])(left, right)
    return result.astype(left.dtype)


@dataclass(frozen=True, eq=False)
class RunningReduction:
    """The state of a reduction in each thread: a variable, and one for the index of an extreme.

    Attributes:
        code: the kernel.
        reduction: the statement.
        names: of the variables.
    """

    code: KernelCode
    reduction: Reduce
    names: tuple[str, ...]

    @staticmethod
    def start(code: KernelCode, reduction: Reduce) -> RunningReduction:
        """A reduction of nothing yet."""
        names = tuple(
            code.variable("r", neutral, code.dialect.register_type(dtype))
            for dtype, neutral in _states(code, reduction)
        )
        return RunningReduction(code, reduction, names)

    @property
    def types(self) -> list[str]:
        """The types of the variables."""
        dialect = self.code.dialect
        return [dialect.memory_type(dtype) for dtype, _ in _states(self.code, self.reduction)]

    def add(self, scope: Scope) -> None:
        """Takes the value at a point in."""
        scalars, reduction = self.code.scalars, self.reduction
        if reduction.fused:
            assert isinstance(reduction.value, Apply)
            dtype = reduction.value.dtype
            factors = [
                scalars.value(factor, scope).astype(dtype).text
                for factor in reduction.value.operands
            ]
            added = self.code.dialect.call("multiply_add", dtype, *factors, self.names[0])
            self.code.writer.line(f"{self.names[0]} = {added};")
            return
        found = [scalars.value(reduction.value, scope)]
        if len(self.names) > 1:
            found.append(
                scalars.index_value(reduction.index, scope).astype(_index_dtype(reduction))
            )
        self._take(found)

    def result(self, scope: Scope) -> None:
        """Makes the state the value that refs of ``scope`` find."""
        value = self._values[-1]
        scope.refs[self.reduction.name] = value if len(self.names) == 1 else value.astype(INT64)

    def across(self, members: int, threads: int, arrays: list[str]) -> None:
        """Give all threads that share a point the result of all.

        Args:
            members: the threads of a point, which are neighbours.
            threads: of a workgroup.
            arrays: in workgroup memory, with an element for each thread.
        """
        if members <= _MOST_BY_LANES and self.code.shares_lanes(members, threads):
            self._across_lanes(members, arrays)
        else:
            self._by_halves(members, arrays)

    def _across_lanes(self, members: int, arrays: list[str]) -> None:
        """Each subgroup exchanges its states, and then all of them what they have."""
        code, writer = self.code, self.code.writer
        width, step = code.declare("w", f"min(lanes, {members}u)", "u32"), writer.fresh("s")
        with writer.block(f"for (var {step} = {width} >> 1u; {step} > 0u; {step} >>= 1u)"):
            self._take([self._from_lane(value, step) for value in self._values])
        with writer.block(f"if (thread % {width} == 0u)"):
            for value, array in zip(self._values, arrays, strict=True):
                kept = value.stored
                writer.line(f"{array}[thread / {width}] = {kept};")
        writer.line("workgroupBarrier();")
        first = code.declare("q", f"thread / {members}u * ({members}u / {width})", "u32")
        for name, value in zip(self.names, self._read(arrays, first), strict=True):
            writer.line(f"{name} = {value.text};")
        part = writer.fresh("s")
        with writer.block(f"for (var {part} = 1u; {part} < {members}u / {width}; {part}++)"):
            self._take(self._read(arrays, f"{first} + {part}"))
        writer.line("workgroupBarrier();")

    def _from_lane(self, value: CValue, step: str) -> CValue:
        """The value of the thread whose number in the subgroup differs in one bit."""
        code = self.code
        moved = value.stored
        text = code.dialect.from_memory(f"subgroupShuffleXor({moved}, {step})", value.dtype)
        return code.code.keep(value.dtype, text)

    def _by_halves(self, members: int, arrays: list[str]) -> None:
        """Half of the threads take the states of the other half, again and again."""
        writer = self.code.writer
        kept = [array + "[thread]" for array in arrays]
        for value, place in zip(self._values, kept, strict=True):
            writer.line(f"{place} = {value.stored};")
        writer.line("workgroupBarrier();")
        step = writer.fresh("s")
        with writer.block(f"for (var {step} = {members // 2}u; {step} > 0u; {step} >>= 1u)"):
            with writer.block(f"if (thread % {members}u < {step})"):
                self._take(self._read(arrays, f"thread + {step}"))
                for value, place in zip(self._values, kept, strict=True):
                    writer.line(f"{place} = {value.stored};")
            writer.line("workgroupBarrier();")
        first = f"thread / {members}u * {members}u"
        for name, value in zip(self.names, self._read(arrays, first), strict=True):
            writer.line(f"{name} = {value.text};")
        writer.line("workgroupBarrier();")

    @property
    def _values(self) -> list[CValue]:
        dtypes = [dtype for dtype, _ in _states(self.code, self.reduction)]
        return [
            CValue(self.code.code, name, dtype)
            for name, dtype in zip(self.names, dtypes, strict=True)
        ]

    def _read(self, arrays: list[str], at: str) -> list[CValue]:
        code = self.code
        return [
            code.code.keep(value.dtype, code.dialect.from_memory(f"{array}[{at}]", value.dtype))
            for array, value in zip(arrays, self._values, strict=True)
        ]

    def _take(self, found: list[CValue]) -> None:
        """Take another state in."""
        mine, writer = self._values, self.code.writer
        if len(mine) == 1:
            result = combined(self.reduction.op, mine[0], found[0])
            writer.line(f"{self.names[0]} = {result.text};")
            return
        better = self._is_better(mine, found)
        for name, kept, other in zip(self.names, mine, found, strict=True):
            writer.line(f"{name} = {where(better, other, kept).text};")

    def _is_better(self, mine: list[CValue], found: list[CValue]) -> CValue:
        """Whether another extreme is beyond this one, or equal and in front of it.

        NaN is beyond all numbers.
        """
        (kept, kept_at), (other, other_at) = mine, found
        earlier = other_at < kept_at
        beyond = other > kept if self.reduction.op == "argmax" else other < kept
        usual = beyond | ((other == kept) & earlier)
        if not kept.dtype.is_float:
            return usual
        lost, gained = is_nan(kept), is_nan(other)
        return where(gained, ~lost | earlier, ~lost & usual).astype(BOOL)


def _states(code: KernelCode, reduction: Reduce) -> list[tuple[DType, str]]:
    """The dtypes of a state's variables, and their values for a reduction of nothing."""
    dtype, op = reduction.value.dtype, reduction.op
    match op:
        case "sum" | "any":
            neutral: bool | int | float = 0
        case "prod" | "all":
            neutral = 1
        case "max" | "argmax":
            neutral = dtype.lowest
        case _:
            neutral = dtype.highest
    found = [(dtype, code.dialect.literal(dtype, neutral))]
    if op in ("argmax", "argmin"):
        index = _index_dtype(reduction)
        found.append((index, code.dialect.literal(index, index.highest)))
    return found


def _index_dtype(reduction: Reduce) -> DType:
    return INT32 if bounds(reduction.index)[1] < (1 << 31) - 1 else INT64

"""Kernels as text: to read, and, hashed, to recognise a kernel that was compiled before.

The text says everything that the generated code depends on and little else: axes, data symbols
and reductions are numbered in order of appearance, so two kernels that differ in those names alone
print the same. Variables keep their names, after a ``$``. Scalar expressions are numbered too, each
printed once, before its first use::

    loops, parallel
      arg b0: f32, read
      arg b1: f32, written
      for i0: 0..479
      stage for i1: 0..3071
        %0 = load f32 b0[3072*i0 + i1]
        %1 = exp f32(%0)
        b1[3072*i0 + i1] = %1
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from ostinato.dtypes import DType
from ostinato.lower.loopir.nodes import (
    Accumulator,
    Apply,
    Binding,
    Guard,
    IndexValue,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Scan,
    Statement,
    Store,
)
from ostinato.variables import Dim, Expr, Symbol, substitute, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ostinato.ir.op import Attr
    from ostinato.lower.loopir.nodes import Arg

__all__ = ["Described", "KernelText", "digest", "kernel_text"]


class Described(Protocol):
    """Anything that has Variables and a text form: a kernel."""

    @property
    def variables(self) -> tuple[Symbol, ...]: ...

    def describe(self, text: KernelText) -> None: ...


def kernel_text(kernel: Described) -> str:
    """``kernel`` as text, the same for every kernel that gives the same code."""
    text = KernelText(kernel.variables)
    kernel.describe(text)
    return "\n".join(text.lines) + "\n"


def digest(kernel: Described) -> str:
    """A hash of :func:`kernel_text`, as 64 hexadecimal digits."""
    return hashlib.sha256(kernel_text(kernel).encode()).hexdigest()


class KernelText:
    """The lines of one kernel; each kind of kernel writes its own."""

    def __init__(self, variables: Sequence[Symbol]) -> None:
        self.lines: list[str] = []
        self._variables = variables
        self._renamed: dict[Symbol, Dim] = {
            v: _symbol_expr(Symbol(f"${v.name}", v.min, v.max)) for v in variables
        }
        self._numbers: dict[int, str] = {}
        self._bound: set[Symbol] = set()
        self._reductions: dict[str, str] = {}

    # -- lines ------------------------------------------------------------------------------

    def line(self, depth: int, text: str) -> None:
        """A line of its own."""
        self.lines.append("  " * depth + text)

    def named(self, name: str, scalars: Iterable[Scalar]) -> None:
        """Scalars that are called ``name`` together."""
        self.line(1, f"{name}: {', '.join([self.scalar(s) for s in scalars])}")

    def head(self, args: Iterable[Arg]) -> None:
        """The Variables and the arguments."""
        for variable in self._variables:
            self.line(1, f"variable ${variable.name}: {variable.min}..{variable.max}")
        for number, arg in enumerate(args):
            uses = "".join([", read" * arg.reads, ", written" * arg.writes])
            self.line(1, f"arg b{number}: {arg.dtype.short}{uses}")

    # -- statements -------------------------------------------------------------------------

    def statement(self, statement: Statement) -> None:
        """A statement, after the scalars that it is made of."""
        value = self.scalar(statement.value)
        match statement:
            case Store():
                self._bind(statement.bindings)
                target = f"b{statement.buffer}[{self.dim(statement.index)}]"
                update = "" if statement.update == "set" else f"{statement.update} "
                self.line(2, f"{target} = {update}{value}{self._if(statement.conditions)}")
            case Reduce():
                name = self._reduction(statement.name)
                at = f" at {self.dim(statement.index)}" if "arg" in statement.op else ""
                kind = f"{'fused ' * statement.fused}{statement.op} {statement.dtype.short}"
                self.line(2, f"{name} = {kind} {value}{at}")
            case Scan():
                target = f"b{statement.buffer}[{self.dim(statement.index)}]"
                kind = f"running {statement.op} {statement.dtype.short}"
                before = " before it" if statement.exclusive else ""
                self.line(2, f"{target} = {kind} {value}{before}")

    def _if(self, conditions: Sequence[Dim]) -> str:
        return f" if {self._conditions(conditions)}" if conditions else ""

    def _conditions(self, conditions: Sequence[Dim]) -> str:
        return " and ".join(f"{self.dim(condition)} >= 0" for condition in conditions)

    # -- scalars ----------------------------------------------------------------------------

    def scalar(self, scalar: Scalar) -> str:
        """A reference to ``scalar``, whose definition and operands are written before it."""
        match scalar:
            case Number():
                return f"{scalar.value!r}:{scalar.dtype.short}"
            case Ref():
                return self._reduction(scalar.name)
            case Accumulator():
                return f"acc{scalar.number or ''}:{scalar.dtype.short}"
        if id(scalar) not in self._numbers:
            text = self._definition(scalar)
            self._numbers[id(scalar)] = f"%{len(self._numbers)}"
            self.line(2, f"{self._numbers[id(scalar)]} = {text}")
        return self._numbers[id(scalar)]

    def _definition(self, scalar: Load | IndexValue | Apply | Guard) -> str:
        dtype = scalar.dtype.short
        match scalar:
            case Load():
                self._bind(scalar.bindings)
                return f"load {dtype} b{scalar.buffer}[{self.dim(scalar.index)}]"
            case IndexValue():
                self._bind(scalar.bindings)
                return f"index {dtype} {self.dim(scalar.index)}"
            case Apply():
                arguments = [self.scalar(operand) for operand in scalar.operands]
                arguments += [f"{name}={self.attr(value)}" for name, value in scalar.attrs]
                return f"{scalar.op} {dtype}({', '.join(arguments)})"
            case Guard():
                self._bind(scalar.bindings)
                body, otherwise = self.scalar(scalar.body), self.scalar(scalar.otherwise)
                conditions = self._conditions(scalar.conditions)
                return f"guard {dtype} {body} if {conditions} else {otherwise}"

    def _bind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            value = self.scalar(binding.value)
            if binding.symbol not in self._bound:
                self._bound.add(binding.symbol)
                self.line(2, f"{self.axis(binding.symbol, 'd')} = {value}")

    # -- names ------------------------------------------------------------------------------

    def _reduction(self, name: str) -> str:
        return self._reductions.setdefault(name, f"r{len(self._reductions)}")

    def axis(self, symbol: Symbol, letter: str = "i") -> str:
        """An axis or data symbol with its range: ``i0: 0..479``, or ``i0: 0..511 < S``."""
        name = self._rename(symbol, letter)
        extent = symbol.extent
        limit = "" if extent is None or extent == symbol.max + 1 else f" < {self.dim(extent)}"
        return f"{name}: {symbol.min}..{symbol.max}{limit}"

    def _rename(self, symbol: Symbol, letter: str) -> Dim:
        if symbol not in self._renamed:
            name = f"{letter}{len(self._renamed) - len(self._variables)}"
            extent = None if symbol.extent is None else substitute(symbol.extent, self._renamed)
            self._renamed[symbol] = _symbol_expr(Symbol(name, symbol.min, symbol.max, extent))
        return self._renamed[symbol]

    def dim(self, dim: Dim) -> str:
        """An index expression, its symbols renamed."""
        for symbol in sorted(symbols(dim), key=lambda s: s.name):
            self._rename(symbol, "d")  # axes have their names by now
        return str(substitute(dim, self._renamed))

    def attr(self, value: Attr) -> str:
        """The value of an attribute."""
        if isinstance(value, Expr):
            return self.dim(value)
        if isinstance(value, DType):
            return value.short
        if isinstance(value, tuple):
            return f"({', '.join(self.attr(item) for item in value)})"
        return repr(value)


def _symbol_expr(symbol: Symbol) -> Expr:
    return Expr({(symbol,): 1}, 0)

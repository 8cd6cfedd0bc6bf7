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
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable, Iterable, Sequence

    from ostinato.ir.op import Attr
    from ostinato.lower.attention import AttentionKernel
    from ostinato.lower.contraction import Contraction
    from ostinato.lower.copying import Copying
    from ostinato.lower.fetching import Choosing, Fetching
    from ostinato.lower.grouped import GroupedProduct
    from ostinato.lower.grouping import Grouping, GroupLayout
    from ostinato.lower.joint import JointProduct
    from ostinato.lower.loopir.nodes import Arg, LoopNest
    from ostinato.lower.program import Kernel
    from ostinato.lower.recurrent import RecurrentKernel
    from ostinato.lower.topk import TopK

__all__ = ["digest", "kernel_text"]


def kernel_text(kernel: Kernel) -> str:
    """``kernel`` as text, the same for every kernel that gives the same code."""
    printer = _Printer(kernel.variables)
    _KINDS[type(kernel).__name__](printer, kernel)
    return "\n".join(printer.lines) + "\n"


def digest(kernel: Kernel) -> str:
    """A hash of :func:`kernel_text`, as 64 hexadecimal digits."""
    return hashlib.sha256(kernel_text(kernel).encode()).hexdigest()


class _Printer:
    def __init__(self, variables: Sequence[Symbol]) -> None:
        self.lines: list[str] = []
        self._variables = variables
        self._renamed: dict[Symbol, Dim] = {
            v: _symbol_expr(Symbol(f"${v.name}", v.min, v.max)) for v in variables
        }
        self._numbers: dict[int, str] = {}
        self._bound: set[Symbol] = set()
        self._registers: dict[str, str] = {}

    # -- kernels ----------------------------------------------------------------------------

    def nest(self, nest: LoopNest) -> None:
        self._line(0, "loops, parallel" if nest.parallel else "loops, in order")
        self._head(nest.args)
        for number, temp in enumerate(nest.temps, len(nest.args)):
            self._line(1, f"temp b{number}: {temp.dtype.short}[{temp.elements}]")
        for axis in nest.axes:
            self._line(1, f"for {self._axis(axis)}")
        if nest.lane_axis is not None:
            self._line(1, f"lanes {self._axis(nest.lane_axis)} by {nest.block}")
        for stage in nest.stages:
            axes = ", ".join(self._axis(axis) for axis in stage.axes)
            self._line(1, f"stage for {axes}" if axes else "stage")
            for statement in stage.statements:
                self._statement(statement)

    def contraction(self, kernel: Contraction) -> None:
        self._line(0, "contraction")
        self._head(kernel.args)
        self._sums(kernel)
        for store in kernel.epilogue:
            self._statement(store)

    def joint(self, kernel: JointProduct) -> None:
        self._line(0, "contractions side by side")
        self._head(kernel.args)
        for stripe in kernel.stripes:
            self._line(0, "columns")
            for product in stripe:
                self._sums(product)
            for store in stripe[0].epilogue:
                self._statement(store)

    def _sums(self, kernel: Contraction) -> None:
        for axis in kernel.batch:
            self._line(1, f"for {self._axis(axis)}")
        items = "" if kernel.item_rows is None else f" in items of {kernel.item_rows}"
        self._line(1, f"rows {self._axis(kernel.m)} by {kernel.rows}{items}")
        self._line(1, f"columns {self._axis(kernel.n)} by {kernel.panel}")
        for axis in kernel.k:
            self._line(1, f"sum over {self._axis(axis)}")
        left = f"{kernel.a_dtype.short} b{kernel.a}[{self._dim(kernel.a_index)}]"
        kind = "" if kernel.b_format is None else f"{kernel.b_format} "
        right = f"{kind}b{kernel.b}.group[{self._dim(kernel.b_group)}]"
        self._line(1, f"accumulate {kernel.acc.short} {left} * {right}")
        if (scales := kernel.scales) is not None:
            left = f"f32 b{scales.a}[{self._dim(scales.a_index)}]"
            right = f"{scales.b_dtype.short} b{scales.b}"
            self._line(1, f"blocks of {scales.size} scaled by {left} and {right}")
        if kernel.idle is not None:
            self._line(1, f"without the last b{kernel.idle}[0] rows")

    def topk(self, kernel: TopK) -> None:
        self._line(0, f"topk, {'greatest' if kernel.largest else 'least'} first")
        self._head(kernel.args)
        for axis in kernel.axes:
            self._line(1, f"for {self._axis(axis)}")
        self._line(1, f"among {self._axis(kernel.along)}")
        self._line(1, f"choose {self._axis(kernel.rank)}")
        self._line(1, f"by {self._scalar(kernel.value)}")
        for store in kernel.stores:
            self._statement(store)

    def grouping(self, kernel: Grouping) -> None:
        self._line(0, "group rows by expert")
        self._head(kernel.args)
        self._line(1, f"rows {self._axis(kernel.row)}")
        self._line(1, f"to b{kernel.groups}: {self._layout(kernel.layout)}")
        self._named("expert", [kernel.expert])

    def grouped(self, kernel: GroupedProduct) -> None:
        self._line(0, "grouped product")
        self._head(kernel.args)
        self._line(1, f"rows {self._axis(kernel.m)} by {kernel.rows}")
        self._line(1, f"columns {self._axis(kernel.n)} by {kernel.panel}")
        self._line(1, f"sum over {self._axis(kernel.k)}")
        self._line(1, f"listed in b{kernel.groups}: {self._layout(kernel.layout)}")
        left = f"{kernel.a_dtype.short} b{kernel.a}[{self._dim(kernel.a_index)}]"
        kind = "" if kernel.b_format is None else f"{kernel.b_format} "
        for b in kernel.b:
            packed = "" if kernel.packed else ", not packed"
            self._line(1, f"accumulate {kernel.acc.short} {left} * {kind}b{b}[expert]{packed}")
        for store in kernel.epilogue:
            self._statement(store)

    def copying(self, kernel: Copying) -> None:
        """What a device's runtime does, and how much of it at a time."""
        self._line(0, f"copy, {kernel.block} elements at a time")
        self.nest(kernel.nest)

    def choosing(self, kernel: Choosing) -> None:
        self._line(0, "choose experts of a wave")
        self._head(kernel.args)

    def fetching(self, kernel: Fetching) -> None:
        self._line(0, f"fetch up to {kernel.count} experts")
        self._head(kernel.args)
        packing = kernel.packing
        self._line(1, f"in {packing.pieces} pieces of {packing.piece_bytes} bytes each")

    def _layout(self, layout: GroupLayout) -> str:
        rows = self._dim(layout.rows)
        return f"{rows} rows, {layout.experts} experts, parts of {layout.part_rows}"

    def attention(self, kernel: AttentionKernel) -> None:
        self._line(0, "attention")
        self._head(kernel.args)
        for axis in kernel.batch:
            self._line(1, f"for {self._axis(axis)}")
        self._line(1, f"rows {self._axis(kernel.m)}, heads of {self._dim(kernel.length)}")
        self._line(1, f"keys {self._axis(kernel.key)}")
        self._line(1, f"sum over {self._axis(kernel.depth)}")
        self._line(1, f"columns {self._axis(kernel.column)}")
        self._line(1, f"{kernel.tiles}")
        self._named("q", [kernel.q])
        self._named("k", [kernel.k])
        self._named("v", [kernel.v])
        if kernel.mask is not None:
            self._named("mask", [kernel.mask])
        self._line(1, f"accumulate {kernel.acc.short}, scale={kernel.scale!r}")
        options = f"softcap={kernel.softcap!r}, causal={kernel.causal}, window={kernel.window}"
        self._line(1, options)
        self._statement(kernel.store)

    def recurrent(self, kernel: RecurrentKernel) -> None:
        attrs = ", ".join(f"{name}={self._attr(value)}" for name, value in kernel.attrs)
        self._line(0, f"recurrent scan, {attrs}")
        self._head(kernel.args)
        self._line(1, f"rows {self._axis(kernel.row)} by {kernel.rows}")
        self._line(1, f"columns {self._axis(kernel.column)} by {kernel.panel}")
        self._line(1, f"steps {self._axis(kernel.step)}")
        self._line(1, f"accumulate {kernel.acc.short} state * b{kernel.r}")
        self._named("x", kernel.x)
        self._named("initial", kernel.initial)
        for name, parts in kernel.weights:
            self._named(name, parts)
        if kernel.length is not None:
            self._named("length", [kernel.length])
        for name, store in zip(("y", "h", "c"), (kernel.y, *kernel.last), strict=False):
            if store is not None:
                self._line(1, f"store {name}")
                self._statement(store)

    def _named(self, name: str, scalars: Iterable[Scalar]) -> None:
        """What ``scalars`` are, and that together they are called ``name``."""
        self._line(1, f"{name}: {', '.join([self._scalar(s) for s in scalars])}")

    def _head(self, args: Iterable[Arg]) -> None:
        for variable in self._variables:
            self._line(1, f"variable ${variable.name}: {variable.min}..{variable.max}")
        for number, arg in enumerate(args):
            uses = "".join([", read" * arg.reads, ", written" * arg.writes])
            self._line(1, f"arg b{number}: {arg.dtype.short}{uses}")

    # -- statements -------------------------------------------------------------------------

    def _statement(self, statement: Statement) -> None:
        value = self._scalar(statement.value)
        match statement:
            case Store():
                self._bind(statement.bindings)
                target = f"b{statement.buffer}[{self._dim(statement.index)}]"
                update = "" if statement.update == "set" else f"{statement.update} "
                self._line(2, f"{target} = {update}{value}{self._if(statement.conditions)}")
            case Reduce():
                name = self._register(statement.name)
                at = f" at {self._dim(statement.index)}" if "arg" in statement.op else ""
                self._line(2, f"{name} = {statement.op} {statement.dtype.short} {value}{at}")
            case Scan():
                target = f"b{statement.buffer}[{self._dim(statement.index)}]"
                kind = f"running {statement.op} {statement.dtype.short}"
                before = " before it" if statement.exclusive else ""
                self._line(2, f"{target} = {kind} {value}{before}")

    def _if(self, conditions: Sequence[Dim]) -> str:
        return f" if {self._conditions(conditions)}" if conditions else ""

    def _conditions(self, conditions: Sequence[Dim]) -> str:
        return " and ".join(f"{self._dim(condition)} >= 0" for condition in conditions)

    # -- scalars ----------------------------------------------------------------------------

    def _scalar(self, scalar: Scalar) -> str:
        """How ``scalar`` is referred to, after printing what it is made of."""
        match scalar:
            case Number():
                return f"{scalar.value!r}:{scalar.dtype.short}"
            case Ref():
                return self._register(scalar.name)
            case Accumulator():
                return f"acc{scalar.number or ''}:{scalar.dtype.short}"
        if id(scalar) not in self._numbers:
            text = self._definition(scalar)
            self._numbers[id(scalar)] = f"%{len(self._numbers)}"
            self._line(2, f"{self._numbers[id(scalar)]} = {text}")
        return self._numbers[id(scalar)]

    def _definition(self, scalar: Load | IndexValue | Apply | Guard) -> str:
        dtype = scalar.dtype.short
        match scalar:
            case Load():
                self._bind(scalar.bindings)
                return f"load {dtype} b{scalar.buffer}[{self._dim(scalar.index)}]"
            case IndexValue():
                self._bind(scalar.bindings)
                return f"index {dtype} {self._dim(scalar.index)}"
            case Apply():
                arguments = [self._scalar(operand) for operand in scalar.operands]
                arguments += [f"{name}={self._attr(value)}" for name, value in scalar.attrs]
                return f"{scalar.op} {dtype}({', '.join(arguments)})"
            case Guard():
                self._bind(scalar.bindings)
                body, otherwise = self._scalar(scalar.body), self._scalar(scalar.otherwise)
                conditions = self._conditions(scalar.conditions)
                return f"guard {dtype} {body} if {conditions} else {otherwise}"

    def _bind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            value = self._scalar(binding.value)
            if binding.symbol not in self._bound:
                self._bound.add(binding.symbol)
                self._line(2, f"{self._axis(binding.symbol, 'd')} = {value}")

    # -- names ------------------------------------------------------------------------------

    def _register(self, name: str) -> str:
        return self._registers.setdefault(name, f"r{len(self._registers)}")

    def _axis(self, symbol: Symbol, letter: str = "i") -> str:
        """An axis or data symbol with its range: ``i0: 0..479``, or ``i0: 0..511 < S``."""
        name = self._rename(symbol, letter)
        extent = symbol.extent
        limit = "" if extent is None or extent == symbol.max + 1 else f" < {self._dim(extent)}"
        return f"{name}: {symbol.min}..{symbol.max}{limit}"

    def _rename(self, symbol: Symbol, letter: str) -> Dim:
        if symbol not in self._renamed:
            name = f"{letter}{len(self._renamed) - len(self._variables)}"
            extent = None if symbol.extent is None else substitute(symbol.extent, self._renamed)
            self._renamed[symbol] = _symbol_expr(Symbol(name, symbol.min, symbol.max, extent))
        return self._renamed[symbol]

    def _dim(self, dim: Dim) -> str:
        for symbol in sorted(symbols(dim), key=lambda s: s.name):
            self._rename(symbol, "d")  # axes have their names by now
        return str(substitute(dim, self._renamed))

    def _attr(self, value: Attr) -> str:
        if isinstance(value, Expr):
            return self._dim(value)
        if isinstance(value, DType):
            return value.short
        if isinstance(value, tuple):
            return f"({', '.join(self._attr(item) for item in value)})"
        return repr(value)

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)


#: How each kind of kernel is printed, by the name of its class: most kinds are never imported.
_KINDS: dict[str, Callable[[_Printer, Any], None]] = {
    "AttentionKernel": _Printer.attention,
    "Choosing": _Printer.choosing,
    "Contraction": _Printer.contraction,
    "Copying": _Printer.copying,
    "Fetching": _Printer.fetching,
    "GroupedProduct": _Printer.grouped,
    "Grouping": _Printer.grouping,
    "JointProduct": _Printer.joint,
    "LoopNest": _Printer.nest,
    "RecurrentKernel": _Printer.recurrent,
    "TopK": _Printer.topk,
}


def _symbol_expr(symbol: Symbol) -> Expr:
    return Expr({(symbol,): 1}, 0)
